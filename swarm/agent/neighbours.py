"""All control links: dialling, accepting, and one link for each pair.

Links are keyed by node id, so any number of agents may share an address. When two agents dial each
other at once, both keep the link that the smaller node id opened. Two links opened by the same side
mean that it lost the first, and a newer generation means that the peer started anew: then the later
link stays.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping

import trio

from swarm.agent import sockets
from swarm.agent.control_reader import ControlReader
from swarm.agent.frame_stream import FrameStream
from swarm.agent.handshaking import DIAL_FAULTS, HandshakeDesk, HandshakeRejectedError
from swarm.agent.network_settings import NetworkSettings
from swarm.agent.peer_link import PeerLink
from swarm.policy.events import ConnectFailed, Event, PeerConnected, PeerLost
from swarm.protocol.ids import Address, Identity, NodeId, VersionId
from swarm.protocol.messages import Bye, Hello, LinkKind, Message, PeerInfo, Reject, RejectReason
from swarm.store.chunk_store import VersionStore

logger = logging.getLogger(__name__)

DIALS_MAX = 32
"""At once: a handout of dead addresses is through in one connect time-out, and no burst of SYNs
fills a neighbour's queue."""
KNOWN_MAX = 4096
"""Addresses remembered for data links; sessions only run with neighbours, of which there are 48."""
UNSPECIFIED = ("", "0.0.0.0", "::")


