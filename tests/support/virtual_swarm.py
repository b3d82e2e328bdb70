"""A whole swarm in virtual time: real `Node`s, a virtual network, origin and tracker.

The interpreter of the command list beside the agent: it executes what nodes order and tells them
what happened, with latency, shared bandwidth and faults, and nothing else. All chance comes from
one seed, so a run repeats exactly. `Outcome` gives times as ratios of the bound
T* = max(F/o, F/nic) and the copies read from the origin.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import assert_never

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
    SendHave,
    SendRetract,
    StartUpload,
)
from swarm.policy.events import (
    BadChunkReported,
    BitfieldReceived,
    ChunkDamaged,
    ChunkRequested,
    ChunksRetracted,
    ChunkVerified,
    ConnectFailed,
    Event,
    FailureReason,
    HandoutReceived,
    HavesReceived,
    PeerConnected,
    PeerLost,
    ProgressSampled,
    RequestCancelled,
    SessionClosed,
    TimerFired,
    TrackerLost,
    TrackerRegained,
    TransferFailed,
    TransferId,
    TransferNearEnd,
    UploadFinished,
    VersionAdded,
)
from swarm.policy.node import Node
from swarm.policy.settings import NodeSettings
from swarm.protocol.ids import Address, ChunkIndex, NodeId, SessionId, VersionId
from swarm.protocol.messages import PeerInfo, RefuseReason
from tests.support.virtual_network import Clock, Flow, Network, Port
from tests.support.virtual_tracker import VirtualTracker

VERSION = VersionId(bytes(32))
PROGRESS_S = 0.2
"""The agent samples every 0.1–0.25 s."""
DIAL_TIMEOUT_S = 2.0
SMALL_CHUNK_BYTES = 512 * 1024
"""Up to here the pre-send point is the arrival of the header."""
NEAR_END_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Scenario:
    """A swarm that boots at once; faults are ordered on the `VirtualSwarm` itself."""

    node_count: int
    chunk_count: int
    chunk_bytes: int = 256 * 1024
    nic_bytes_per_s: float = 8e6
    # Total rate of the origin, in NICs, and the cap of one connection.
    origin_nics: float = 1.0
    connection_bytes_per_s: float = math.inf
    first_byte_s: float = 0.0
    rtt_s: float = 0.001
    # Hashing and writing, per chunk.
    process_s: float = 0.0
    has_tracker: bool = True
    settings: NodeSettings = field(default_factory=NodeSettings)
    seed: int = 1
    # The first so many nodes hold everything at the start.
    seed_nodes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.chunk_count * self.chunk_bytes

    @property
    def bound_s(self) -> float:
        slowest = min(self.origin_nics, 1.0) if not self.seed_nodes else 1.0
        return self.total_bytes / (self.nic_bytes_per_s * slowest)


@dataclass(slots=True, eq=False)
class VirtualTransfer:
    """A transfer as the fetching side sees it."""

    id: TransferId
    chunk: ChunkIndex
    source: VirtualNode | None
    session: SessionId | None
    flow: Flow | None = None
    is_over: bool = False


@dataclass(slots=True, eq=False)
class VirtualNode:
    """One node with its NIC; what its agent would keep."""

    info: PeerInfo
    node: Node
    node_seed: float
    up: Port
    down: Port
    network: Network
    held: int = 0
    is_dead: bool = False
    done_at: float = math.inf
    timer_at: float = math.inf
    transfers: dict[TransferId, VirtualTransfer] = field(default_factory=dict)
    links: dict[NodeId, None] = field(default_factory=dict)
    # Uploads under way, by fetching node and session.
    uploads: dict[tuple[NodeId, SessionId], VirtualTransfer] = field(default_factory=dict)
    bytes_in: int = 0
    bytes_out: int = 0
    # Chunks that it sends wrong, and those whose copy on its disk is wrong too.
    corrupts: int = 0
    damaged: int = 0

    @property
    def id(self) -> NodeId:
        return self.info.node_id

    def origin_progress(self) -> dict[ChunkIndex, int]:
        return {
            transfer.chunk: self.network.received(transfer.flow)
            for transfer in self.transfers.values()
            if transfer.source is None and transfer.flow is not None
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to."""

    # (done − joined) / T*, of the nodes that finished, ascending.
    ratios: tuple[float, ...]
    unfinished_count: int
    origin_copies: float
    messages: int
    refusals: int

    @property
    def last_ratio(self) -> float:
        return self.ratios[-1] if self.ratios and not self.unfinished_count else math.inf


