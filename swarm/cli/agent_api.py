"""Asking the agent on this node, over its Unix socket or its --http address."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from swarm.errors import NotFoundError
from swarm.protocol.ids import Address

TIMEOUT_S = 5.0
"""The agent answers from memory; if its loop is held up for longer, that is the news."""
_ANSWER_BYTES_MAX = 16 << 20
"""A status has about 1 KiB for each version on the node."""


class ChannelDocument(TypedDict):
    """One followed channel in /v1/status."""

    channel: str
    target: str | None
    serves: str | None
    revision: int
    confirmed: bool


class VersionDocument(TypedDict):
    """One version in /v1/status."""

    version: str
    directory: str
    ready: bool
    chunks: int
    chunks_held: int
    seconds: float
    bytes: int
    bytes_held: int
    bytes_by_source: dict[str, int]
    wasted_bytes: int
    idle_s: float
    waiting: str
    problem: str


class TrackerDocument(TypedDict):
    """The agent's view of its tracker."""

    lost: bool
    failure: str


class DegradedDocument(TypedDict):
    """One kind of failure of the origin that lasts; instants in seconds since 1970."""

    reason: str
    since: float
    last_at: float
    failures: int
    message: str


class OriginDocument(TypedDict):
    """What the agent's own reads showed of its origin."""

    url: str
    degraded: list[DegradedDocument]


# Functional, as one of its keys is a word of the language.
ProblemDocument = TypedDict("ProblemDocument", {"version": str, "class": str, "message": str})
"""The latest fault of one version."""


class StatusDocument(TypedDict):
    """/v1/status, the parts that commands read; `--json` passes on all of it."""

    node: str
    generation: int
    cache: str
    neighbours: int
    nic_bytes_per_s: int
    sent_bytes: int
    tracker: TrackerDocument | None
    origin: OriginDocument | None
    channels: list[ChannelDocument]
    versions: list[VersionDocument]
    opening: list[str]
    waiting: list[str]
    problems: list[ProblemDocument]
    # NAME@TAG labels by version, where the tracker has told any.
    names: dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class AgentPlace:
    """Where an agent's local API is: exactly one of both."""

    socket: Path | None = None
    http: Address | None = None

    def __str__(self) -> str:
        return str(self.socket) if self.socket is not None else str(self.http)


def read_status(place: AgentPlace) -> StatusDocument:
    """The agent's status; raises NotFoundError when no agent answers there."""
    connection = _open(place)
    try:
        connection.request("GET", "/v1/status")
        answer = connection.getresponse()
        raw = answer.read(_ANSWER_BYTES_MAX)
        document: StatusDocument = json.loads(raw)
        if answer.status != 200 or "versions" not in document:
            raise ValueError(f"status {answer.status}")
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NotFoundError(
            f"no agent answers at {place}: {error or type(error).__name__}",
            object_name=str(place),
            hint="start `swarm agent` with --socket or --http, or name the right place",
        ) from error
    finally:
        connection.close()
    return document


def _open(place: AgentPlace) -> http.client.HTTPConnection:
    if place.http is not None:
        return http.client.HTTPConnection(place.http.host, place.http.port, timeout=TIMEOUT_S)
    assert place.socket is not None
    return _UnixConnection(place.socket)


class _UnixConnection(http.client.HTTPConnection):
    """The standard client over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("agent", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(str(self._path))
