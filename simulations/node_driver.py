"""One node's agent in virtual time: the second interpreter of the command list.

It owns a real `Node`, its NIC and disk, and what its agent would keep: who is linked, which chunks
are in the store, when the next timer fires. Payload is carried out by its `Transfers`. Messages
take half a round trip; local facts are handled after the one that is being handled.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from typing import assert_never

from simulations.network import Link
from simulations.scenario import NodeGroup
from simulations.tracker_driver import TrackerDriver
from simulations.transfers import Transfers
from simulations.world import VERSION, World
from swarm.policy.commands import (
    CancelTransfer,
    Command,
    ConnectPeer,
    DisconnectPeer,
    EndSession,
    FetchFromOrigin,
    HashAgain,
    RefuseRequest,
    ReportLease,
    ReportUnreachable,
    RequestChunk,
    SendBadChunk,
    SendBitfield,
    SendClaim,
    SendHave,
    SendRetract,
    StartUpload,
)
from swarm.policy.events import (
    BadChunkReported,
    BitfieldReceived,
    ChunkDamaged,
    ChunksRetracted,
    ClaimReceived,
    ConnectFailed,
    Event,
    HandoutReceived,
    HavesReceived,
    LeaveRequested,
    PeerConnected,
    PeerLost,
    ProgressSampled,
    TimerFired,
    TrackerLost,
    VersionAdded,
)
from swarm.policy.node import Node
from swarm.policy.settings import NodeSettings
from swarm.protocol.chunk_set import iter_bits
from swarm.protocol.ids import ChunkIndex, NodeId
from swarm.protocol.messages import PeerInfo

SAMPLE_S = 0.2
"""The agent looks at its kernel's byte counters so often."""
DIAL_TIMEOUT_S = 2.0
HANDSHAKE_ROUND_TRIPS = 1.5
CONTROL_REST_S = 0.02
"""The agent reads its control links with any turn, else together and no more often than this."""
LEAVE_POLL_S = 0.1

Watch = Callable[["NodeDriver", tuple[Event, ...], list[Command]], None]


