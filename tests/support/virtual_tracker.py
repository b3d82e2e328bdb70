"""The tracker's end of the virtual swarm: a real `Tracker`, and what each agent's tracker client
would do (report, listen, report again at once when a lease is over)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from swarm.policy.commands import ReportLease
from swarm.policy.events import Event, HandoutReceived, LeasesReceived, ModeReceived
from swarm.policy.node import Node
from swarm.protocol.chunk_set import iter_bits
from swarm.protocol.ids import ChunkIndex, Identity, LeaseId, NodeId, VersionId
from swarm.protocol.messages import PeerInfo
from swarm.protocol.tracker_api import (
    Lease,
    LeaseEnd,
    LeaseProgress,
    Listen,
    ListenReply,
    Mode,
    Report,
    VersionReport,
)
from tests.support.virtual_network import Clock
from tracker.policy.catalog import Catalog
from tracker.policy.channels import ChannelBook
from tracker.policy.settings import TrackerSettings
from tracker.policy.tracker import Tracker

LISTEN_AGAIN_S = 10.0
"""An agent listens all the time; below the time after which the tracker calls it deaf."""


@dataclass(frozen=True, slots=True)
class TrackerCall:
    """One call of the tracker, kept so that it can be replayed."""

    now: float
    identity: Identity | None
    # None: a tick.
    said: Report | Listen | None


class Agent(Protocol):
    """What the client needs of a node's surroundings."""

    info: PeerInfo
    node: Node
    held: int
    is_dead: bool

    def origin_progress(self) -> dict[ChunkIndex, int]:
        """Bytes received of each chunk that is being read from the origin."""


@dataclass(slots=True)
class Client:
    """One agent's tracker client."""

    agent: Agent
    sequence: int = 0
    seen: tuple[int, int] = (0, 0)
    # What the tracker was told last; None means everything must be told.
    told: int | None = None
    leases: dict[LeaseId, Lease] = field(default_factory=dict)
    ended: list[LeaseEnd] = field(default_factory=list)
    unreachable: dict[NodeId, None] = field(default_factory=dict)
    # Outdated timers are recognised by it.
    turn: int = 0
    mode: Mode = Mode.AUTO