class VirtualSwarm:
    """The interpreter. Add nodes with `boot`, order faults through `clock`, then `run`."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.clock = Clock()
        self.network = Network(self.clock)
        self.rng = random.Random(scenario.seed)
        self.nodes: dict[NodeId, VirtualNode] = {}
        self.joined_at: dict[NodeId, float] = {}
        self.origin = Port(scenario.origin_nics * scenario.nic_bytes_per_s)
        self.origin_bytes = 0
        self.message_count = 0
        self.refusal_count = 0
        # What each node is told before it starts, as a list of peers on its command line.
        self.peer_list: tuple[PeerInfo, ...] = ()
        # Called for each event that a node handles; checkers hang here.
        self.watch: Callable[[VirtualNode, Event, list[Command]], None] | None = None
        self.tracker = VirtualTracker(
            self.clock,
            lambda node, event: self.tell(self.nodes[node], event),
            VERSION,
            scenario.chunk_count,
            scenario.chunk_bytes,
            rtt_s=scenario.rtt_s,
            seed=scenario.seed + 1,
        )
        for index in range(scenario.node_count):
            is_seed = index < scenario.seed_nodes
            self.boot(held=(1 << scenario.chunk_count) - 1 if is_seed else 0)
        if not scenario.has_tracker:
            self.peer_list = tuple(member.info for member in self.nodes.values())

    # -- life and death

    def boot(self, *, held: int = 0, nic_factor: float = 1.0, delay_s: float = 0.0) -> VirtualNode:
        scenario = self.scenario
        index = len(self.nodes)
        node_id = NodeId(self.rng.randbytes(16))
        info = PeerInfo(node_id, 1, Address(f"10.0.{index // 250}.{index % 250 + 1}", 7000))
        nic = scenario.nic_bytes_per_s * nic_factor
        node_seed = self.rng.random()
        node = Node(scenario.settings, node_id, random.Random(node_seed))
        member = VirtualNode(info, node, node_seed, Port(nic), Port(nic), self.network, held)
        self.nodes[node_id] = member
        self.clock.after(delay_s, partial(self._start, member))
        return member

    def _start(self, member: VirtualNode) -> None:
        self.joined_at[member.id] = self.clock.now
        scenario = self.scenario
        self.handle(member, HandoutReceived(VERSION, self.peer_list))
        lengths = (scenario.chunk_bytes,) * scenario.chunk_count
        if member.held == (1 << scenario.chunk_count) - 1:
            member.done_at = self.clock.now
        self.handle(member, VersionAdded(VERSION, lengths, member.held))
        self.clock.after(PROGRESS_S, partial(self._sample, member))
        if scenario.has_tracker:
            self.tracker.join(member)

    def kill(self, member: VirtualNode) -> None:
        """The machine is gone: links break, transfers are lost, the tracker finds out later."""
        member.is_dead = True
        for transfer in list(member.transfers.values()):
            self._stop(transfer)
        for other in self.nodes.values():
            for transfer in [t for t in other.transfers.values() if t.source is member]:
                self._fail(other, transfer, FailureReason.LOST)
            if other.links.pop(member.id, member) is None:
                self.tell(other, PeerLost(member.id, is_clean=False))
        for fetching_id, session in list(member.uploads):
            del member.uploads[fetching_id, session]

    def lose_tracker(self, duration_s: float) -> None:
        """The tracker dies, and another that knows nothing takes its place."""
        self.tracker.is_down = True
        for member in self.nodes.values():
            self.tell(member, TrackerLost())
        self.clock.after(duration_s, self._regain_tracker)

    def _regain_tracker(self) -> None:
        self.tracker.restart()
        for member in self.nodes.values():
            self.tell(member, TrackerRegained())

    # -- running

    def run(self, until_s: float) -> Outcome:
        """Until every living node is complete, or `until_s`."""
        while not self._is_done() and self.clock.step(until_s):
            pass
        return self.outcome()

    def _is_done(self) -> bool:
        return self._unfinished == 0 and len(self.joined_at) == len(self.nodes)

    @property
    def _unfinished(self) -> int:
        return sum(node.done_at == math.inf and not node.is_dead for node in self.nodes.values())

    def outcome(self) -> Outcome:
        ratios = sorted(
            (node.done_at - self.joined_at[node.id]) / self.scenario.bound_s
            for node in self.nodes.values()
            if node.done_at < math.inf
        )
        return Outcome(
            tuple(ratios),
            self._unfinished,
            self.origin_bytes / self.scenario.total_bytes,
            self.message_count,
            self.refusal_count,
        )

    def tell(self, member: VirtualNode, event: Event) -> None:
        """A message that arrives half a round trip later."""
        self.message_count += 1
        self.clock.after(self.scenario.rtt_s / 2, partial(self.handle, member, event))

    def soon(self, member: VirtualNode, event: Event) -> None:
        """A local event, after the one that is being handled."""
        self.clock.after(0.0, partial(self.handle, member, event))

    def handle(self, member: VirtualNode, event: Event) -> None:
        if member.is_dead:
            return
        commands = member.node.handle(event, now=self.clock.now)
        if self.watch is not None:
            self.watch(member, event, commands)
        for command in commands:
            self._execute(member, command)
        deadline = member.node.next_deadline()
        if deadline is not None and deadline < member.timer_at:
            member.timer_at = deadline
            self.clock.at(deadline, partial(self._fire, member, deadline))

    def _fire(self, member: VirtualNode, deadline: float) -> None:
        if member.timer_at == deadline:
            member.timer_at = math.inf
            self.handle(member, TimerFired())

    def _sample(self, member: VirtualNode) -> None:
        """What the agent reads from the kernel every so often."""
        if member.is_dead:
            return
        received = []
        live_in = live_out = 0
        for transfer in member.transfers.values():
            count = self.network.received(transfer.flow) if transfer.flow else 0
            live_in += count
            received.append((transfer.id, count))
        for transfer in member.uploads.values():
            live_out += self.network.received(transfer.flow) if transfer.flow else 0
        bytes_in, bytes_out = member.bytes_in + live_in, member.bytes_out + live_out
        self.handle(member, ProgressSampled(tuple(received), bytes_in, bytes_out))
        self.clock.after(PROGRESS_S, partial(self._sample, member))

    # -- commands

    def _execute(self, member: VirtualNode, command: Command) -> None:
        match command:
            case SendHave(peer, version, bits, load):
                self._send(member, peer, HavesReceived(member.id, version, bits, load))
            case SendBitfield(peer, version, bits, load):
                self._send(member, peer, BitfieldReceived(member.id, version, bits, load))
            case SendRetract(peer, version, bits):
                self._send(member, peer, ChunksRetracted(member.id, version, bits))
            case SendBadChunk(peer, version, chunk):
                self._send(member, peer, BadChunkReported(member.id, version, chunk))
            case RequestChunk():
                self._request(member, command)
            case StartUpload():
                self._upload(member, command)
            case RefuseRequest():
                self._refuse(member, command)
            case FetchFromOrigin():
                self._fetch(member, command)
            case CancelTransfer(transfer):
                self._cancel(member, member.transfers.get(transfer))
            case ReportLease():
                self.tracker.lease_over(member.id, command)
            case ConnectPeer(peer):
                self._connect(member, peer)
            case DisconnectPeer(peer):
                self._disconnect(member, peer)
            case HashAgain(version, chunk):
                if member.damaged >> chunk & 1:
                    member.damaged ^= 1 << chunk
                    member.corrupts &= ~(1 << chunk)
                    member.held &= ~(1 << chunk)
                    self.soon(member, ChunkDamaged(version, chunk))
            case ReportUnreachable(peer):
                if self.scenario.has_tracker:
                    self.tracker.unreachable(member.id, peer)
            case EndSession():
                pass
            case _:
                assert_never(command)

    def _send(self, member: VirtualNode, peer: NodeId, event: Event) -> None:
        if peer in member.links:
            self.tell(self.nodes[peer], event)

    def _connect(self, member: VirtualNode, info: PeerInfo) -> None:
        peer = self.nodes.get(info.node_id)
        if peer is None or peer.is_dead:
            failed = ConnectFailed(info.node_id, is_unreachable=True)
            self.clock.after(DIAL_TIMEOUT_S, partial(self.handle, member, failed))
        else:
            self.clock.after(1.5 * self.scenario.rtt_s, partial(self._connected, member, peer))

    def _connected(self, member: VirtualNode, peer: VirtualNode) -> None:
        if peer.is_dead or member.is_dead or peer.id in member.links:
            self.soon(member, ConnectFailed(peer.id, is_unreachable=peer.is_dead))
            return
        member.links[peer.id] = None
        peer.links[member.id] = None
        nic, rtt_s = 0, self.scenario.rtt_s
        self.soon(member, PeerConnected(peer.info, nic, is_outgoing=True, rtt_s=rtt_s))
        self.soon(peer, PeerConnected(member.info, nic, is_outgoing=False, rtt_s=rtt_s))

    def _disconnect(self, member: VirtualNode, peer: NodeId) -> None:
        if peer in member.links:
            del member.links[peer]
            del self.nodes[peer].links[member.id]
            self.tell(self.nodes[peer], PeerLost(member.id, is_clean=True))
        self.soon(member, PeerLost(peer, is_clean=True))

    def _request(self, member: VirtualNode, command: RequestChunk) -> None:
        source = self.nodes[command.peer]
        transfer = VirtualTransfer(command.transfer, command.chunk, source, command.session)
        member.transfers[transfer.id] = transfer
        if source.is_dead:
            self._fail(member, transfer, FailureReason.LOST)
            return
        event = ChunkRequested(member.id, command.session, command.version, command.chunk)
        self.tell(source, event)

    def _asked(self, peer: NodeId, session: SessionId, chunk: ChunkIndex) -> VirtualTransfer | None:
        """The live transfer that a request belongs to; None if it was given up meanwhile."""
        for transfer in self.nodes[peer].transfers.values():
            if transfer.session == session and transfer.chunk == chunk:
                return transfer
        return None

    def _upload(self, member: VirtualNode, command: StartUpload) -> None:
        transfer = self._asked(command.peer, command.session, command.chunk)
        if transfer is None:
            self.soon(member, SessionClosed(command.peer, command.session))
            return
        scenario = self.scenario
        fetching = self.nodes[command.peer]
        is_small = scenario.chunk_bytes <= SMALL_CHUNK_BYTES
        share = scenario.nic_bytes_per_s / scenario.settings.session_count
        transfer.flow = Flow(
            member.up,
            fetching.down,
            scenario.chunk_bytes,
            math.inf,
            is_origin=False,
            done=partial(self._sent, member, fetching, transfer),
            near_end=partial(self.tell, fetching, TransferNearEnd(transfer.id)),
            near_end_bytes=scenario.chunk_bytes
            if is_small
            else max(2 * scenario.rtt_s * share, NEAR_END_BYTES),
        )
        member.uploads[command.peer, command.session] = transfer
        self.network.start(transfer.flow)

    def _sent(self, member: VirtualNode, fetching: VirtualNode, transfer: VirtualTransfer) -> None:
        assert transfer.session is not None
        length = self.scenario.chunk_bytes
        member.bytes_out += length
        member.uploads.pop((fetching.id, transfer.session), None)
        finished = UploadFinished(fetching.id, transfer.session, transfer.chunk, length)
        self.handle(member, finished)
        delay_s = self.scenario.rtt_s / 2 + self.scenario.process_s
        self.clock.after(delay_s, partial(self._arrived, fetching, transfer))

    def _arrived(self, member: VirtualNode, transfer: VirtualTransfer) -> None:
        if transfer.is_over or member.is_dead:
            return
        source = transfer.source
        if source is not None and source.corrupts >> transfer.chunk & 1:
            self._fail(member, transfer, FailureReason.CORRUPT)
            return
        self._finish(member, transfer)
        member.bytes_in += self.scenario.chunk_bytes
        member.held |= 1 << transfer.chunk
        if member.held.bit_count() == self.scenario.chunk_count:
            member.done_at = min(member.done_at, self.clock.now)
        self.handle(member, ChunkVerified(VERSION, transfer.chunk, transfer.id))

    def _fetch(self, member: VirtualNode, command: FetchFromOrigin) -> None:
        transfer = VirtualTransfer(command.transfer, command.chunk, None, None)
        member.transfers[transfer.id] = transfer
        cap = self.scenario.connection_bytes_per_s * command.connections
        transfer.flow = Flow(
            self.origin,
            member.down,
            self.scenario.chunk_bytes,
            cap,
            is_origin=True,
            done=partial(self._fetched, member, transfer),
            near_end=None,
            near_end_bytes=0.0,
            remaining=self.scenario.chunk_bytes,
        )
        delay_s = self.scenario.rtt_s + self.scenario.first_byte_s
        self.clock.after(delay_s, partial(self._first_byte, transfer))

    def _first_byte(self, transfer: VirtualTransfer) -> None:
        if not transfer.is_over and transfer.flow is not None:
            self.network.start(transfer.flow)

    def _fetched(self, member: VirtualNode, transfer: VirtualTransfer) -> None:
        self.origin_bytes += self.scenario.chunk_bytes
        delay_s = self.scenario.rtt_s / 2 + self.scenario.process_s
        self.clock.after(delay_s, partial(self._arrived, member, transfer))

    def _refuse(self, member: VirtualNode, command: RefuseRequest) -> None:
        if command.reason is not RefuseReason.YIELDED:
            self.refusal_count += 1
        transfer = self._asked(command.peer, command.session, command.chunk)
        if transfer is not None:
            failed = partial(
                self._fail,
                self.nodes[command.peer],
                transfer,
                FailureReason.REFUSED,
                command.reason,
                command.load,
            )
            self.clock.after(self.scenario.rtt_s / 2, failed)

    def _cancel(self, member: VirtualNode, transfer: VirtualTransfer | None) -> None:
        if transfer is None:
            return
        source, session = transfer.source, transfer.session
        if source is not None and session is not None:
            if transfer.flow is None:
                self.tell(source, RequestCancelled(member.id, session, transfer.chunk))
            else:
                # The link closes, and what else was asked for on it is lost.
                source.uploads.pop((member.id, session), None)
                self.tell(source, SessionClosed(member.id, session))
                for other in list(member.transfers.values()):
                    if other.session == session and other is not transfer:
                        self._fail(member, other, FailureReason.LOST)
        elif transfer.flow is not None:
            self.origin_bytes += self.network.received(transfer.flow)
        self._fail(member, transfer, FailureReason.CANCELLED)

    def _fail(
        self,
        member: VirtualNode,
        transfer: VirtualTransfer,
        reason: FailureReason,
        refusal: RefuseReason = RefuseReason.OTHER,
        load: int = 0,
    ) -> None:
        if transfer.is_over:
            return
        self._finish(member, transfer)
        self.soon(member, TransferFailed(transfer.id, reason, refusal, load))

    def _finish(self, member: VirtualNode, transfer: VirtualTransfer) -> None:
        member.transfers.pop(transfer.id, None)
        self._stop(transfer)

    def _stop(self, transfer: VirtualTransfer) -> None:
        transfer.is_over = True
        if transfer.flow is not None:
            self.network.stop(transfer.flow)
