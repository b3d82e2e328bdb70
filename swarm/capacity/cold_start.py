"""A cold start as an agent saw it: one line for the start, one for each attempt at a chunk, one for
the end.

The same record is made by an agent (`--trace FILE`) and by a simulated node, so that prediction and
truth are compared by one piece of code. Times are seconds since the node began to want the version;
`started_at` places the node among the others, on the wall clock (an agent's) or on virtual time.

A trace is JSON, one object a line, and bounded: past `ATTEMPTS_MAX` attempts are only counted, and
what happens after the end is not written.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import cast

from swarm.errors import UsageError
from swarm.policy.commands import Command, FetchFromOrigin, RequestChunk
from swarm.policy.events import (
    ChunkVerified,
    Event,
    PeerConnected,
    TransferFailed,
    TransferId,
    VersionAdded,
)
from swarm.protocol.ids import VersionId

SCHEMA = "weightswarm-trace"
SCHEMA_VERSION = 1
ATTEMPTS_MAX = 100_000
"""So many chunks of the size that the largest versions get hold 6.7 TB; 21 MB of text."""
HANDSHAKES_MAX = 1000
"""A node dials its sixteen neighbours, and others for those that go: sixty times all of them."""
ORIGIN = "origin"
VERIFIED = "verified"
_HINT = "record it anew with `swarm agent --trace FILE`"


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """What the agent was told. Rates in bytes/s; None: not told."""

    zone: str = ""
    rack: str = ""
    nic_bytes_per_s: float | None = None
    flow_cap_bytes_per_s: float | None = None
    uplink_bytes_per_s: float | None = None
    downlink_bytes_per_s: float | None = None
    has_tracker: bool = True
    has_origin: bool = True


@dataclass(frozen=True, slots=True)
class TraceStart:
    """The version is known and the node begins."""

    node: str
    version: str
    # Seconds since the epoch.
    started_at: float
    total_bytes: int
    chunk_bytes: int
    chunk_count: int
    # On its disk already.
    held_count: int
    settings: TraceSettings


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to get one chunk. Seconds since the start; None: it did not come to that."""

    chunk: int
    # `ORIGIN`, or the peer's node id.
    source: str
    bytes: int
    asked_s: float
    # First byte of the payload, and its last.
    begun_s: float | None
    received_s: float | None
    # Verified in the store, or over.
    done_s: float
    # `VERIFIED`, or why not.
    outcome: str
    # Which session of that peer; None for the origin.
    session: int | None = None

    @property
    def is_origin(self) -> bool:
        return self.source == ORIGIN


@dataclass(frozen=True, slots=True)
class TraceEnd:
    """Every chunk is there, or the recording was stopped before."""

    # None: not ready.
    ready_s: float | None
    # Attempts that were not written.
    dropped_count: int


@dataclass(frozen=True, slots=True)
class Trace:
    """One node's cold start."""

    start: TraceStart
    attempts: tuple[Attempt, ...]
    # Round trips of handshakes with peers, in seconds.
    handshakes_s: tuple[float, ...] = ()
    end: TraceEnd | None = None


@dataclass(slots=True)
class _Pending:
    chunk: int
    source: str
    session: int | None
    asked_s: float
    begun_s: float | None = None
    received_s: float | None = None


