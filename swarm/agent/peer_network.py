"""Everything between this agent and its peers: the interpreter of policy's peer commands.

`execute` is immediate: it writes to sockets what can be written and leaves the rest to link tasks.
Every outcome comes back as an event through `emit`. Inside, each noun has its own file: `listener`
and `neighbours` own the control links (`peer_link`), `fetching` the data links we opened
(`data_link`), `serving_uploads` those that peers opened (`upload_link`), `workers` and `segments`
the threads and the memory that payload passes through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

import trio

from swarm.agent import sockets
from swarm.agent.fetching import Fetching
from swarm.agent.frame_stream import FrameStream
from swarm.agent.handshaking import DIAL_FAULTS, HandshakeDesk
from swarm.agent.listener import Listener
from swarm.agent.neighbours import Neighbours
from swarm.agent.network_settings import NetworkSettings
from swarm.agent.peer_documents import read_document
from swarm.agent.rate_limit import RateLimit
from swarm.agent.serving_uploads import Documents, ServingUploads
from swarm.agent.tracing import TransferWatcher
from swarm.agent.upload_link import UploadLink
from swarm.agent.workers import Workers
from swarm.errors import SwarmError, TrackerError
from swarm.policy import commands as order
from swarm.policy.events import ChunkVerified, Event, TransferId
from swarm.protocol.chunk_set import iter_bits
from swarm.protocol.codec import encode
from swarm.protocol.frames import PEERS_MAX
from swarm.protocol.ids import Address, ChunkIndex, Identity, NodeId, VersionId
from swarm.protocol.messages import (
    BadChunk,
    Bitfield,
    Claim,
    DocumentKind,
    Have,
    Hello,
    LinkKind,
    PeerInfo,
    Peers,
    Retract,
)
from swarm.store.chunk_store import VersionStore

CHUNKS_PER_FRAME_MAX = 1 << 16
"""Longer announcements are cut; 256 KiB a frame."""
CLOSE_POLL_S = 0.02

PeerCommand = (
    order.ConnectPeer | order.DisconnectPeer | order.SendBitfield | order.SendHave
    | order.SendRetract | order.SendClaim | order.SendBadChunk | order.RequestChunk
    | order.EndSession | order.CancelTransfer | order.StartUpload | order.RefuseRequest
)  # fmt: skip
"""The commands that concern peers."""


def _ignore_problem(_: VersionId, __: SwarmError) -> None:
    return


def _ignore_peers(_: NodeId, __: tuple[PeerInfo, ...]) -> None:
    return


class PeerNetwork:
    """One per agent. All methods are called in the trio loop; `execute` and `sample` only while
    `run` runs (before and after, commands have nobody to go to and are dropped)."""

    def __init__(
        self,
        identity: Identity,
        key: bytes,
        settings: NetworkSettings,
        store_versions: Mapping[VersionId, VersionStore],
        emit: Callable[[Event], None],
        documents: Documents,
        *,
        problem: Callable[[VersionId, SwarmError], None] = _ignore_problem,
        on_peers: Callable[[NodeId, tuple[PeerInfo, ...]], None] = _ignore_peers,
        downlink: RateLimit | None = None,
    ) -> None:
        """`problem` hears of faults of the local store, `on_peers` of agents that a neighbour
        names. `downlink` is the limit that is shared with other receivers; None: nobody else
        receives."""
        self.identity = identity
        self.desk = HandshakeDesk(identity, key, settings)
        self._settings = settings
        self._stores = store_versions
        self._agent_emit = emit
        self._documents = documents
        self._problem = problem
        self._on_peers = on_peers
        self._downlink = downlink or RateLimit(settings.downlink_bytes_per_s)
        # Told when payload of a transfer begins and ends; set it before `run`.
        self.watcher: TransferWatcher | None = None
        self._running: _Running | None = None
        # The announcement made last, and its frames.
        self._last_batch: tuple[VersionId, int, int] | None = None
        self._last_frames: tuple[bytes, ...] = ()
        # Kept when `run` ends.
        self._bytes_in = 0
        self._bytes_out = 0

    # ---- life

    async def run(
        self, *, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Until cancelled or closed; the started value is the bound address. Raises OSError if
        the address cannot be bound."""
        sock = sockets.listen(self._settings.listen)
        host, port = sock.getsockname()[:2]
        bound = Address(host, port)
        self.desk.address = self._settings.advertise or bound
        workers = Workers(self._settings.worker_count, trio.lowlevel.current_trio_token())
        try:
            async with trio.open_nursery() as nursery:
                running = self._running = self._start(workers, nursery)
                nursery.start_soon(running.listener.run, sock, nursery)
                nursery.start_soon(running.neighbours.reader.run)
                nursery.start_soon(self._tick_forever, running)
                task_status.started(bound)
        finally:
            # Transfers that the workers conclude now have nobody left to hear of them.
            self._running = None
            await workers.close()

    async def close(self, grace_s: float) -> None:
        """Say Bye, let chunks in flight end for at most `grace_s`, then end `run`."""
        running = self._running
        if running is None:
            return
        running.listener.is_leaving = True
        running.neighbours.say_bye("this agent is shutting down")
        with trio.move_on_after(grace_s):
            while running.fetching.is_busy or running.uploads.is_busy:  # noqa: ASYNC110
                # Ends once in an agent's life; an event would have to be set on every chunk.
                await trio.sleep(CLOSE_POLL_S)
        running.nursery.cancel_scope.cancel()

    def _start(self, workers: Workers, nursery: trio.Nursery) -> _Running:
        fetching = Fetching(
            settings=self._settings,
            desk=self.desk,
            workers=workers,
            store_versions=self._stores,
            find_peer=lambda node: neighbours.find(node),
            emit=self._emit,
            problem=self._problem,
            nursery=nursery,
            downlink=self._downlink,
            watcher=self.watcher,
        )
        neighbours = Neighbours(
            settings=self._settings,
            desk=self.desk,
            store_versions=self._stores,
            emit=self._emit,
            on_peers=self._on_peers,
            nursery=nursery,
        )
        uploads = ServingUploads(
            store_versions=self._stores,
            documents=self._documents,
            emit=self._emit,
            problem=self._problem,
            uplink=RateLimit(self._settings.uplink_bytes_per_s),
        )
        return _Running(fetching, neighbours, uploads, Listener(self.desk, self._serve), nursery)

    async def _tick_forever(self, running: _Running) -> None:
        while True:
            await trio.sleep(self._settings.tick_s)
            now = trio.current_time()
            running.fetching.tick(now)
            running.neighbours.tick(now)
            running.uploads.tick(now, self._settings)

    async def _serve(self, stream: FrameStream, hello: Hello) -> None:
        """An accepted link, from the end of its handshake to its own."""
        running = self._running
        assert running is not None
        if hello.kind is LinkKind.CONTROL:
            await running.neighbours.accept(stream, hello)
            return
        link = UploadLink(hello.node_id, hello.zone, stream, running.uploads.parts)
        running.uploads.link_opened(link)
        try:
            await link.run()
        finally:
            running.uploads.link_gone(link)

    def _emit(self, event: Event) -> None:
        if self._running is None:
            return
        if isinstance(event, ChunkVerified):
            self._running.uploads.written(event.version, event.chunk)
        self._agent_emit(event)

    def listen(self) -> None:
        """Emit what neighbours have said by now."""
        if self._running is not None:
            self._running.neighbours.reader.read()

    # ---- commands

    def execute(self, command: PeerCommand) -> None:
        running = self._running
        if running is None:
            return
        match command:
            case order.SendHave():
                self._announce(running, command)
            case order.RequestChunk():
                running.fetching.request(command)
            case order.StartUpload():
                running.uploads.start(command)
            case order.RefuseRequest():
                running.uploads.refuse(command)
            case order.EndSession():
                running.fetching.end_session(command)
            case order.CancelTransfer():
                running.fetching.cancel(command)
            case order.ConnectPeer(peer):
                running.neighbours.connect(peer)
            case order.DisconnectPeer(node, detail):
                running.neighbours.disconnect(node, detail)
            case order.SendBitfield():
                self._send_bitfield(running, command)
            case order.SendRetract(node, version, bits):
                for chunks in _chunk_lists(bits):
                    running.neighbours.send(node, Retract(version, chunks))
            case order.SendClaim(node, version, chunk):
                running.neighbours.send(node, Claim(version, chunk))
            case order.SendBadChunk(node, version, chunk):
                running.neighbours.send(node, BadChunk(version, chunk))
            case _:
                assert_never(command)

    async def call(self, address: Address) -> None:
        """Dial an agent by its address alone (a seed), and serve the link until it ends; raises
        one of `DIAL_FAULTS` if nobody of this cluster answers."""
        assert self._running is not None, "the network does not run"
        await self._running.neighbours.call(address)

    def send_peers(self, node: NodeId, peers: tuple[PeerInfo, ...]) -> None:
        """Name agents to a neighbour (peer exchange)."""
        if self._running is not None:
            self._running.neighbours.send(node, Peers(peers[:PEERS_MAX]))

    def _announce(self, running: _Running, command: order.SendHave) -> None:
        """Neighbours mostly get the same batch one after another, so the last one is kept."""
        batch = (command.version, command.bits, command.load)
        if batch != self._last_batch:
            self._last_batch = batch
            self._last_frames = tuple(
                encode(Have(command.version, chunks, command.load))
                for chunks in _chunk_lists(command.bits)
            )
        running.neighbours.send_frames(command.peer, self._last_frames)

    def _send_bitfield(self, running: _Running, command: order.SendBitfield) -> None:
        store = self._stores.get(command.version)
        if store is None:
            return
        count = len(store.manifest.lengths)
        bits = command.bits.to_bytes((count + 7) // 8, "little")
        running.neighbours.send(command.peer, Bitfield(command.version, count, bits, command.load))

    # ---- measures

    @property
    def bytes_in(self) -> int:
        """Payload bytes read since the start."""
        if self._running is not None:
            self._bytes_in = self._running.fetching.bytes_in
        return self._bytes_in

    @property
    def bytes_out(self) -> int:
        """Payload bytes handed to the kernel since the start."""
        if self._running is not None:
            self._bytes_out = self._running.uploads.bytes_out
        return self._bytes_out

    def sample(self) -> tuple[tuple[TransferId, int], ...]:
        """(transfer, payload bytes received so far) of each live transfer, by the kernel's
        count."""
        return self._running.fetching.sample() if self._running is not None else ()

    def open_links(self) -> tuple[int, int, int]:
        """Control links, data links that we opened, data links that peers opened."""
        running = self._running
        if running is None:
            return 0, 0, 0
        return (
            len(running.neighbours.links),
            running.fetching.link_count,
            running.uploads.link_count,
        )

    # ---- documents

    async def fetch_document(
        self, peer: PeerInfo, version: VersionId, kind: DocumentKind, *, limit_bytes: int
    ) -> bytes:
        """A version's manifest or locations from a peer, page by page, over a link of its own.

        Raises NotFoundError if the peer does not hold it or would send more than `limit_bytes`,
        TrackerError if it cannot be reached or breaks the protocol: another source may do."""
        try:
            stream = FrameStream(await sockets.dial(peer.address, self._settings.connect_timeout_s))
            try:
                expected = Identity(peer.node_id, peer.generation)
                await self.desk.open(stream, LinkKind.DATA, expected)
                return await read_document(stream, version, kind, limit_bytes)
            finally:
                stream.close()
        except DIAL_FAULTS as error:
            raise TrackerError(
                f"peer {peer.address} did not give a document: {error!r}",
                object_name=str(peer.address),
                is_retryable=True,
            ) from error


@dataclass(frozen=True, slots=True)
class _Running:
    """What exists while `run` runs."""

    fetching: Fetching
    neighbours: Neighbours
    uploads: ServingUploads
    listener: Listener
    nursery: trio.Nursery


def _chunk_lists(bits: int) -> Iterator[tuple[ChunkIndex, ...]]:
    """The chunks of a bit set, as many to a list as fit a frame."""
    chunks = tuple(iter_bits(bits))
    for start in range(0, len(chunks), CHUNKS_PER_FRAME_MAX):
        yield chunks[start : start + CHUNKS_PER_FRAME_MAX]
