"""Which handler serves a (method, path).

A pattern is a path whose segments in braces capture one segment each: ``/v1/versions/{reference}``.
A reference may hold a slash when percent-encoded. Fixed paths are found by one dictionary look-up;
patterns are few and tried in the order they were added.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from swarm.http.messages import Request, Response, decode_segment

Handler = Callable[[Request], Awaitable[Response]]

BODY_BYTES_MAX = 1 << 20
"""A route that says nothing takes a megabyte: more than any report of an agent that follows two
versions of 100,000 chunks."""


@dataclass(frozen=True, slots=True)
class Route:
    """One entry of the table."""

    handler: Handler
    body_bytes_max: int
    # The answer may be long in coming: the handler is cancelled when the client goes away
    # meanwhile.
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class Match:
    """A route found, with what its pattern captured."""

    route: Route
    path_values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NoMatch:
    """No route: 405 when the path exists for other methods, else 404."""

    allowed: tuple[str, ...]


class Router:
    """A table of routes, filled once at start."""

    def __init__(self) -> None:
        self._fixed: dict[str, dict[str, Route]] = {}
        self._patterns: list[tuple[tuple[str, ...], dict[str, Route]]] = []

    def add(
        self,
        method: str,
        pattern: str,
        handler: Handler,
        *,
        body_bytes_max: int = BODY_BYTES_MAX,
        is_held: bool = False,
    ) -> None:
        """Serve `method` on `pattern`; each pair once."""
        methods = self._methods(pattern)
        assert method not in methods, (method, pattern)
        methods[method] = Route(handler, body_bytes_max, is_held)

    def find(self, method: str, path: str) -> Match | NoMatch:
        methods = self._fixed.get(path)
        values: dict[str, str] = {}
        if methods is None:
            methods, values = self._find_pattern(path.split("/"))
        route = methods.get("GET" if method == "HEAD" and "HEAD" not in methods else method)
        if route is None:
            return NoMatch(tuple(sorted(methods)))
        return Match(route, values)

    def _methods(self, pattern: str) -> dict[str, Route]:
        if "{" not in pattern:
            return self._fixed.setdefault(pattern, {})
        segments = tuple(pattern.split("/"))
        for known, methods in self._patterns:
            if known == segments:
                return methods
        self._patterns.append((segments, {}))
        return self._patterns[-1][1]

    def _find_pattern(self, segments: list[str]) -> tuple[dict[str, Route], dict[str, str]]:
        for pattern, methods in self._patterns:
            values = _capture(pattern, segments)
            if values is not None:
                return methods, values
        return {}, {}


def _capture(pattern: tuple[str, ...], segments: list[str]) -> dict[str, str] | None:
    """What the braces of `pattern` stand for, or None if it does not fit."""
    if len(pattern) != len(segments):
        return None
    values: dict[str, str] = {}
    for wanted, segment in zip(pattern, segments, strict=True):
        if wanted.startswith("{"):
            if not segment:
                return None
            values[wanted[1:-1]] = decode_segment(segment)
        elif wanted != segment:
            return None
    return values
