"""The agent: one policy machine, the shells that act for it, and their supervisor.

Everything that happens becomes an event in one queue (`decider`); the node answers with commands,
and `_execute` hands each to the shell that can carry it out. Shells never choose a chunk or a peer.

One chunk's walk: the tracker names peers or grants a lease (`tracker_session`), the node picks
(`RequestChunk`), `peer_network` receives into the store, `ChunkVerified` comes back through the
queue; from there the node announces it, the ledger counts it and the next report carries it."""

from __future__ import annotations

import logging
import random
from typing import assert_never

import trio

from swarm.agent.accounting import Ledger, Source, Transfer
from swarm.agent.channel_follower import ChannelFollower
from swarm.agent.decider import Decider
from swarm.agent.handshaking import DIAL_FAULTS
from swarm.agent.held_version import HeldVersion
from swarm.agent.manifest_sources import manifest_sources
from swarm.agent.origin_client import OriginClient
from swarm.agent.origin_fetches import OriginFetches
from swarm.agent.origin_health import OriginHealth
from swarm.agent.peer_manifests import PeerManifests
from swarm.agent.peer_network import PeerNetwork
from swarm.agent.rate_limit import RateLimit
from swarm.agent.report_facts import ReportFacts
from swarm.agent.settings import AgentSettings, network_settings, node_settings
from swarm.agent.shelf import Shelf
from swarm.agent.tracker_client import TrackerClient
from swarm.agent.tracker_session import TrackerSession
from swarm.agent.version_names import VersionNames
from swarm.errors import SwarmError
from swarm.policy import commands as order
from swarm.policy import events as fact
from swarm.policy.node import Node
from swarm.protocol.ids import Address, ChunkIndex, Identity, NodeId, VersionId
from swarm.protocol.manifest import MANIFEST_BYTES_MAX
from swarm.protocol.messages import DocumentKind, PeerInfo
from swarm.protocol.tracker_api import ListenReply
from swarm.store.channels import ChannelLinks
from swarm.store.chunk_store import ChunkStore

logger = logging.getLogger(__name__)

SAMPLE_INTERVAL_S = 0.2
"""Between two looks at the bytes of live transfers: a slow source may be cut after 250 ms at the
earliest, and the NIC estimate averages over 500 ms."""

SEED_RETRY_S = 5.0
"""Between two calls of a `--peer` that does not answer: half of what its own restart takes."""


