"""The tracker's end: a real `Tracker`, and what each agent's tracker client does (report, listen,
report again at once when a lease is over).

Calls travel half a round trip each way and are served one after the other, `service_s` each. The
tracker knows only what reports told it. A listen is held until there is news; after the answer the
agent needs a round trip before its next one is there, and what happens meanwhile waits for that. A
tracker that is lost takes all its state with it; agents notice after a while (`LOST_AFTER_S`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulations.scenario import TrackerShape
from simulations.timeline import Timeline
from simulations.tracker_client import Client, Sent
from swarm.policy.commands import ReportLease
from swarm.policy.events import (
    HandoutReceived,
    LeasesReceived,
    ModeReceived,
    TrackerLost,
    TrackerRegained,
)
from swarm.protocol.ids import ChunkIndex, Identity, NodeId, VersionId
from swarm.protocol.tracker_api import (
    LEASE_REPORT_INTERVAL_S,
    LISTEN_HOLD_S,
    LeaseEnd,
    Listen,
    ListenReply,
    Mode,
    Report,
    ReportReply,
)
from tracker.policy.catalog import Catalog
from tracker.policy.channels import ChannelBook
from tracker.policy.prices import ZoneCopies
from tracker.policy.settings import TrackerSettings, ZoneSettings
from tracker.policy.tracker import Tracker

if TYPE_CHECKING:
    from simulations.node_driver import NodeDriver

LOST_AFTER_S = 3.0
"""Without an answer for so long the agent's tracker client tells its node."""
TICK_S_MIN = 0.02
"""The tracker's service rests so long between two looks, however near the next deadline is."""
RETRY_S = 1.0
"""Between two calls to a tracker that does not answer."""


@dataclass(frozen=True, slots=True)
class TrackerCall:
    """One call of the tracker, kept so that it can be replayed."""

    now: float
    identity: Identity | None
    # None: a tick.
    said: Report | Listen | None