class ColdStartRecorder:
    """Watches one node's events and commands and makes lines of them; the caller writes them.

    Knows one version: the first that the node begins. However long the node lives, no more lines
    are made than a trace may have; `lines` is emptied by its reader."""

    def __init__(self, node: str, settings: TraceSettings) -> None:
        self.lines: deque[str] = deque()
        self.node = node
        self._settings = settings
        self._version: VersionId | None = None
        self._lengths: tuple[int, ...] = ()
        self._missing: set[int] = set()
        self._began = 0.0
        self._pending: dict[TransferId, _Pending] = {}
        self._attempt_count = 0
        self._dropped_count = 0
        self._handshake_count = 0
        self._is_over = False

    def watch(
        self, events: Sequence[Event], commands: Sequence[Command], now: float, clock: float
    ) -> None:
        """One turn of the node; `clock` is `now` on the wall clock."""
        for event in events:
            match event:
                case VersionAdded() if self._version is None:
                    self._begin(event, now, clock)
                case ChunkVerified():
                    self._verified(event, now)
                case TransferFailed():
                    self._end(event.transfer, event.reason.name.lower(), now)
                case PeerConnected() if event.is_outgoing:
                    self._handshaken(event.rtt_s)
                case _:
                    pass
        for command in commands:
            match command:
                case RequestChunk() if command.version == self._version:
                    self._pending[command.transfer] = _Pending(
                        command.chunk, command.peer.hex(), command.session, now - self._began
                    )
                case FetchFromOrigin() if command.version == self._version:
                    self._pending[command.transfer] = _Pending(
                        command.chunk, ORIGIN, None, now - self._began
                    )
                case _:
                    pass

    def begun(self, transfer: TransferId, now: float) -> None:
        """The first byte of its payload is here."""
        pending = self._pending.get(transfer)
        if pending is not None and pending.begun_s is None:
            pending.begun_s = now - self._began

    def received(self, transfer: TransferId, now: float) -> None:
        """The last byte is here."""
        pending = self._pending.get(transfer)
        if pending is not None:
            pending.received_s = now - self._began

    def close(self) -> None:
        """Nothing more will come. A trace that is not over says so."""
        if self._version is not None and not self._is_over:
            self._finish(None)

    def _begin(self, event: VersionAdded, now: float, clock: float) -> None:
        self._version = event.version
        self._lengths = event.lengths
        self._began = now
        self._missing = {
            chunk for chunk in range(len(event.lengths)) if not event.have_bits >> chunk & 1
        }
        start = TraceStart(
            node=self.node,
            version=event.version.hex(),
            started_at=round(clock, 6),
            total_bytes=sum(event.lengths),
            chunk_bytes=max(event.lengths, default=0),
            chunk_count=len(event.lengths),
            held_count=len(event.lengths) - len(self._missing),
            settings=self._settings,
        )
        head = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION}
        self._add("start", head | asdict(start))
        if not self._missing:
            self._finish(0.0)

    def _handshaken(self, rtt_s: float) -> None:
        if not self._is_over and self._handshake_count < HANDSHAKES_MAX:
            self._handshake_count += 1
            self._add("handshake", {"rtt_s": _rounded(rtt_s)})

    def _verified(self, event: ChunkVerified, now: float) -> None:
        if event.version != self._version:
            return
        if event.transfer is not None:
            self._end(event.transfer, VERIFIED, now)
        self._missing.discard(event.chunk)
        if not self._missing and not self._is_over:
            self._finish(now - self._began)

    def _end(self, transfer: TransferId, outcome: str, now: float) -> None:
        pending = self._pending.pop(transfer, None)
        if pending is None:
            return
        self._attempt_count += 1
        if self._attempt_count > ATTEMPTS_MAX or self._is_over:
            self._dropped_count += not self._is_over
            return
        attempt = Attempt(
            chunk=pending.chunk,
            source=pending.source,
            bytes=self._lengths[pending.chunk],
            asked_s=_rounded(pending.asked_s),
            begun_s=_rounded_or_none(pending.begun_s),
            received_s=_rounded_or_none(pending.received_s),
            done_s=_rounded(now - self._began),
            outcome=outcome,
            session=pending.session,
        )
        self._add("chunk", asdict(attempt))

    def _finish(self, ready_s: float | None) -> None:
        self._is_over = True
        end = TraceEnd(_rounded_or_none(ready_s), self._dropped_count)
        self._add("end", asdict(end))

    def _add(self, kind: str, entries: dict[str, object]) -> None:
        self.lines.append(json.dumps({"kind": kind} | entries, separators=(",", ":")))