class Agent:
    """One agent over one store. `run` never returns on its own; cancel it, or `leave` first."""

    def __init__(
        self,
        settings: AgentSettings,
        store: ChunkStore,
        identity: Identity,
        *,
        links: ChannelLinks | None,
        origin: OriginClient | None,
        tracker: TrackerClient | None,
        downlink: RateLimit,
    ) -> None:
        """`downlink` is the limit that `origin` spends from too."""
        self.settings = settings
        self.identity = identity
        self.ledger = Ledger()
        # What reads of the origin showed of it.
        self.origin_health = OriginHealth()
        self.names = VersionNames(tracker, rng=random.Random())
        self.follower = ChannelFollower(
            settings.channels, is_ready=lambda version: self.shelf.is_ready(version)
        )
        self.session: TrackerSession | None = None
        # References asked for that name no version yet, with the reason.
        self.unresolved: dict[str, str] = {}
        # Where channels are swapped; None where no directory can show a version (memory).
        self._links = links
        self._swapping = trio.Lock()
        self._origin = origin
        self._tracker = tracker
        self._nursery: trio.Nursery | None = None
        self._neighbours: dict[NodeId, PeerInfo] = {}
        self._peer_manifests = PeerManifests(
            self._manifest_of, seed_count=len(settings.peers), rng=random.Random()
        )
        self._node = Node(
            node_settings(settings, has_origin=origin is not None, has_tracker=tracker is not None),
            identity.node_id,
            # Its own: with the shells' draws in between a story could not be replayed from a seed.
            random.Random(),
        )
        self.decider = Decider(self._node, self._listen, self._observe, self._execute)
        self.shelf = Shelf(
            store,
            sources=manifest_sources(tracker, self._peer_manifests, origin, self.origin_health),
            on_open=self._opened,
            on_ready=self._is_ready,
            on_lost=self._lost,
        )
        self.network = PeerNetwork(
            identity=identity,
            key=settings.cluster_key or bytes(32),
            settings=network_settings(settings),
            store_versions=self.shelf.stores,
            emit=self.decider.emit,
            documents=self._document,
            problem=self._version_problem,
            on_peers=self._peers_named,
            downlink=downlink,
        )
        self.fetches = self._new_fetches(origin) if origin is not None else None
        self.facts = ReportFacts(self.shelf, self.follower, self.ledger, self.fetches, self._node)

    def _new_fetches(self, origin: OriginClient) -> OriginFetches:
        return OriginFetches(
            origin,
            self.shelf.held,
            health=self.origin_health,
            emit=self.decider.emit,
            on_problem=self._version_problem,
        )

    # ---- life

    async def run(
        self, *, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until cancelled; the started value is the address that peers connect to."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            bound = await nursery.start(self.network.run)
            nursery.start_soon(self.decider.run)
            nursery.start_soon(self._sample_forever)
            if self._origin is not None:
                nursery.start_soon(self._origin.prepare)
            if self._tracker is not None:
                self.session = self._open_session(self._tracker, bound)
                nursery.start_soon(self.session.report_forever)
                nursery.start_soon(self.session.listen_forever)
            else:
                self.decider.emit(fact.TrackerLost())
            for seed in self.settings.peers:
                nursery.start_soon(self._call_seed, seed)
            task_status.started(bound)

    async def leave(self) -> None:
        """Say Bye to everyone and let chunks in flight end, for at most `leave_grace_s`."""
        self.decider.emit(fact.LeaveRequested())
        with trio.move_on_after(self.settings.leave_grace_s):
            if self.session is not None:
                with trio.move_on_after(1.0):
                    try:
                        await self.session.report_once(is_leaving=True)
                    except SwarmError as error:
                        logger.info("the tracker did not hear our Bye: %s", error.message)
            await self.network.close(self.settings.leave_grace_s)

    async def close(self) -> None:
        """After `run` ended: close the versions, so that the next start trusts them."""
        with trio.CancelScope(shield=True):
            await self.shelf.close()

    @property
    def neighbour_count(self) -> int:
        return len(self._neighbours)

    def want(self, version: VersionId) -> None:
        """Fetch and serve this version from now on."""
        assert self._nursery is not None, "the agent does not run"
        if self.shelf.want(version, self._nursery):
            self._nursery.start_soon(self.names.learn, version)
            if self.session is not None:
                self.session.subscriptions_changed()

    # ---- what happened: the shell's own notes, before the node decides

    def _listen(self) -> None:
        self.network.listen()

    def _observe(self, event: fact.Event) -> None:
        match event:
            case fact.ChunkVerified():
                self._chunk_verified(event)
            case fact.TransferFailed():
                self._transfer_failed(event)
            case fact.ProgressSampled():
                for transfer, received_bytes in event.received:
                    self.ledger.sampled(transfer, received_bytes)
            case fact.PeerConnected():
                self._peer_connected(event.peer)
            case fact.PeerLost():
                self._neighbours.pop(event.peer, None)
            case fact.HandoutReceived():
                self._peer_manifests.learn(event.peers)
            case fact.UploadFinished():
                self.ledger.sent_bytes += event.sent_bytes
            case _:
                pass

    def _transfer_failed(self, event: fact.TransferFailed) -> None:
        what = self.ledger.live.get(event.transfer)
        if what is not None and event.reason is fact.FailureReason.CORRUPT:
            held = self.shelf.held[what.version]
            self.ledger.sampled(event.transfer, held.manifest.lengths[what.chunk])
        self.ledger.failed(event.transfer)

    def _chunk_verified(self, event: fact.ChunkVerified) -> None:
        assert self._nursery is not None
        now = trio.current_time()
        held = self.shelf.held.get(event.version)
        length = held.manifest.lengths[event.chunk] if held is not None else 0
        if self.shelf.chunk_verified(event.version, event.chunk, self._nursery) is not None:
            self.ledger.verified(event.transfer, event.version, event.chunk, length, now)
        elif event.transfer is not None:
            self.ledger.duplicate(event.transfer, length)

    def _peer_connected(self, peer: PeerInfo) -> None:
        """Without a tracker neighbours learn of each other through us."""
        if self.session is None or self.session.is_lost:
            self.network.send_peers(peer.node_id, tuple(self._neighbours.values()))
            for node in self._neighbours:
                self.network.send_peers(node, (peer,))
        self._neighbours[peer.node_id] = peer
        self._peer_manifests.learn((peer,))

    def _peers_named(self, _: NodeId, peers: tuple[PeerInfo, ...]) -> None:
        for version in self.shelf.wanted:
            self.decider.emit(fact.HandoutReceived(version, peers))

    async def _call_seed(self, address: Address) -> None:
        """Keep a link to an agent that was named by address alone; it may start after us."""
        while True:
            try:
                await self.network.call(address)
            except DIAL_FAULTS as error:
                logger.info("peer %s: %s", address, error)
            await trio.sleep(SEED_RETRY_S)

    def _opened(self, held: HeldVersion) -> None:
        lengths = held.manifest.lengths
        local_bytes = sum(length for chunk, length in enumerate(lengths) if held.bits >> chunk & 1)
        self.ledger.open(
            held.version,
            total_bytes=held.manifest.unique_bytes,
            local_bytes=local_bytes,
            now=trio.current_time(),
        )
        self.decider.emit(fact.VersionAdded(held.version, lengths, held.bits))
        if not held.is_ready:
            self.follower.withdrawn(held.version)
        if self.session is not None:
            self.session.poke()

    def _is_ready(self, held: HeldVersion) -> None:
        assert self._nursery is not None
        account = self.ledger.accounts[held.version]
        account.ready_at = trio.current_time()
        self._nursery.start_soon(self._swap_channels)
        if self.session is not None:
            self.session.poke()

    async def _swap_channels(self) -> None:
        """One at a time: several causes may come together, and each finds what is still due."""
        async with self._swapping:
            for channel, version, revision in self.follower.due():
                try:
                    if self._links is not None:
                        await trio.to_thread.run_sync(self._links.point, channel, version)
                except SwarmError as error:
                    logger.error("channel %s: %s", channel, error.message)
                    self.shelf.problems[version] = error
                else:
                    self.follower.swapped(channel, version, revision)
        if self.session is not None:
            self.session.poke()

    def _version_problem(self, version: VersionId, error: SwarmError) -> None:
        self.shelf.problems[version] = error

    # ---- what to do

    def _execute(self, command: order.Command) -> None:
        assert self._nursery is not None
        match command:
            case order.RequestChunk():
                self.ledger.began(command.transfer, self._peer_transfer(command))
                self.network.execute(command)
            case order.FetchFromOrigin():
                assert self.fetches is not None, "the node was told that there is no origin"
                url = self.settings.origin
                self.ledger.began(
                    command.transfer,
                    Transfer(command.version, command.chunk, Source.ORIGIN, url),
                )
                self.fetches.start(command, self._nursery)
            case order.CancelTransfer():
                if self.fetches is None or not self.fetches.cancel(command.transfer):
                    self.network.execute(command)
            case order.ReportLease():
                self.facts.lease_ended(command.version, command.lease)
                if self.session is not None:
                    self.session.lease_ended(command)
            case order.ReportUnreachable():
                if self.session is not None:
                    self.session.unreachable(command.peer)
            case order.HashAgain():
                self._nursery.start_soon(self.shelf.hash_again, command.version, command.chunk)
            case (
                order.ConnectPeer()
                | order.DisconnectPeer()
                | order.SendBitfield()
                | order.SendHave()
                | order.SendRetract()
                | order.SendClaim()
                | order.SendBadChunk()
                | order.EndSession()
                | order.StartUpload()
                | order.RefuseRequest()
            ):
                self.network.execute(command)
            case _:
                assert_never(command)

    def _peer_transfer(self, command: order.RequestChunk) -> Transfer:
        peer = command.source or self._neighbours.get(command.peer)
        is_near = peer is None or peer.zone == self.settings.zone
        source = Source.PEER_SAME_ZONE if is_near else Source.PEER_OTHER_ZONE
        sender = str(peer.address) if peer is not None else command.peer.hex()
        return Transfer(command.version, command.chunk, source, sender)

    def _lost(self, held: HeldVersion, lost: tuple[ChunkIndex, ...]) -> None:
        for chunk in lost:
            length = held.manifest.lengths[chunk]
            self.ledger.lost(held.version, chunk, length, trio.current_time())
            self.decider.emit(fact.ChunkDamaged(held.version, chunk))
        if not held.is_ready:
            self.follower.withdrawn(held.version)
        if self.session is not None:
            self.session.poke()

    async def _sample_forever(self) -> None:
        moved = (0, 0)
        while True:
            await trio.sleep(SAMPLE_INTERVAL_S)
            received = list(self.network.sample())
            if self.fetches is not None:
                received.extend(self.fetches.received.items())
            before, moved = moved, (self.network.bytes_in, self.network.bytes_out)
            if received or moved != before:
                self.decider.emit(fact.ProgressSampled(tuple(received), *moved))

    # ---- the tracker

    def _open_session(self, client: TrackerClient, bound: Address) -> TrackerSession:
        return TrackerSession(
            client,
            self.facts,
            address=self.settings.advertise or bound,
            zone=self.settings.zone,
            rack=self.settings.rack,
            on_reply=self._tracker_said,
            on_lost=lambda: self.decider.emit(fact.TrackerLost()),
            on_regained=lambda: self.decider.emit(fact.TrackerRegained()),
            rng=random.Random(),
        )

    def _tracker_said(self, reply: ListenReply) -> None:
        assert self._nursery is not None
        for state in reply.versions:
            self.decider.emit(fact.HandoutReceived(state.version, state.handout))
            self.decider.emit(fact.ModeReceived(state.version, state.mode))
            self.decider.emit(fact.LeasesReceived(state.version, state.leases, state.is_zoned))
            self.facts.leases_received(state.version, state.leases)
        has_changed = False
        for target in reply.channels:
            has_changed |= self.follower.aim(target)
        if has_changed:
            for version in self.follower.wanted():
                self.want(version)
            self._nursery.start_soon(self._swap_channels)

    # ---- documents and settings

    def _document(self, version: VersionId, kind: DocumentKind) -> bytes | None:
        held = self.shelf.held.get(version)
        return held.manifest_bytes if held is not None and kind is DocumentKind.MANIFEST else None

    async def _manifest_of(self, peer: PeerInfo, version: VersionId) -> bytes:
        return await self.network.fetch_document(
            peer, version, DocumentKind.MANIFEST, limit_bytes=MANIFEST_BYTES_MAX
        )
