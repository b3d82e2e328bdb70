"""Payload of one node: what it fetches, what it sends, what it reads from the origin.

A transfer begins with a request on a data link, waits at the source until the source's policy
starts or refuses it, becomes a flow, and ends verified or failed, in exactly one event. A chunk
that has arrived is hashed by one processor, one chunk after the other. A transfer that is cancelled
while its bytes flow costs its data link: what else was asked for on that session is lost with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from simulations.data_links import DataLinks
from simulations.network import Flow
from simulations.processor import Processor
from simulations.world import VERSION
from swarm.capacity.cold_start import ColdStartRecorder
from swarm.policy.commands import FetchFromOrigin, RefuseRequest, RequestChunk, StartUpload
from swarm.policy.events import (
    ChunkRequested,
    ChunkVerified,
    FailureReason,
    RequestCancelled,
    SessionClosed,
    TransferFailed,
    TransferId,
    TransferNearEnd,
    UploadFinished,
)
from swarm.protocol.ids import ChunkIndex, NodeId, SessionId
from swarm.protocol.messages import RefuseReason

if TYPE_CHECKING:
    from simulations.node_driver import NodeDriver

SMALL_CHUNK_BYTES = 512 * 1024
"""Up to here the pre-send point is the arrival of the header."""
PRESEND_BYTES_MIN = 64 * 1024
NO_PROGRESS_S = 5.0
"""The agent's watchdog: a transfer that moves nothing for so long is given up."""


@dataclass(slots=True, eq=False)
class Transfer:
    """A transfer as its fetching side sees it; `source` None is the origin."""

    id: TransferId
    chunk: ChunkIndex
    length: int
    source: NodeDriver | None
    session: SessionId | None
    stripes: int
    flow: Flow | None = None
    # The source's copy was wrong when it began to send; what it repairs later is no matter.
    is_wrong: bool = False
    is_over: bool = False