class VirtualTracker:
    """Delivers between agents and a real tracker with half a round trip each way."""

    def __init__(
        self,
        clock: Clock,
        tell: Callable[[NodeId, Event], None],
        version: VersionId,
        chunk_count: int,
        chunk_bytes: int,
        *,
        rtt_s: float,
        seed: int,
    ) -> None:
        self._clock = clock
        self._tell = tell
        self._version = version
        self._chunk_count = chunk_count
        self._chunk_bytes = chunk_bytes
        self._delay_s = rtt_s / 2
        self._rng = random.Random(seed)
        self._clients: dict[NodeId, Client] = {}
        self._tick_turn = 0
        self._epoch = 0
        self.is_down = False
        # Every call, for a replay; None: not kept.
        self.calls: list[TrackerCall] | None = None
        self.restart()

    def restart(self) -> None:
        """A tracker that knows nothing."""
        self._epoch += 1
        self._tracker = new_tracker(self._epoch, self._rng, self._clock.now)
        self.is_down = False

    def join(self, agent: Agent) -> None:
        client = Client(agent)
        self._clients[agent.info.node_id] = client
        self._report(client)

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
        self._report(client)

    def unreachable(self, node: NodeId, peer: NodeId) -> None:
        client = self._clients[node]
        client.unreachable[peer] = None
        self._report(client)

    def set_mode(self, mode: Mode) -> None:
        self._tracker.set_mode(self._version, mode, now=self._clock.now)
        self._answer_listeners()

    # -- reports

    def _report(self, client: Client) -> None:
        """Send a report now, and the next one in its turn."""
        client.turn += 1
        turn = client.turn
        self._clock.after(self._delay_s, lambda: self._deliver(client, turn))

    def _deliver(self, client: Client, turn: int) -> None:
        """The report reaches the tracker; of several under way the last one says it all."""
        if client.agent.is_dead or turn != client.turn:
            return
        if self.is_down:
            self._later(client, 1.0)
            return
        agent = client.agent
        identity = Identity(agent.info.node_id, agent.info.generation)
        held = agent.held
        report = self._make(client, held)
        self._keep(identity, report)
        reply = self._tracker.report(identity, report, now=self._clock.now)
        client.told = None if reply.needs_resync else held
        client.ended.clear()
        client.unreachable.clear()
        self._later(client, 0.0 if reply.needs_resync else reply.interval_s)
        self._listen(client)
        self._after_step()

    def _later(self, client: Client, delay_s: float) -> None:
        client.turn += 1
        turn = client.turn
        delay_s = min(delay_s, LISTEN_AGAIN_S) + 2 * self._delay_s
        self._clock.after(delay_s, lambda: self._deliver(client, turn))

    def _make(self, client: Client, held: int) -> Report:
        client.sequence += 1
        told = client.told
        progress = client.agent.origin_progress()
        statistics = client.agent.node.statistics()
        nic = int(statistics.nic_bytes_per_s) if statistics.is_nic_known else 0
        return Report(
            sequence=client.sequence,
            address=client.agent.info.address,
            zone=client.agent.info.zone,
            rack=client.agent.info.rack,
            nic_bytes_per_s=nic,
            versions=(
                VersionReport(
                    self._version,
                    bits=held.to_bytes((self._chunk_count + 7) // 8, "little")
                    if told is None
                    else None,
                    added=tuple(iter_bits(held & ~(told or 0))),
                    removed=tuple(iter_bits((told or 0) & ~held)),
                    is_ready=held.bit_count() == self._chunk_count,
                    chunk_count=self._chunk_count,
                    chunk_bytes=self._chunk_bytes,
                ),
            ),
            leases=tuple(
                LeaseProgress(lease.lease, progress.get(lease.chunk, 0), self._version, lease.chunk)
                for lease in client.leases.values()
            ),
            ended=tuple(client.ended),
            unreachable=tuple(client.unreachable),
            channels=(),
            problem="",
            is_leaving=False,
        )

    # -- listens

    def _listen(self, client: Client) -> None:
        info = client.agent.info
        identity = Identity(info.node_id, info.generation)
        listen = Listen(client.seen, (self._version,), ())
        self._keep(identity, listen)
        reply = self._tracker.listen(identity, listen, now=self._clock.now)
        if reply is not None:
            client.seen = reply.seen
            self._hear(client, reply)

    def _hear(self, client: Client, reply: ListenReply) -> None:
        node = client.agent.info.node_id
        for state in reply.versions:
            over = {end.lease for end in client.ended}
            client.leases = {
                lease.lease: lease for lease in state.leases if lease.lease not in over
            }
            if state.mode is not client.mode:
                client.mode = state.mode
                self._tell(node, ModeReceived(state.version, state.mode))
            self._tell(node, HandoutReceived(state.version, state.handout))
            self._tell(node, LeasesReceived(state.version, state.leases))

    def _answer_listeners(self) -> None:
        for node in self._tracker.take_changed():
            client = self._clients.get(node)
            if client is not None and not client.agent.is_dead:
                self._listen(client)

    # -- time

    def _after_step(self) -> None:
        self._answer_listeners()
        deadline = self._tracker.next_deadline()
        if deadline is not None:
            self._tick_turn += 1
            turn = self._tick_turn
            self._clock.at(deadline, lambda: self._tick(turn))

    def _tick(self, turn: int) -> None:
        if turn == self._tick_turn and not self.is_down:
            self._keep(None, None)
            self._tracker.tick(now=self._clock.now)
            self._after_step()

    def _keep(self, identity: Identity | None, said: Report | Listen | None) -> None:
        if self.calls is not None:
            self.calls.append(TrackerCall(self._clock.now, identity, said))


def new_tracker(epoch: int, rng: random.Random, now: float) -> Tracker:
    """A tracker that knows nothing, without a catalog."""
    return Tracker(
        TrackerSettings(),
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
