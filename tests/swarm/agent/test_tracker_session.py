"""When an agent reports: regularly, and soon after leases came, in virtual time."""

from __future__ import annotations

import random

import trio

from swarm.agent.tracker_client import TrackerClient
from swarm.agent.tracker_session import TrackerSession, VersionFacts
from swarm.protocol.ids import Address, ChunkIndex, Identity, LeaseId, NodeId, VersionId
from swarm.protocol.tracker_api import (
    LEASE_REPORT_INTERVAL_S,
    Lease,
    LeaseProgress,
    Listen,
    ListenReply,
    Mode,
    Report,
    ReportReply,
    VersionState,
)

VERSION = VersionId(bytes(32))
INTERVAL_S = 5.0


class ScriptedTracker(TrackerClient):
    """Answers every report at once, and the first listen with leases after a while."""

    def __init__(self, leases_at: float) -> None:
        super().__init__(["http://127.0.0.1:9"], key=None, identity=Identity(NodeId(bytes(16)), 1))
        self.reported_at: list[float] = []
        self._leases_at = leases_at

    async def report(self, report: Report) -> ReportReply:
        self.reported_at.append(trio.current_time())
        return ReportReply(needs_resync=False, interval_s=INTERVAL_S)

    async def listen(self, listen: Listen) -> ListenReply:
        if listen.seen != (0, 0):
            await trio.sleep_forever()
        await trio.sleep_until(self._leases_at)
        leases = (Lease(LeaseId(1), ChunkIndex(0), 1),)
        return ListenReply((1, 1), (VersionState(VERSION, (), leases, Mode.AUTO),), ())


class Facts:
    """An agent that holds nothing."""

    def versions_held(self) -> tuple[VersionFacts, ...]:
        return ()

    def versions_wanted(self) -> tuple[VersionId, ...]:
        return (VERSION,)

    def channels_followed(self) -> tuple[str, ...]:
        return ()

    def channels_served(self) -> tuple[tuple[str, int], ...]:
        return ()

    def lease_progress(self) -> tuple[LeaseProgress, ...]:
        return ()

    def nic_bytes_per_s(self) -> int:
        return 0

    def problem(self) -> str:
        return ""


async def test_a_report_follows_leases_within_a_second(autojump_clock: object) -> None:
    begun = trio.current_time()
    tracker = ScriptedTracker(leases_at=begun + 0.5)
    session = TrackerSession(
        tracker,
        Facts(),
        address=Address("10.0.0.1", 7000),
        zone="",
        rack="",
        on_reply=lambda reply: None,
        on_lost=lambda: None,
        on_regained=lambda: None,
        rng=random.Random(1),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.report_forever)
        nursery.start_soon(session.listen_forever)
        await trio.sleep(12)
        nursery.cancel_scope.cancel()
    soon = 0.5 + LEASE_REPORT_INTERVAL_S
    reported = [round(at - begun, 6) for at in tracker.reported_at]
    assert reported == [0.0, soon, soon + INTERVAL_S, soon + 2 * INTERVAL_S]
