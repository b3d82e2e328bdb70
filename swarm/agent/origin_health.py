"""Whether the origin is well, as far as this agent has met it: what is wrong, of which kind, since
when.

Peers hide a sick origin: a fleet that is warm goes on serving while nobody new could be served. So
every agent keeps what its own reads showed and tells it in status and metrics.

Two kinds of trouble end differently. That the origin *as a whole* does not serve us (throttled,
unreachable, denied) is over with the next read that succeeds. That *one object* is not what it
should be (missing, corrupt, a wrong answer) says nothing of the others, nor they of it: it is over
when that same chunk or document was read.

What is not asked for again is not known either: peers may give a chunk before the origin has it
again. Trouble that was not met for `MEMORY_S` is forgotten rather than shown for ever: whoever
still needs the origin meets it again by then. The alternative, to probe the origin from every
node, would be load on an origin that is sick. The counters of failures stay.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from swarm.errors import (
    AuthError,
    IntegrityError,
    ManifestError,
    NotFoundError,
    OriginError,
    OriginThrottledError,
    SwarmError,
)
from swarm.protocol.ids import ChunkIndex, VersionId

logger = logging.getLogger(__name__)

MEMORY_S = 60.0
"""After the last failure of its kind, or after what a throttling origin asked to wait. Twice the
longest pause between two reads of an agent that needs something (`documents`), so that trouble
which lasts never flickers."""
LOG_INTERVAL_S = 10.0
"""One line for all failures of this long: an outage of the origin is one fact, not one a
request."""

_Found = TypeVar("_Found")


class Document(enum.Enum):
    """What is read of a version beside its chunks."""

    MANIFEST = enum.auto()
    LOCATIONS = enum.auto()


Part = ChunkIndex | Document


class OriginFault(enum.Enum):
    """What kind of failure it was; the values are labels of the metrics and keys of the JSON."""

    THROTTLED = "throttled"
    # No connection, no answer in time, 5xx.
    UNREACHABLE = "unreachable"
    # Credentials missing, wrong or expired.
    DENIED = "denied"
    MISSING = "missing"
    # The bytes are not those of the version.
    CORRUPT = "corrupt"
    # Another status, range or length than asked for, on every attempt.
    WRONG_ANSWER = "wrong-answer"


_OF_ONE_OBJECT = frozenset({OriginFault.MISSING, OriginFault.CORRUPT, OriginFault.WRONG_ANSWER})


@dataclass(frozen=True, slots=True)
class Degradation:
    """One kind of failure that lasts."""

    fault: OriginFault
    # The latest failure, in words.
    message: str
    # On the caller's clock: the first failure since it was last well, and the latest.
    since: float
    last_at: float
    # Failed reads in between.
    failures: int


@dataclass(slots=True)
class _Record:
    """A kind of failure, of one version or (None) of the origin as a whole."""

    since: float
    last_at: float
    message: str
    # When it is forgotten unless it is met again.
    until: float
    failures: int = 0
    # Of the version, what has failed and was not read since.
    parts: set[Part] = field(default_factory=set)


class OriginHealth:
    """Owned by the agent; told by everyone who reads the origin for it. `now` is monotonic."""

    def __init__(self) -> None:
        self._records: dict[tuple[OriginFault, VersionId | None], _Record] = {}
        # Failed reads since the start; never falls.
        self.failure_counts: dict[OriginFault, int] = dict.fromkeys(OriginFault, 0)
        self._logged_at = float("-inf")
        # Somebody who reads the log thinks that it is ill.
        self._is_told_ill = False

    def failed(self, version: VersionId, part: Part, error: SwarmError, *, now: float) -> None:
        """A read of a part of `version` failed. Faults of our own disk are no matter of the
        origin's."""
        fault = fault_of(error)
        if fault is None:
            return
        self.failure_counts[fault] += 1
        self._forget_old(now)
        key = fault, version if fault in _OF_ONE_OBJECT else None
        record = self._records.setdefault(key, _Record(now, now, "", now))
        record.last_at, record.message = now, error.message
        asked_s = error.retry_after_s if isinstance(error, OriginThrottledError) else None
        record.until = now + MEMORY_S + (asked_s or 0.0)
        record.failures += 1
        record.parts.add(part)
        if now - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at, self._is_told_ill = now, True
            logger.warning("origin: %s: %s", fault.value, error.message)

    def succeeded(self, version: VersionId, part: Part, *, now: float) -> None:
        """A part of `version` was read and is right."""
        if not self._records:
            return
        since = min(record.since for record in self._records.values())
        for (fault, of_version), record in list(self._records.items()):
            if fault not in _OF_ONE_OBJECT:
                del self._records[fault, of_version]
            elif of_version == version:
                record.parts.discard(part)
                if not record.parts:
                    del self._records[fault, of_version]
        if not self._records and self._is_told_ill:
            self._is_told_ill = False
            logger.info("origin: well again after %.0f s", now - since)

    def degradations(self, *, now: float) -> tuple[Degradation, ...]:
        """What is wrong at present, one entry a kind; empty while all is well."""
        self._forget_old(now)
        found: dict[OriginFault, Degradation] = {}
        for (fault, _), record in self._records.items():
            other = found.get(fault)
            is_latest = other is None or record.last_at >= other.last_at
            found[fault] = Degradation(
                fault,
                record.message if is_latest or other is None else other.message,
                min(record.since, other.since) if other else record.since,
                max(record.last_at, other.last_at) if other else record.last_at,
                record.failures + (other.failures if other else 0),
            )
        return tuple(found.values())

    def _forget_old(self, now: float) -> None:
        for key, record in list(self._records.items()):
            if now > record.until:
                del self._records[key]


def fault_of(error: SwarmError) -> OriginFault | None:
    """The kind of a failed read; None where the origin is not to blame."""
    match error:
        case OriginThrottledError():
            return OriginFault.THROTTLED
        case OriginError():
            return OriginFault.UNREACHABLE if error.is_retryable else OriginFault.WRONG_ANSWER
        case AuthError():
            return OriginFault.DENIED
        case NotFoundError():
            return OriginFault.MISSING
        case IntegrityError() | ManifestError():
            return OriginFault.CORRUPT
        case _:
            return None


def watched(
    health: OriginHealth,
    document: Document,
    fetch: Callable[[VersionId], Awaitable[_Found]],
) -> Callable[[VersionId], Awaitable[_Found]]:
    """`fetch`, which reads this document of a version from the origin, with its outcome noted."""

    async def fetch_and_note(version: VersionId) -> _Found:
        try:
            found = await fetch(version)
        except SwarmError as error:
            health.failed(version, document, error, now=trio.current_time())
            raise
        health.succeeded(version, document, now=trio.current_time())
        return found

    return fetch_and_note