class NodeDriver:
    """One node. The cluster starts and kills it; everything else happens on the timeline."""

    def __init__(
        self,
        world: World,
        group: NodeGroup,
        info: PeerInfo,
        settings: NodeSettings,
        node_seed: float,
        held: int,
    ) -> None:
        self.world = world
        self._timeline = world.timeline
        self._checks = world.checks
        self.group = group
        self.info = info
        self.id = info.node_id
        self.zone = info.zone
        self.name = f"node {len(world.drivers) + 1} ({info.address.host})"
        self.settings = settings
        self.node_seed = node_seed
        self.node = Node(settings, info.node_id, random.Random(node_seed))
        links = world.scenario.links
        self.up = Link(f"uplink of {self.name}", links.payload(group.up_bytes_per_s))
        self.down = Link(f"downlink of {self.name}", links.payload(group.down_bytes_per_s))
        self.disk_read = self._disk("read", group.disk_read_bytes_per_s)
        self.disk_write = self._disk("write", group.disk_write_bytes_per_s)
        # Verified chunks in the store, and those that it held at its start.
        self.held = held
        self.held_at_start = held
        # Chunks that it sends wrong, and those whose copy on its disk is wrong too.
        self.corrupts = 0
        self.damaged = 0
        # It took the place of one that died.
        self.is_newcomer = False
        self.is_started = False
        self.is_dead = False
        # Nodes on different islands cannot reach each other.
        self.island = 0
        # A lost machine's connections hang until then.
        self.noticed_at = 0.0
        self.started_at = math.inf
        self.done_at = math.inf
        self.links: dict[NodeId, None] = {}
        self.transfers = Transfers(self)
        self.tracker: TrackerDriver | None = None
        self.watch: Watch | None = None
        self._timer_at = math.inf
        # Frames on the control links: (arrival, number, fact), soonest first.
        self._inbox: list[tuple[float, int, Event]] = []
        self._frame_count = 0
        # The reader looks again then, and not before.
        self._read_at = math.inf
        self._rested_at = 0.0

    def _disk(self, verb: str, bytes_per_s: float) -> Link | None:
        return Link(f"disk {verb} of {self.name}", bytes_per_s) if bytes_per_s < math.inf else None

    @property
    def is_complete(self) -> bool:
        return self.held.bit_count() == len(self.world.lengths)

    @property
    def was_complete(self) -> bool:
        """It had everything at its start."""
        return self.held_at_start.bit_count() == len(self.world.lengths)

    def held_bytes(self) -> int:
        lengths = self.world.lengths
        return sum(lengths[chunk] for chunk in iter_bits(self.held))

    def has_lease(self, chunk: ChunkIndex) -> bool:
        """The tracker has leased it to this node, as far as the node has heard."""
        return self.tracker is not None and self.tracker.has_leased(self.id, chunk)

    # -- life

    def start(self, peers: tuple[PeerInfo, ...], tracker: TrackerDriver | None) -> None:
        """The agent comes up with what its cache holds."""
        world = self.world
        self.is_started = True
        self.started_at = world.timeline.now
        self.tracker = tracker
        if tracker is None:
            self.handle(TrackerLost())
        self.handle(HandoutReceived(VERSION, peers))
        if self.is_complete:
            self.done_at = world.timeline.now
            world.tally.unfinished_count -= 1
        self.handle(VersionAdded(VERSION, world.lengths, self.held))
        world.timeline.after(SAMPLE_S, self._sample)
        if tracker is not None:
            tracker.join(self)

    def leave(self) -> None:
        """SIGTERM: finish what is under way; the cluster takes it away when nothing is."""
        self.handle(LeaveRequested())

    @property
    def is_idle(self) -> bool:
        return self.transfers.is_idle

    def verified(self, chunk: ChunkIndex) -> None:
        """The store has one more chunk."""
        self.held |= 1 << chunk
        if self.done_at == math.inf and self.is_complete:
            self.done_at = self._timeline.now
            self.world.tally.unfinished_count -= 1

    def corrupt(self, chunk_share: float, *, is_on_disk: bool, rng: random.Random) -> None:
        """From now on a part of the chunks leaves this node wrong."""
        count = len(self.world.lengths)
        for chunk in rng.sample(range(count), round(chunk_share * count)):
            self.corrupts |= 1 << chunk
        if is_on_disk:
            self.damaged |= self.corrupts & self.held

    # -- events

    def handle(self, *facts: Event) -> None:
        """A turn of the agent's decider: facts reach the node, and with them what waits on the
        control links; what it orders is carried out at once."""
        if self.is_dead:
            return
        now = self._timeline.now
        inbox = self._inbox
        if inbox and inbox[0][0] <= now:
            turn = list(facts)
            while inbox and inbox[0][0] <= now:
                turn.append(heapq.heappop(inbox)[2])
            facts = tuple(turn)
        commands = self.node.handle(*facts, now=now)
        self._checks.event(self)
        if self.watch is not None:
            self.watch(self, facts, commands)
        for command in commands:
            self._execute(command)
        deadline = self.node.next_deadline()
        if deadline is not None and deadline < self._timer_at:
            self._timer_at = deadline
            self._timeline.at(deadline, self._fire, deadline)

    def hear(self, arrives_at: float, event: Event) -> None:
        """A frame is on its way on a control link. It is read with the next turn, at the latest
        when the agent's reader has rested."""
        self._frame_count += 1
        heapq.heappush(self._inbox, (arrives_at, self._frame_count, event))
        if arrives_at < self._read_at:
            self._read_by(arrives_at)

    def _read_by(self, arrives_at: float) -> None:
        read_at = max(arrives_at, self._rested_at)
        if read_at < self._read_at:
            self._read_at = read_at
            self._timeline.at(read_at, self._read, read_at)

    def _read(self, read_at: float) -> None:
        if self._read_at != read_at or self.is_dead:
            return
        self._read_at = math.inf
        if self._inbox and self._inbox[0][0] <= read_at:
            self._rested_at = read_at + CONTROL_REST_S
            self.handle()
        if self._inbox:
            self._read_by(self._inbox[0][0])

    def soon(self, event: Event) -> None:
        """A local fact, after the one that is being handled."""
        self._timeline.after(0.0, self.handle, event)

    def _fire(self, deadline: float) -> None:
        if self._timer_at == deadline:
            self._timer_at = math.inf
            self.handle(TimerFired())

    def _sample(self) -> None:
        """What the agent reads from the kernel every so often."""
        if self.is_dead:
            return
        received, bytes_in, bytes_out = self.transfers.sample()
        self.handle(ProgressSampled(received, bytes_in, bytes_out))
        self._timeline.after(SAMPLE_S, self._sample)

    # -- commands

    def _execute(self, command: Command) -> None:
        match command:
            case SendHave(peer, version, bits, load):
                self.tell(peer, HavesReceived(self.id, version, bits, load))
            case RequestChunk():
                self.transfers.request(command)
            case StartUpload():
                self.transfers.upload(command)
            case RefuseRequest():
                self.transfers.refuse(command)
            case FetchFromOrigin():
                self.transfers.fetch(command)
            case CancelTransfer(transfer):
                self.transfers.cancel(transfer)
            case SendBitfield(peer, version, bits, load):
                self.tell(peer, BitfieldReceived(self.id, version, bits, load))
            case SendRetract(peer, version, bits):
                self.tell(peer, ChunksRetracted(self.id, version, bits))
            case SendClaim(peer, version, chunk):
                self.tell(peer, ClaimReceived(self.id, version, chunk))
            case SendBadChunk(peer, version, chunk):
                self.tell(peer, BadChunkReported(self.id, version, chunk))
            case ReportLease():
                assert self.tracker is not None
                self.tracker.lease_over(self.id, command)
            case ConnectPeer(peer):
                self._connect(peer)
            case DisconnectPeer(peer):
                self._disconnect(peer)
            case HashAgain():
                self._hash_again(command)
            case ReportUnreachable(peer):
                if self.tracker is not None:
                    self.tracker.unreachable(self.id, peer)
            case EndSession(peer, session):
                self.transfers.data_links.ended(peer, session)
            case _:
                assert_never(command)

    def _hash_again(self, command: HashAgain) -> None:
        bit = 1 << command.chunk
        if self.damaged & bit:
            self.damaged ^= bit
            self.corrupts &= ~bit
            self.held &= ~bit
            self.soon(ChunkDamaged(command.version, command.chunk))

    # -- control links

    def tell(self, peer: NodeId, event: Event) -> None:
        """Send a message to a neighbour; lost if there is no way."""
        if peer in self.links:
            world = self.world
            other = world.drivers[peer]
            if other.island == self.island and not other.is_dead:
                world.tally.message_count += 1
                way_s = world.way_s if other.zone == self.zone else world.zone_way_s
                other.hear(world.timeline.now + way_s, event)

    def send(self, other: NodeDriver, event: Event) -> None:
        """A fact reaches another node half a round trip later."""
        world = self.world
        world.tally.message_count += 1
        world.timeline.after(world.delay_s(self, other), other.handle, event)

    def can_reach(self, other: NodeDriver) -> bool:
        return not other.is_dead and other.island == self.island

    def _connect(self, info: PeerInfo) -> None:
        timeline = self._timeline
        other = self.world.drivers.get(info.node_id)
        if other is None or not self.can_reach(other):
            failed = ConnectFailed(info.node_id, is_unreachable=True)
            timeline.after(DIAL_TIMEOUT_S, self.handle, failed)
        else:
            delay_s = self.world.scenario.links.handshake_s
            if delay_s is None:
                delay_s = 2 * HANDSHAKE_ROUND_TRIPS * self.world.delay_s(self, other)
            timeline.after(delay_s, self._connected, other)

    def _connected(self, other: NodeDriver) -> None:
        """The handshake is over; of two dials between the same nodes one is kept."""
        if self.is_dead or not self.can_reach(other) or other.id in self.links:
            self.soon(ConnectFailed(other.id, is_unreachable=not self.can_reach(other)))
            return
        self.links[other.id] = None
        other.links[self.id] = None
        rtt_s = 2 * self.world.delay_s(self, other)
        for here, there, is_outgoing in ((self, other, True), (other, self, False)):
            nic = int(there.settings.nic_bytes_per_s)
            here.soon(PeerConnected(there.info, nic, is_outgoing=is_outgoing, rtt_s=rtt_s))

    def _disconnect(self, peer: NodeId) -> None:
        other = self.world.drivers[peer]
        if peer in self.links:
            del self.links[peer]
            other.links.pop(self.id, None)
            if self.can_reach(other):
                self.send(other, PeerLost(self.id, is_clean=True))
        self.soon(PeerLost(peer, is_clean=True))

    def lose_link(self, peer: NodeId) -> None:
        """A control link is found to be broken."""
        if self.links.pop(peer, self) is None:
            self.handle(PeerLost(peer, is_clean=False))