class Transfers:
    """Owned by its node's driver."""

    def __init__(self, driver: NodeDriver) -> None:
        self._driver = driver
        self._world = driver.world
        self._timeline = driver.world.timeline
        self.live: dict[TransferId, Transfer] = {}
        # The same by what a source knows of them.
        self._asked: dict[tuple[SessionId, ChunkIndex], Transfer] = {}
        # Reads of the origin by the id of the one before them in the same request.
        self._following: dict[TransferId, Transfer] = {}
        # Uploads under way, by fetching node and session.
        self._uploads: dict[tuple[NodeId, SessionId], Transfer] = {}
        self._bytes_in = 0
        self._bytes_out = 0
        self._processor = driver.world.processor or Processor(1)
        self.data_links = DataLinks(driver.world.scenario.links.handshake_s)
        self.wasted_bytes = 0
        # For a trace; None: nobody looks.
        self.recorder: ColdStartRecorder | None = None

    @property
    def _now(self) -> float:
        return self._timeline.now

    @property
    def is_idle(self) -> bool:
        return not self.live and not self._uploads

    def sample(self) -> tuple[tuple[tuple[TransferId, int], ...], int, int]:
        """(transfer, bytes so far) of each, and the totals in and out."""
        now = self._now
        received = tuple(
            (transfer.id, transfer.flow.received(now) if transfer.flow else 0)
            for transfer in self.live.values()
        )
        bytes_in = self._bytes_in + sum(count for _, count in received)
        live_out = sum(t.flow.received(now) for t in self._uploads.values() if t.flow)
        return received, bytes_in, self._bytes_out + live_out

    def progress(self) -> dict[ChunkIndex, int]:
        """Bytes received of each chunk that is on its way."""
        now = self._now
        return {
            transfer.chunk: transfer.flow.received(now)
            for transfer in self.live.values()
            if transfer.flow is not None
        }

    # -- fetching from peers

    def request(self, command: RequestChunk) -> None:
        driver = self._driver
        source = self._world.drivers[command.peer]
        transfer = Transfer(
            command.transfer,
            command.chunk,
            self._world.lengths[command.chunk],
            source,
            command.session,
            command.stripes,
        )
        self.live[transfer.id] = transfer
        self._asked[command.session, command.chunk] = transfer
        if driver.can_reach(source):
            event = ChunkRequested(
                driver.id, command.session, command.version, command.chunk, driver.zone
            )
            wait_s = self.data_links.wait_s(command.peer, command.session)
            if wait_s:
                self._timeline.after(wait_s, self._send_request, transfer, event)
            else:
                driver.send(source, event)
        else:
            noticed_at = max(source.noticed_at, driver.noticed_at)
            wait_s = min(max(noticed_at - self._now, 0.0), NO_PROGRESS_S)
            self._timeline.after(wait_s, self.fail, transfer, FailureReason.LOST)

    def _send_request(self, transfer: Transfer, event: ChunkRequested) -> None:
        if not transfer.is_over and transfer.source is not None:
            self._driver.send(transfer.source, event)

    def upload(self, command: StartUpload) -> None:
        """Send what a peer asked for, if it still wants it."""
        driver, world = self._driver, self._world
        fetching = world.drivers[command.peer]
        transfer = fetching.transfers._asked.get((command.session, command.chunk))
        if transfer is None or not driver.can_reach(fetching):
            driver.soon(SessionClosed(command.peer, command.session))
            return
        world.checks.served(driver, command.chunk, world.timeline.now)
        length = transfer.length
        transfer.is_wrong = bool(driver.corrupts >> command.chunk & 1)
        is_on_disk = bool(driver.held_at_start >> command.chunk & 1)
        cap = driver.group.flow_cap_bytes_per_s
        if command.pace_bytes_per_s:
            cap = min(cap, command.pace_bytes_per_s / transfer.stripes)
        transfer.flow = Flow(
            world.path(driver, fetching, is_on_disk=is_on_disk),
            length,
            partial(self._sent, fetching, transfer),
            weight=transfer.stripes * world.draw_weight(),
            cap_per_connection=cap,
            near_end=partial(driver.send, fetching, TransferNearEnd(transfer.id)),
            near_end_bytes=length if length <= SMALL_CHUNK_BYTES else self._presend_bytes(fetching),
            remaining=length,
        )
        self._uploads[command.peer, command.session] = transfer
        gap_s = world.scenario.links.gap_s
        if gap_s:
            self._timeline.after(gap_s, self._start_upload, transfer, fetching)
        else:
            self._start_upload(transfer, fetching)

    def _start_upload(self, transfer: Transfer, fetching: NodeDriver) -> None:
        """The first byte leaves, unless the upload ended before it began."""
        driver = self._driver
        flow, session = transfer.flow, transfer.session
        assert session is not None
        is_on = self._uploads.get((fetching.id, session)) is transfer
        if transfer.is_over or flow is None or not is_on or not driver.can_reach(fetching):
            return
        self._world.network.start(flow)
        if fetching.transfers.recorder is not None:
            at = self._now + self._world.delay_s(driver, fetching)
            fetching.transfers.recorder.begun(transfer.id, at)

    def _presend_bytes(self, fetching: NodeDriver) -> float:
        """Two round trips at a usual rate of one session."""
        share = fetching.down.bytes_per_s / fetching.settings.session_count
        return max(4 * self._world.delay_s(self._driver, fetching) * share, PRESEND_BYTES_MIN)

    def _sent(self, fetching: NodeDriver, transfer: Transfer) -> None:
        driver, tally = self._driver, self._world.tally
        assert transfer.session is not None
        length = transfer.length
        self._bytes_out += length
        tally.peer_bytes += length
        if driver.info.zone != fetching.info.zone:
            tally.cross_zone_bytes += length
        if driver.info.rack != fetching.info.rack:
            tally.cross_rack_bytes += length
        self._uploads.pop((fetching.id, transfer.session), None)
        driver.handle(UploadFinished(fetching.id, transfer.session, transfer.chunk, length))
        delay_s = self._world.delay_s(driver, fetching)
        self._timeline.after(delay_s, fetching.transfers.arrive, transfer)

    def refuse(self, command: RefuseRequest) -> None:
        driver, world = self._driver, self._world
        if command.reason is not RefuseReason.YIELDED:
            world.tally.refusal_count += 1
        fetching = world.drivers[command.peer]
        transfer = fetching.transfers._asked.get((command.session, command.chunk))
        if transfer is not None and driver.can_reach(fetching):
            world.timeline.after(
                world.delay_s(driver, fetching),
                fetching.transfers.fail,
                transfer,
                FailureReason.REFUSED,
                command.reason,
                command.load,
            )

    # -- reading the origin

    def fetch(self, command: FetchFromOrigin) -> None:
        driver, world = self._driver, self._world
        assert world.origin is not None, "a node without an origin reads none"
        world.checks.origin_read(driver, command.chunk, world.timeline.now)
        length = world.lengths[command.chunk]
        transfer = Transfer(command.transfer, command.chunk, length, None, None, 1)
        self.live[transfer.id] = transfer
        if command.after in self.live:
            # The same request goes on with it.
            self._following[command.after] = transfer
            return
        answer = world.origin.ask(command.connections, world.timeline.now)
        if answer.is_throttled:
            after_s = world.origin.shape.retry_after_s
            world.timeline.after(
                answer.wait_s,
                partial(self.fail, transfer, FailureReason.THROTTLED, retry_after_s=after_s),
            )
        elif answer.is_hung:
            world.timeline.after(NO_PROGRESS_S, self.fail, transfer, FailureReason.LOST)
        else:
            world.timeline.after(answer.wait_s, self._first_byte, transfer, command.connections)

    def _first_byte(self, transfer: Transfer, connections: int) -> None:
        driver, origin = self._driver, self._world.origin
        if transfer.is_over or driver.is_dead:
            return
        assert origin is not None
        links = [origin.link, driver.down]
        if driver.disk_write is not None:
            links.append(driver.disk_write)
        transfer.flow = Flow(
            tuple(links),
            transfer.length,
            partial(self._fetched, transfer),
            weight=connections,
            cap_per_connection=origin.connection_bytes_per_s,
        )
        origin.flows[transfer.flow] = None
        self._world.network.start(transfer.flow)
        if self.recorder is not None:
            self.recorder.begun(transfer.id, self._now)

    def _fetched(self, transfer: Transfer) -> None:
        origin = self._world.origin
        assert origin is not None
        assert transfer.flow is not None
        origin.sent_bytes += transfer.length
        origin.flows.pop(transfer.flow, None)
        self._timeline.after(origin.shape.rtt_s / 2, self.arrive, transfer)
        following = self._following.pop(transfer.id, None)
        if following is not None:
            self._first_byte(following, 1)

    # -- ends

    def arrive(self, transfer: Transfer) -> None:
        """The last byte is here: hash it, behind what waits already."""
        if self.recorder is not None:
            self.recorder.received(transfer.id, self._now)
        cost = self._world.scenario.chunk_cost
        cost_s = cost.per_chunk_s + transfer.length / cost.bytes_per_s
        if not cost_s:
            self._hashed(transfer)
            return
        done_at = self._processor.take(self._now, cost_s)
        self._timeline.at(done_at, self._hashed, transfer)

    def _hashed(self, transfer: Transfer) -> None:
        driver = self._driver
        if transfer.is_over or driver.is_dead:
            return
        if transfer.is_wrong:
            self.fail(transfer, FailureReason.CORRUPT)
            return
        self._forget(transfer)
        self._world.tally.transfer_count += 1
        driver.verified(transfer.chunk)
        driver.handle(ChunkVerified(VERSION, transfer.chunk, transfer.id))

    def cancel(self, transfer_id: TransferId) -> None:
        """The node gives a transfer up."""
        transfer = self.live.get(transfer_id)
        if transfer is None:
            return
        source, session = transfer.source, transfer.session
        if source is not None and session is not None:
            self._withdraw(transfer, source, session)
        self.fail(transfer, FailureReason.CANCELLED)

    def _withdraw(self, transfer: Transfer, source: NodeDriver, session: SessionId) -> None:
        driver = self._driver
        if transfer.flow is None:
            if driver.can_reach(source):
                driver.send(source, RequestCancelled(driver.id, session, transfer.chunk))
            return
        # The link closes, and what else was asked for on it is lost.
        self.data_links.broken(session)
        source.transfers.upload_over(driver.id, session)
        if driver.can_reach(source):
            driver.send(source, SessionClosed(driver.id, session))
        for other in [t for t in self.live.values() if t.session == session]:
            if other is not transfer:
                self.fail(other, FailureReason.LOST)

    def upload_over(self, reader: NodeId, session: SessionId) -> None:
        """A reader closed its data links; what it got of the chunk counts as sent."""
        transfer = self._uploads.pop((reader, session), None)
        if transfer is not None and transfer.flow is not None:
            self._bytes_out += transfer.flow.received(self._now)

    def fail(
        self,
        transfer: Transfer,
        reason: FailureReason,
        refusal: RefuseReason = RefuseReason.OTHER,
        load: int = 0,
        retry_after_s: float | None = None,
    ) -> None:
        """It is over without a chunk; what came of it is wasted."""
        if transfer.is_over:
            return
        self._forget(transfer)
        self._driver.soon(TransferFailed(transfer.id, reason, refusal, load, retry_after_s))
        following = self._following.pop(transfer.id, None)
        if following is not None:
            self.fail(following, FailureReason.CANCELLED)

    def lose_source(self, source: NodeDriver) -> None:
        """Data links to a node are found to be broken."""
        for transfer in [t for t in self.live.values() if t.source is source]:
            self.fail(transfer, FailureReason.LOST)

    def lose_reader(self, reader: NodeId) -> None:
        """The same, at the sending side: its uploads to that node are over."""
        for key in [key for key in self._uploads if key[0] == reader]:
            self.upload_over(*key)
            self._driver.soon(SessionClosed(*key))

    def freeze(self, peer: NodeDriver) -> None:
        """No byte between the two passes any more, and neither knows."""
        for transfer in self.live.values():
            if transfer.source is peer and transfer.flow is not None:
                self._world.network.stop(transfer.flow)

    def stop(self) -> None:
        """The machine is gone."""
        for transfer in list(self.live.values()):
            self._forget(transfer)
        for transfer in self._uploads.values():
            if transfer.flow is not None:
                self._world.network.stop(transfer.flow)
        self._uploads.clear()

    def _forget(self, transfer: Transfer) -> None:
        transfer.is_over = True
        self.live.pop(transfer.id, None)
        if transfer.session is not None:
            self._asked.pop((transfer.session, transfer.chunk), None)
        flow = transfer.flow
        if flow is None:
            return
        was_live = flow.is_live
        self._world.network.stop(flow)
        passed = flow.received(self._now)
        self._bytes_in += passed
        if was_live:
            self.wasted_bytes += passed
            if transfer.source is None:
                assert self._world.origin is not None
                self._world.origin.sent_bytes += passed
                self._world.origin.flows.pop(flow, None)
