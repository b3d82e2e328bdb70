"""The agent's side of `report` and `listen`: what changed here goes out, what is new there comes
in.

Reports are sequential, so that (generation, sequence) orders them; whatever a report carried stays
pending until it was answered, so a lost reply costs a repeat and never a fact. The first failure of
a tracker is nothing (downloads go on with the neighbours known); `LOST_AFTER_S` of nothing else
makes it a `TrackerLost` for policy."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import trio

from swarm.agent.tracker_client import TrackerClient
from swarm.errors import AuthError, SwarmError
from swarm.policy.commands import ReportLease
from swarm.protocol.chunk_set import iter_bits
from swarm.protocol.ids import Address, ChunkIndex, LeaseId, NodeId, VersionId
from swarm.protocol.tracker_api import (
    LEASE_REPORT_INTERVAL_S,
    REPORT_INTERVAL_S,
    LeaseEnd,
    LeaseProgress,
    Listen,
    ListenReply,
    Report,
    VersionReport,
)

logger = logging.getLogger(__name__)

LOST_AFTER_S = 3.0
"""Of failing calls: a tracker that is only restarted answers by then, and in a fleet that waits
longer nothing is read from the origin meanwhile."""
RETRY_S_MIN = 0.2
RETRY_S_MAX = 5.0
"""Back-off between failed calls, doubled each time, with full jitter; the upper end is the normal
report interval, so that a tracker that is back hears of all within one interval."""


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """What the agent says of one version right now."""

    version: VersionId
    chunk_count: int
    chunk_bytes: int
    bits: int
    is_ready: bool


class AgentFacts(Protocol):
    """What a report is made of; the agent implements it."""

    def versions_held(self) -> tuple[VersionFacts, ...]: ...
    def versions_wanted(self) -> tuple[VersionId, ...]: ...
    def channels_followed(self) -> tuple[str, ...]: ...
    def channels_served(self) -> tuple[tuple[str, int], ...]: ...
    def lease_progress(self) -> tuple[LeaseProgress, ...]: ...
    def nic_bytes_per_s(self) -> int: ...
    def problem(self) -> str: ...


class TrackerSession:
    """Runs both loops against one fleet's trackers; the agent pokes it and gets replies by
    callback."""

    def __init__(
        self,
        client: TrackerClient,
        facts: AgentFacts,
        *,
        address: Address,
        zone: str,
        rack: str,
        on_reply: Callable[[ListenReply], None],
        on_lost: Callable[[], None],
        on_regained: Callable[[], None],
        rng: random.Random,
    ) -> None:
        self._client = client
        self._facts = facts
        self._address = address
        self._zone = zone
        self._rack = rack
        self._on_reply = on_reply
        self._on_lost = on_lost
        self._on_regained = on_regained
        self._rng = rng
        self._sequence = 0
        # Bits that the tracker has acknowledged, by version; a version not in here is sent whole.
        self._known: dict[VersionId, int] = {}
        self._ended: dict[LeaseId, LeaseEnd] = {}
        self._unreachable: dict[NodeId, None] = {}
        self._wake = trio.Event()
        self._listen_scope: trio.CancelScope | None = None
        # The wait for the next report, and when that is due at the latest.
        self._rest_scope: trio.CancelScope | None = None
        self._report_by = math.inf
        # Since when every call has failed; None while they do not.
        self._failing_since: float | None = None
        self.is_lost = False
        # The last failure, in words; "" while the tracker answers.
        self.failure = ""

    def poke(self) -> None:
        """Report now: a lease ended, a version became ready, an agent is unreachable."""
        self._wake.set()

    def subscriptions_changed(self) -> None:
        """Versions or channels changed: the held listen is out of date."""
        if self._listen_scope is not None:
            self._listen_scope.cancel()

    def lease_ended(self, end: ReportLease) -> None:
        self._ended[end.lease] = LeaseEnd(
            lease=end.lease,
            version=end.version,
            chunk=end.chunk,
            outcome=end.outcome,
            owner=end.owner,
            retry_after_s=end.retry_after_s,
        )
        self.poke()

    def unreachable(self, peer: NodeId) -> None:
        self._unreachable[peer] = None
        self.poke()

    async def report_forever(self) -> None:
        failures = 0
        interval_s = 0.0
        while True:
            deadline = min(trio.current_time() + interval_s, self._report_by)
            with trio.move_on_at(deadline) as self._rest_scope:
                await self._wake.wait()
            self._wake = trio.Event()
            self._report_by = math.inf
            try:
                interval_s = await self.report_once()
                failures = 0
            except SwarmError as error:
                failures += 1
                interval_s = self._backoff_s(failures)
                self._failed(error)
                await trio.sleep(interval_s)

    def _report_soon(self) -> None:
        """Leases came. Until it hears of them the tracker cannot tell a slow reader from one that
        has just begun, and gives it more; the next regular report may be many seconds away."""
        self._report_by = min(self._report_by, trio.current_time() + LEASE_REPORT_INTERVAL_S)
        if self._rest_scope is not None:
            self._rest_scope.deadline = min(self._rest_scope.deadline, self._report_by)

    async def report_once(self, *, is_leaving: bool = False) -> float:
        """Send one report; seconds until the next. Raises the client's errors."""
        report, bits = self._compose(is_leaving=is_leaving)
        # Whether a report without an answer was taken in cannot be known: the next one says all.
        self._known = {}
        reply = await self._client.report(report)
        if not reply.needs_resync:
            self._known = bits
        for end in report.ended:
            self._ended.pop(end.lease, None)
        for peer in report.unreachable:
            self._unreachable.pop(peer, None)
        self._answered()
        if reply.needs_resync:
            return 0.0
        if report.leases:
            return min(LEASE_REPORT_INTERVAL_S, reply.interval_s)
        return reply.interval_s or REPORT_INTERVAL_S

    async def listen_forever(self) -> None:
        seen = (0, 0)
        failures = 0
        while True:
            listen = Listen(
                seen=seen,
                versions=self._facts.versions_wanted(),
                channels=self._facts.channels_followed(),
            )
            with trio.CancelScope() as scope:
                self._listen_scope = scope
                try:
                    reply = await self._client.listen(listen)
                except SwarmError as error:
                    failures += 1
                    self._failed(error)
                    await trio.sleep(self._backoff_s(failures))
                    continue
                failures = 0
                seen = reply.seen
                self._answered()
                self._on_reply(reply)
                if any(state.leases for state in reply.versions):
                    self._report_soon()
            if scope.cancelled_caught:
                # What was asked for changed: the next answer must be whole.
                seen = (0, 0)

    def _compose(self, *, is_leaving: bool) -> tuple[Report, dict[VersionId, int]]:
        self._sequence += 1
        held = self._facts.versions_held()
        report = Report(
            sequence=self._sequence,
            address=self._address,
            zone=self._zone,
            rack=self._rack,
            nic_bytes_per_s=self._facts.nic_bytes_per_s(),
            versions=tuple(self._version_report(facts) for facts in held),
            leases=self._facts.lease_progress(),
            ended=tuple(self._ended.values()),
            unreachable=tuple(self._unreachable),
            channels=self._facts.channels_served(),
            problem=self._facts.problem(),
            is_leaving=is_leaving,
        )
        return report, {facts.version: facts.bits for facts in held}

    def _version_report(self, facts: VersionFacts) -> VersionReport:
        known = self._known.get(facts.version)
        whole = VersionReport(
            version=facts.version,
            bits=None,
            added=(),
            removed=(),
            is_ready=facts.is_ready,
            chunk_count=facts.chunk_count,
            chunk_bytes=facts.chunk_bytes,
        )
        if known is None:
            raw = facts.bits.to_bytes((facts.chunk_count + 7) // 8, "little")
            return replace(whole, bits=raw)
        return replace(
            whole, added=_chunks(facts.bits & ~known), removed=_chunks(known & ~facts.bits)
        )

    def _answered(self) -> None:
        self._failing_since = None
        if self.failure:
            logger.info("tracker answers again")
            self.failure = ""
        if self.is_lost:
            self.is_lost = False
            self._on_regained()

    def _failed(self, error: SwarmError) -> None:
        if not self.failure:
            hint = f" — {error.hint}" if error.hint else ""
            logger.warning("tracker: %s%s", error.message, hint)
        self.failure = error.message
        now = trio.current_time()
        self._failing_since = self._failing_since or now
        is_silent = now - self._failing_since >= LOST_AFTER_S
        if not self.is_lost and (is_silent or isinstance(error, AuthError)):
            self.is_lost = True
            self._on_lost()

    def _backoff_s(self, failures: int) -> float:
        ceiling = min(RETRY_S_MAX, RETRY_S_MIN * 2 ** min(failures, 10))
        return self._rng.uniform(RETRY_S_MIN, ceiling)


def _chunks(bits: int) -> tuple[ChunkIndex, ...]:
    return tuple(iter_bits(bits))