class TrackerDriver:
    """Delivers between agents and the tracker."""

    def __init__(
        self,
        timeline: Timeline,
        version: VersionId,
        lengths: tuple[int, ...],
        shape: TrackerShape,
        seed: int,
    ) -> None:
        self._timeline = timeline
        self._version = version
        self._lengths = lengths
        self._way_s = shape.rtt_s / 2
        self._service_s = shape.service_s
        self._zone_copies = shape.zone_copies
        # The tracker's processor is busy until then.
        self._served_at = 0.0
        self._rng = random.Random(seed)
        self._clients: dict[NodeId, Client] = {}
        self._tick_turn = 0
        self._epoch = 0
        self._former_grants = 0
        self._mode = Mode.AUTO
        self.is_down = False
        self.call_count = 0
        self.busy_s = 0.0
        # Every call, for a replay; None: not kept.
        self.calls: list[TrackerCall] | None = None
        self._restart()

    # -- life

    def lose(self, for_s: float) -> None:
        """It dies, and another that knows nothing takes its place."""
        self.is_down = True
        self._former_grants += self._granted_count()
        for client in self._clients.values():
            client.is_listening = False
        noticed_s = min(LOST_AFTER_S, for_s)
        if for_s >= LOST_AFTER_S:
            self._timeline.after(noticed_s, self._notice_loss)
        self._timeline.after(for_s, self._regain)

    def _notice_loss(self) -> None:
        for client in self._clients.values():
            self._notice(client)

    def _notice(self, client: Client) -> None:
        if self.is_down:
            client.driver.handle(TrackerLost())

    def _regain(self) -> None:
        self._restart()
        for client in self._clients.values():
            client.driver.handle(TrackerRegained())

    def _restart(self) -> None:
        """A tracker that knows nothing but the operator's orders."""
        self._epoch += 1
        self._tracker = new_tracker(self._epoch, self._rng, self._timeline.now, self._zone_copies)
        if self._mode is not Mode.AUTO:
            self._tracker.set_mode(self._version, self._mode, now=self._timeline.now)
        self.is_down = False

    @property
    def granted_count(self) -> int:
        """Leases given out by this tracker and those before it."""
        return self._former_grants + self._granted_count()

    def _granted_count(self) -> int:
        swarms = self._tracker.swarms
        return sum(s.leases.counts.granted + s.leases.counts.adopted for s in swarms)

    # -- what agents and operators do

    def join(self, driver: NodeDriver) -> None:
        client = Client(driver)
        self._clients[driver.id] = client
        if self.is_down:
            self._timeline.after(LOST_AFTER_S, self._notice, client)
        self._report_now(client)
        self._listen_now(client)

    def bye(self, node: NodeId) -> None:
        """A last report: the agent is gone."""
        self._clients[node].is_leaving = True
        self._report_now(self._clients[node])

    def lease_over(self, node: NodeId, command: ReportLease) -> None:
        client = self._clients[node]
        client.leases.pop(command.lease, None)
        client.ended.append(
            LeaseEnd(
                command.lease,
                command.version,
                command.chunk,
                command.outcome,
                command.owner,
                command.retry_after_s,
            )
        )
        self._report_now(client)

    def unreachable(self, node: NodeId, peer: NodeId) -> None:
        client = self._clients[node]
        client.unreachable[peer] = None
        self._report_now(client)

    def has_leased(self, node: NodeId, chunk: ChunkIndex) -> bool:
        """The node has heard of a lease to read this chunk from the origin that has not ended."""
        return any(
            lease.chunk == chunk and lease.source is None
            for lease in self._clients[node].leases.values()
        )

    def set_mode(self, mode: Mode) -> None:
        self._mode = mode
        self._tracker.set_mode(self._version, mode, now=self._timeline.now)
        self._answer_listeners()

    # -- reports

    def _report_now(self, client: Client) -> None:
        """Send a report at once, or right after the one that is under way."""
        if client.is_reporting:
            client.is_report_wanted = True
        else:
            self._send_report(client)

    def _report_in_turn(self, client: Client, turn: int) -> None:
        if turn == client.report_turn and not client.is_reporting:
            self._send_report(client)

    def _send_report(self, client: Client) -> None:
        driver = client.driver
        if driver.is_dead:
            return
        client.report_turn += 1
        client.is_reporting = True
        client.is_report_wanted = False
        sent = client.make_report(self._version, self._lengths)
        self._timeline.after(self._way_s, self._arrive, client, sent)

    def _arrive(self, client: Client, sent: Sent) -> None:
        """A report is at the tracker and waits until it has time."""
        if self.is_down:
            self._timeline.after(RETRY_S, self._send_report, client)
        elif self._service_s:
            self._timeline.at(self._serve(), self._take_report, client, sent)
        else:
            self._take_report(client, sent)

    def _serve(self) -> float:
        """Queue one call; when it will have been served."""
        self.busy_s += self._service_s
        self._served_at = max(self._served_at, self._timeline.now) + self._service_s
        return self._served_at

    def _take_report(self, client: Client, sent: Sent) -> None:
        if self.is_down:
            self._timeline.after(RETRY_S, self._send_report, client)
            return
        info = client.driver.info
        identity = Identity(info.node_id, info.generation)
        self._keep(identity, sent.report)
        reply = self._tracker.report(identity, sent.report, now=self._timeline.now)
        self._timeline.after(self._way_s, self._reported, client, sent, reply)
        self._after_step()

    def _reported(self, client: Client, sent: Sent, reply: ReportReply) -> None:
        """The reply is at the agent: what was sent is known there."""
        client.is_reporting = False
        client.told = None if reply.needs_resync else sent.held
        del client.ended[: sent.ended_count]
        for node in sent.unreachable:
            client.unreachable.pop(node, None)
        if client.is_leaving and sent.report.is_leaving:
            return
        if reply.needs_resync or client.is_report_wanted:
            self._send_report(client)
        else:
            interval_s = reply.interval_s
            if client.leases:
                interval_s = min(interval_s, LEASE_REPORT_INTERVAL_S)
            self._timeline.after(interval_s, self._report_in_turn, client, client.report_turn)

    # -- listens

    def _listen_now(self, client: Client) -> None:
        """The agent sends its next listen."""
        client.listen_turn += 1
        self._timeline.after(self._way_s, self._listen, client, client.listen_turn)

    def _listen(self, client: Client, turn: int) -> None:
        """A listen is at the tracker, or has lain there to its end."""
        if turn != client.listen_turn or client.driver.is_dead or client.is_leaving:
            return
        if self.is_down:
            self._timeline.after(RETRY_S, self._listen, client, turn)
            return
        client.is_listening = True
        client.listen_turn += 1
        self._timeline.after(LISTEN_HOLD_S, self._listen, client, client.listen_turn)
        self._answer(client)
        self._after_step()

    def _answer(self, client: Client) -> None:
        info = client.driver.info
        identity = Identity(info.node_id, info.generation)
        listen = Listen(client.seen, (self._version,), ())
        self._keep(identity, listen)
        reply = self._tracker.listen(identity, listen, now=self._timeline.now)
        if reply is not None:
            client.is_listening = False
            client.listen_turn += 1
            heard_at = (self._serve() if self._service_s else self._timeline.now) + self._way_s
            self._timeline.at(heard_at, self._hear, client, reply)

    def _hear(self, client: Client, reply: ListenReply) -> None:
        """The answer is at the agent, which listens again at once."""
        driver = client.driver
        if driver.is_dead:
            return
        client.seen = reply.seen
        for state in reply.versions:
            over = {end.lease for end in client.ended}
            client.leases = {
                lease.lease: lease for lease in state.leases if lease.lease not in over
            }
            if state.mode is not client.mode:
                client.mode = state.mode
                driver.handle(ModeReceived(state.version, state.mode))
            driver.handle(HandoutReceived(state.version, state.handout))
            driver.handle(LeasesReceived(state.version, state.leases, state.is_zoned))
            if state.leases:
                self._timeline.after(
                    LEASE_REPORT_INTERVAL_S, self._report_in_turn, client, client.report_turn
                )
        self._listen_now(client)

    def _answer_listeners(self) -> None:
        for node in self._tracker.take_changed():
            client = self._clients.get(node)
            if client is not None and client.is_listening and not client.driver.is_dead:
                self._answer(client)

    # -- time

    def _after_step(self) -> None:
        self._answer_listeners()
        deadline = self._tracker.next_deadline()
        if deadline is not None:
            self._tick_turn += 1
            at = max(deadline, self._timeline.now + TICK_S_MIN)
            self._timeline.at(at, self._tick, self._tick_turn)

    def _tick(self, turn: int) -> None:
        if turn == self._tick_turn and not self.is_down:
            self._keep(None, None)
            self._tracker.tick(now=self._timeline.now)
            self._after_step()

    def _keep(self, identity: Identity | None, said: Report | Listen | None) -> None:
        self.call_count += 1
        if self.calls is not None:
            self.calls.append(TrackerCall(self._timeline.now, identity, said))


def new_tracker(
    epoch: int, rng: random.Random, now: float, zone_copies: ZoneCopies = ZoneCopies.PEER
) -> Tracker:
    """A tracker that knows nothing, without a catalog."""
    return Tracker(
        TrackerSettings(zones=ZoneSettings(copies=zone_copies)),
        epoch=epoch,
        rng=rng,
        catalog=Catalog(),
        channels=ChannelBook(),
        modes={},
        started_at=now,
    )


def replay_tracker(calls: list[TrackerCall], seed: int) -> None:
    """Make the same calls to a new tracker, with what its shell asks after each."""
    tracker = new_tracker(1, random.Random(seed), 0.0)
    for call in calls:
        if call.identity is None:
            tracker.tick(now=call.now)
        elif isinstance(call.said, Report):
            tracker.report(call.identity, call.said, now=call.now)
        elif call.said is not None:
            tracker.listen(call.identity, call.said, now=call.now)
        tracker.take_changed()
        tracker.next_deadline()
