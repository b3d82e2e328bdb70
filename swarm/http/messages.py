"""One request as a handler sees it, and the response it gives back."""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""What a JSON document can be made of."""

_QUERY_FIELDS_MAX = 32
"""No call of ours has more than three."""


@dataclass(frozen=True)
class Request:
    """A whole request: the body has been read, within the limit of its route."""

    method: str
    # Target as sent, with its query: what a MAC covers.
    target: str
    # Lower-case names; of a repeated header the last value.
    headers: Mapping[str, str]
    body: bytes
    # Wall-clock seconds since 1970 when the header was complete; a slow body ages no request.
    received_at: float
    # What the route's pattern captured, percent-decoded.
    path_values: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def path(self) -> str:
        """The target without its query, still percent-encoded."""
        return urlsplit(self.target).path

    @cached_property
    def query(self) -> Mapping[str, str]:
        """The query's fields; raises ValueError when there are too many."""
        pairs = parse_qsl(
            urlsplit(self.target).query, keep_blank_values=True, max_num_fields=_QUERY_FIELDS_MAX
        )
        return dict(pairs)


@dataclass(frozen=True, slots=True)
class Response:
    """What to answer. A body that is an async iterable is streamed, chunked, as it is produced."""

    status: int
    body: bytes | AsyncIterable[bytes] = b""
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


def text_response(status: int, text: str, *headers: tuple[str, str]) -> Response:
    """A line for a human."""
    return Response(status, (text + "\n").encode(), TEXT, headers)


def decode_segment(segment: str) -> str:
    """A path segment without its percent-encoding."""
    return unquote(segment, errors="replace")