class Neighbours:
    """Owned by `PeerNetwork`; every method is called in the trio loop."""

    def __init__(
        self,
        *,
        settings: NetworkSettings,
        desk: HandshakeDesk,
        store_versions: Mapping[VersionId, VersionStore],
        emit: Callable[[Event], None],
        on_peers: Callable[[NodeId, tuple[PeerInfo, ...]], None],
        nursery: trio.Nursery,
    ) -> None:
        self.links: dict[NodeId, PeerLink] = {}
        self.reader = ControlReader()
        self._settings = settings
        self._desk = desk
        self._stores = store_versions
        self._emit = emit
        self._on_peers = on_peers
        self._nursery = nursery
        self._dials = trio.Semaphore(DIALS_MAX)
        # Dials that no event has answered yet.
        self._dialling: dict[NodeId, PeerInfo] = {}
        # Where data links go; outlives the control link, as sessions do.
        self._known: dict[NodeId, PeerInfo] = {}

    def connect(self, peer: PeerInfo) -> None:
        node = peer.node_id
        if node in self.links or node in self._dialling:
            # Its PeerConnected is said, or the dial under way will say how it ends.
            return
        self._dialling[node] = peer
        self._nursery.start_soon(self._dial, peer)

    async def call(self, address: Address) -> None:
        """Dial an address whose agent is not known yet, and serve the link until it ends; raises
        one of `DIAL_FAULTS` if there is none."""
        async with self._dials:
            sock = await sockets.dial(address, self._settings.connect_timeout_s)
        stream = FrameStream(sock)
        try:
            hello, rtt_s = await self._desk.open(stream, LinkKind.CONTROL, None)
            await self._serve(stream, hello, address, is_outgoing=True, rtt_s=rtt_s)
        finally:
            stream.close()

    def disconnect(self, node: NodeId, detail: str) -> None:
        link = self.links.get(node)
        if link is not None:
            link.close(Bye(detail))

    def send(self, node: NodeId, message: Message) -> None:
        """To a neighbour, if it still is one."""
        link = self.links.get(node)
        if link is not None:
            link.send(message)

    def send_frames(self, node: NodeId, frames: tuple[bytes, ...]) -> None:
        """Encoded messages, to a neighbour if it still is one."""
        link = self.links.get(node)
        if link is not None:
            for frame in frames:
                link.send_frame(frame)

    def find(self, node: NodeId) -> PeerInfo | None:
        return self._known.get(node)

    def tick(self, now: float) -> None:
        for link in list(self.links.values()):
            link.tick(now, self._settings.ping_interval_s)

    def say_bye(self, detail: str) -> None:
        for link in list(self.links.values()):
            link.close(Bye(detail))

    async def accept(self, stream: FrameStream, hello: Hello) -> None:
        """Serve a control link that a peer opened."""
        address = hello.address
        if address.host in UNSPECIFIED:
            address = Address(remote_host(stream.sock), address.port)
        await self._serve(stream, hello, address, is_outgoing=False, rtt_s=0.0)

    async def _dial(self, peer: PeerInfo) -> None:
        is_unreachable = True
        try:
            async with self._dials:
                sock = await sockets.dial(peer.address, self._settings.connect_timeout_s)
            stream = FrameStream(sock)
            try:
                expected = Identity(peer.node_id, peer.generation)
                hello, rtt_s = await self._desk.open(stream, LinkKind.CONTROL, expected)
                is_unreachable = False
                await self._serve(stream, hello, peer.address, is_outgoing=True, rtt_s=rtt_s)
            finally:
                stream.close()
        except HandshakeRejectedError as error:
            # Somebody else lives there now: for this peer the address is dead.
            is_unreachable = error.rejection.reason is RejectReason.WRONG_NODE
            logger.info("%s: %s", peer.address, error)
        except DIAL_FAULTS as error:
            logger.debug("link to %s ended: %r", peer.address, error)
        finally:
            if self._dialling.get(peer.node_id) is peer:
                del self._dialling[peer.node_id]
                self._emit(ConnectFailed(peer.node_id, is_unreachable))

    async def _serve(
        self,
        stream: FrameStream,
        hello: Hello,
        address: Address,
        *,
        is_outgoing: bool,
        rtt_s: float,
    ) -> None:
        peer = PeerInfo(hello.node_id, hello.generation, address, hello.zone, hello.rack)
        link = PeerLink(
            stream,
            peer,
            self.reader,
            is_outgoing=is_outgoing,
            emit=self._emit,
            on_peers=self._on_peers,
            version_chunks=self._version_chunks,
        )
        if not self._take_place(link):
            link.close(Reject(RejectReason.DUPLICATE, "another link of this pair is kept"))
            return
        self._remember(peer)
        self._dialling.pop(peer.node_id, None)
        self._emit(PeerConnected(peer, hello.nic_bytes_per_s, is_outgoing, rtt_s))
        try:
            await link.run()
        finally:
            self._leave_place(link)

    def _take_place(self, link: PeerLink) -> bool:
        """Of two links of one pair keep the same one as the peer does."""
        node = link.peer.node_id
        old = self.links.get(node)
        if old is not None:
            if link.peer.generation == old.peer.generation and not self._wins(link, old):
                return False
            old.close(Reject(RejectReason.DUPLICATE, "a newer link of this pair is kept"))
            self._leave_place(old)
        self.links[node] = link
        return True

    def _wins(self, link: PeerLink, old: PeerLink) -> bool:
        if link.is_outgoing == old.is_outgoing:
            # Its opener would not have dialled if it still had the old one.
            return True
        return link.is_outgoing == (self._desk.identity.node_id < link.peer.node_id)

    def _leave_place(self, link: PeerLink) -> None:
        """Say once that a link is gone."""
        node = link.peer.node_id
        if self.links.get(node) is link:
            del self.links[node]
            self._emit(PeerLost(node, link.is_clean))

    def _remember(self, peer: PeerInfo) -> None:
        self._known.pop(peer.node_id, None)
        if len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[peer.node_id] = peer

    def _version_chunks(self, version: VersionId) -> int:
        store = self._stores.get(version)
        return len(store.manifest.lengths) if store is not None else 0


def remote_host(sock: socket.socket) -> str:
    """The other end's address, an IPv4 one without its IPv6 clothes."""
    host: str = sock.getpeername()[0]
    return host.removeprefix("::ffff:")
