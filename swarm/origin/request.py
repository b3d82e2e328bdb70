"""A request as an origin's connection sends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class OriginRequest:
    """Where to and what. The target may hold a signature: never shown."""

    method: str
    # "http" or "https".
    scheme: str
    # Without brackets.
    host: str
    port: int
    # Path and query, percent-encoded.
    target: str
    # Without Host, which follows from the rest.
    headers: Mapping[str, str]

    @classmethod
    def to(cls, method: str, url: str, headers: Mapping[str, str]) -> OriginRequest:
        """A request to a URL that is well-formed and percent-encoded; user information and fragment
        do not count."""
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORTS[parts.scheme]
        target = (parts.path or "/") + ("?" + parts.query if parts.query else "")
        return cls(method, parts.scheme, parts.hostname or "", port, target, headers)

    @property
    def place(self) -> str:
        """The value of Host."""
        return host_and_port(self.scheme, self.host, self.port)


def host_and_port(scheme: str, host: str, port: int) -> str:
    """As Host and signatures have it: the port only where it is not the scheme's own."""
    shown = f"[{host}]" if ":" in host else host
    return shown if port == DEFAULT_PORTS[scheme] else f"{shown}:{port}"