def parse_trace(lines: Iterator[str], name: str) -> Trace:
    """Read a trace; raises UsageError that names the file and the line."""
    start: TraceStart | None = None
    end: TraceEnd | None = None
    attempts: list[Attempt] = []
    handshakes: list[float] = []
    for number, line in enumerate(lines, 1):
        place = f"{name}:{number}"
        entries = _object(line, place)
        kind = entries.pop("kind", None)
        try:
            match kind:
                case "start":
                    start = _start(entries, place)
                case "chunk":
                    attempts.append(_attempt(entries))
                case "handshake":
                    handshakes.append(_seconds(entries["rtt_s"]))
                case "end":
                    ready = entries["ready_s"]
                    end = TraceEnd(
                        None if ready is None else _seconds(ready),
                        _count(entries["dropped_count"]),
                    )
                case _:
                    raise UsageError(f"{place}: unknown kind of line {kind!r}", hint=_HINT)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{place}: not a {kind} line: {error!r}", object_name=name, hint=_HINT
            ) from error
    if start is None:
        raise UsageError(f"{name} has no start: no version began", object_name=name, hint=_HINT)
    return Trace(start, tuple(attempts), tuple(handshakes), end)


def _start(entries: dict[str, object], place: str) -> TraceStart:
    schema, version = entries.pop("schema", None), entries.pop("schema_version", None)
    if (schema, version) != (SCHEMA, SCHEMA_VERSION):
        raise UsageError(
            f"{place}: schema {schema!r}, version {version!r}; this program reads "
            f"{SCHEMA!r}, version {SCHEMA_VERSION}",
            hint=_HINT,
        )
    told = cast("dict[str, str | float | bool | None]", entries.pop("settings"))
    _refuse_unknown(told, TraceSettings)
    settings = TraceSettings(
        zone=str(told["zone"]),
        rack=str(told["rack"]),
        nic_bytes_per_s=_rate(told["nic_bytes_per_s"]),
        flow_cap_bytes_per_s=_rate(told["flow_cap_bytes_per_s"]),
        uplink_bytes_per_s=_rate(told["uplink_bytes_per_s"]),
        downlink_bytes_per_s=_rate(told["downlink_bytes_per_s"]),
        has_tracker=bool(told["has_tracker"]),
        has_origin=bool(told["has_origin"]),
    )
    start = TraceStart(
        str(entries["node"]),
        str(entries["version"]),
        _seconds(entries["started_at"]),
        _count(entries["total_bytes"]),
        _count(entries["chunk_bytes"]),
        _count(entries["chunk_count"]),
        _count(entries["held_count"]),
        settings,
    )
    if not start.total_bytes or start.held_count > start.chunk_count:
        raise ValueError(f"{start.held_count} of {start.chunk_count} chunks held")
    return start


def _attempt(entries: dict[str, object]) -> Attempt:
    _refuse_unknown(entries, Attempt)
    session = entries["session"]
    return Attempt(
        chunk=_count(entries["chunk"]),
        source=str(entries["source"]),
        bytes=_count(entries["bytes"]),
        asked_s=_seconds(entries["asked_s"]),
        begun_s=_seconds_or_none(entries["begun_s"]),
        received_s=_seconds_or_none(entries["received_s"]),
        done_s=_seconds(entries["done_s"]),
        outcome=str(entries["outcome"]),
        session=None if session is None else _count(session),
    )


def _refuse_unknown(
    entries: dict[str, object] | dict[str, str | float | bool | None],
    kind: type[TraceSettings] | type[Attempt],
) -> None:
    unknown = set(entries) - {entry.name for entry in fields(kind)}
    if unknown:
        raise ValueError(f"unknown key {min(unknown)}")


def _object(line: str, place: str) -> dict[str, object]:
    try:
        entries = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{place}: not JSON: {error}", hint=_HINT) from error
    if not isinstance(entries, dict):
        raise UsageError(f"{place}: not a JSON object", hint=_HINT)
    return cast("dict[str, object]", entries)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"no count: {value!r}")
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"no number of seconds: {value!r}")
    if value < 0:
        raise ValueError(f"{value} seconds")
    return float(value)


def _seconds_or_none(value: object) -> float | None:
    return None if value is None else _seconds(value)


def _rate(value: str | float | None) -> float | None:
    return None if value is None else float(value)


def _rounded(seconds: float) -> float:
    """To microseconds: what a clock is good for."""
    return round(seconds, 6)


def _rounded_or_none(seconds: float | None) -> float | None:
    return None if seconds is None else _rounded(seconds)
