"""The fetching side of all sessions: which data links a session uses, and how its transfers end.

Each `RequestChunk` ends in one `ChunkVerified` or `TransferFailed`, by construction: every stripe
of a transfer ends once on its link (`data_link`), the last end lets the worker side conclude
(`incoming_chunk`), and its verdict comes back here. A transfer that never saw a payload byte has no
worker side and ends at once.

A session's links go to an idle pool when it ends, and from there to the next session with that
peer."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping

import trio

from swarm.agent import sockets
from swarm.agent.data_link import DataLink, LinkParts
from swarm.agent.frame_stream import FrameStream
from swarm.agent.handshaking import DIAL_FAULTS, HandshakeDesk
from swarm.agent.incoming_chunk import IncomingChunk, Verdict
from swarm.agent.network_settings import NetworkSettings
from swarm.agent.rate_limit import RateLimit
from swarm.agent.segments import SegmentPool
from swarm.agent.tracing import TransferWatcher
from swarm.agent.transfer import Transfer
from swarm.agent.workers import Workers
from swarm.errors import SwarmError
from swarm.policy.commands import CancelTransfer, EndSession, RequestChunk
from swarm.policy.events import (
    ChunkVerified,
    Event,
    FailureReason,
    TransferFailed,
    TransferId,
    TransferNearEnd,
)
from swarm.protocol.ids import Identity, NodeId, SessionId, VersionId
from swarm.protocol.messages import LinkKind, PeerInfo
from swarm.protocol.stripes import useful_stripes
from swarm.store.chunk_store import VersionStore

logger = logging.getLogger(__name__)

SessionKey = tuple[NodeId, SessionId]


class Fetching:
    """Owned by `PeerNetwork`; every method is called in the trio loop."""

    def __init__(
        self,
        *,
        settings: NetworkSettings,
        desk: HandshakeDesk,
        workers: Workers,
        store_versions: Mapping[VersionId, VersionStore],
        find_peer: Callable[[NodeId], PeerInfo | None],
        emit: Callable[[Event], None],
        problem: Callable[[VersionId, SwarmError], None],
        nursery: trio.Nursery,
        downlink: RateLimit,
        watcher: TransferWatcher | None,
    ) -> None:
        self.bytes_in = 0
        self._watcher = watcher
        self._settings = settings
        self._desk = desk
        self._workers = workers
        self._stores = store_versions
        self._find_peer = find_peer
        self._emit = emit
        self._problem = problem
        self._nursery = nursery
        self._transfers: dict[TransferId, Transfer] = {}
        self._sessions: dict[SessionKey, list[DataLink]] = {}
        self._idle: dict[NodeId, list[DataLink]] = {}
        # A dict keeps their order of age.
        self._links: dict[DataLink, None] = {}
        self._parts = LinkParts(
            workers,
            SegmentPool(settings.segments_max, workers),
            downlink,
            begun=self._begun,
            near_end=lambda transfer: emit(TransferNearEnd(transfer.order.transfer)),
            stripe_ended=self._stripe_ended,
            count_bytes=self._count_bytes,
        )

    # ---- orders

    def request(self, order: RequestChunk) -> None:
        store = self._stores.get(order.version)
        peer = order.source or self._find_peer(order.peer)
        if store is None or peer is None:
            reason = FailureReason.CANCELLED if store is None else FailureReason.LOST
            self._emit(TransferFailed(order.transfer, reason))
            return
        length = store.manifest.lengths[order.chunk]
        stripes = useful_stripes(length, order.stripes)
        links = self._session_links(peer, order.session, stripes)
        transfer = self._transfers[order.transfer] = Transfer(
            order, length, self._incoming(order, store, stripes), stripes, list(links)
        )
        for stripe, link in enumerate(links):
            link.request(transfer, stripe)

    def end_session(self, order: EndSession) -> None:
        for link in self._sessions.pop((order.peer, order.session), []):
            if not link.is_closed:
                self._idle.setdefault(order.peer, []).append(link)

    def cancel(self, order: CancelTransfer) -> None:
        transfer = self._transfers.get(order.transfer)
        if transfer is not None:
            transfer.fail(FailureReason.CANCELLED)
            for link in list(transfer.links):
                link.cancel(transfer)

    # ---- progress

    @property
    def is_busy(self) -> bool:
        return bool(self._transfers)

    @property
    def link_count(self) -> int:
        return len(self._links)

    def sample(self) -> tuple[tuple[TransferId, int], ...]:
        """Payload bytes received by each live transfer, those that wait in the kernel included."""
        return tuple(
            (
                transfer.order.transfer,
                transfer.received_bytes + sum(link.kernel_bytes() for link in transfer.links),
            )
            for transfer in self._transfers.values()
        )

    def tick(self, now: float) -> None:
        """About once a second: watchdogs and idle links."""
        settings = self._settings
        for link in list(self._links):
            link.check(now, settings)
            if not link.has_live_requests and now - link.idle_since >= settings.data_link_idle_s:
                link.close()

    # ---- links

    def _session_links(self, peer: PeerInfo, session: SessionId, count: int) -> list[DataLink]:
        key = (peer.node_id, session)
        links = [link for link in self._sessions.get(key, []) if not link.is_closed]
        while len(links) < count:
            links.append(self._take_link(peer))
        self._sessions[key] = links
        return links[:count]

    def _take_link(self, peer: PeerInfo) -> DataLink:
        idle = self._idle.get(peer.node_id, [])
        for link in idle:
            if not link.is_closed and not link.has_live_requests:
                idle.remove(link)
                return link
        link = DataLink(self._parts)
        self._links[link] = None
        self._nursery.start_soon(self._run_link, link, peer)
        return link

    async def _run_link(self, link: DataLink, peer: PeerInfo) -> None:
        try:
            stream = FrameStream(await sockets.dial(peer.address, self._settings.connect_timeout_s))
            try:
                if self._settings.downlink_bytes_per_s:
                    sockets.limit_receive_buffer(stream.sock)
                expected = Identity(peer.node_id, peer.generation)
                _, rtt_s = await self._desk.open(stream, LinkKind.DATA, expected)
                await link.run(stream, rtt_s)
            finally:
                stream.close()
        except DIAL_FAULTS as error:
            logger.debug("data link to %s ended: %r", peer.address, error)
        finally:
            link.abandon()
            self._forget(link, peer.node_id)

    def _forget(self, link: DataLink, peer: NodeId) -> None:
        del self._links[link]
        idle = self._idle.get(peer, [])
        if link in idle:
            idle.remove(link)
        if not idle:
            self._idle.pop(peer, None)

    def _begun(self, transfer: Transfer) -> None:
        if self._watcher is not None and not transfer.has_begun:
            self._watcher.begun(transfer.order.transfer)
        transfer.has_begun = True

    # ---- ends

    def _incoming(self, order: RequestChunk, store: VersionStore, stripes: int) -> IncomingChunk:
        def report(verdict: Verdict) -> None:
            self._workers.call_soon(functools.partial(self._finish, order.transfer, verdict))

        return IncomingChunk(store, order.chunk, stripes, report)

    def _stripe_ended(
        self, transfer: Transfer, link: DataLink, failure: FailureReason | None
    ) -> None:
        transfer.links.remove(link)
        if failure is None:
            if self._watcher is not None and not transfer.links:
                self._watcher.received(transfer.order.transfer)
            return
        transfer.fail(failure)
        for other in list(transfer.links):
            other.cancel(transfer)
        if transfer.stripes == 1 and not transfer.has_begun:
            self._finish(transfer.order.transfer, Verdict(FailureReason.LOST))

    def _finish(self, transfer_id: TransferId, verdict: Verdict) -> None:
        transfer = self._transfers.pop(transfer_id)
        order = transfer.order
        if verdict.failure is None:
            self._emit(ChunkVerified(order.version, order.chunk, transfer_id))
            return
        reason = verdict.failure
        if reason is FailureReason.LOST and transfer.failure is not None:
            reason = transfer.failure
        if reason is FailureReason.LOCAL and verdict.error is not None:
            self._problem(order.version, verdict.error)
        self._emit(TransferFailed(transfer_id, reason, transfer.refusal, transfer.load))

    def _count_bytes(self, count: int) -> None:
        self.bytes_in += count
