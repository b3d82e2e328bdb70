"""The fetching side of a data link: requests go out, headers and payload come in.

One task per link reads; requests are written at once by whoever makes them. Payload goes from the
socket into pooled segments and from there to the link's lane, where a worker thread hashes and
writes it while this task already reads on. Nothing is read past a payload's end, so the next header
stays in the socket.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import trio

from swarm.agent.frame_stream import FrameStream, LinkClosedError
from swarm.agent.network_settings import PAYLOAD_RATE_MIN, NetworkSettings
from swarm.agent.pacing import Pace
from swarm.agent.rate_limit import RateLimit
from swarm.agent.segments import SEGMENT_BYTES, Holder, SegmentPool
from swarm.agent.tcp_info import read_tcp_info
from swarm.agent.transfer import Transfer
from swarm.agent.workers import Workers
from swarm.errors import PeerProtocolError
from swarm.policy.events import FailureReason
from swarm.protocol.codec import encode
from swarm.protocol.ids import ChunkIndex, SessionId, VersionId
from swarm.protocol.messages import Cancel, Chunk, Message, Ping, Refuse, Request
from swarm.protocol.stripes import Stripe

HEADER_READ_BYTES = 256
"""A Chunk header has about 60 bytes; what is read beyond it is copied once."""

RequestKey = tuple[SessionId, VersionId, ChunkIndex]


@dataclass(slots=True, eq=False)
class Outstanding:
    """A request on this link that has not been answered in full."""

    transfer: Transfer
    request: Request
    share: Stripe
    asked_at: float
    is_cancelled: bool = False


@dataclass(slots=True)
class LinkParts:
    """What all data links of an agent share."""

    workers: Workers
    segments: SegmentPool
    downlink: RateLimit
    # (transfer) payload of it begins.
    begun: Callable[[Transfer], None]
    # (transfer) its pre-send point has passed.
    near_end: Callable[[Transfer], None]
    # (transfer, link, failure or None) one stripe has ended.
    stripe_ended: Callable[[Transfer, DataLink, FailureReason | None], None]
    # Payload bytes read.
    count_bytes: Callable[[int], None]


class DataLink:
    """One connection to one peer. Each request given to it ends in one `stripe_ended`."""

    def __init__(self, parts: LinkParts) -> None:
        self.is_closed = False
        self.idle_since: float = trio.current_time()
        self.outstanding: deque[Outstanding] = deque()
        self._parts = parts
        self._lane = parts.workers.lane()
        self._holder = Holder()
        self._stream: FrameStream | None = None
        self._pace = Pace()
        self._lowat = 1
        # Kernel bytes at the last look, and when they last moved.
        self._seen_bytes = 0
        self._moved_at = trio.current_time()
        # Between a Chunk header and the last byte behind it.
        self._payload_is_due = False
        self._payload_began_at = 0.0

    # ---- orders, immediate

    def request(self, transfer: Transfer, stripe: int) -> None:
        """Ask for this link's share of a chunk."""
        order = transfer.order
        stripes = transfer.stripes
        share = Stripe(0, transfer.length, stripe, stripes)
        request = Request(
            order.session, stripe, stripes, order.version, order.chunk, 0, transfer.length
        )
        now = trio.current_time()
        if not self.outstanding:
            self._moved_at = now
        self.outstanding.append(Outstanding(transfer, request, share, now))
        self._send(request)

    def cancel(self, transfer: Transfer) -> None:
        """Give this link's share up: by Cancel before its payload, by closing the link after."""
        for entry in self.outstanding:
            if entry.transfer is transfer and not entry.is_cancelled:
                self._cancel(entry)
                return

    def _cancel(self, entry: Outstanding) -> None:
        request = entry.request
        if self._stream is None:
            self.outstanding.remove(entry)
        elif entry is self.outstanding[0] and self._payload_is_due:
            self.close()
            return
        else:
            # Its place is kept, to recognise a payload that crosses the Cancel.
            entry.is_cancelled = True
            self._send(Cancel(request.session, request.version, request.chunk))
        self._end(entry, FailureReason.CANCELLED)

    def close(self) -> None:
        """Break the connection; the reading task ends what is outstanding."""
        self.is_closed = True
        if self._stream is not None:
            self._stream.close()

    @property
    def has_live_requests(self) -> bool:
        return any(not entry.is_cancelled for entry in self.outstanding)

    # ---- the reading task

    async def run(self, stream: FrameStream, rtt_s: float) -> None:
        """Read until the link ends; raises what ended it, after everything outstanding was ended.
        The owner calls `abandon` if the connection never came about."""
        self._stream = stream
        self._pace.saw_rtt(rtt_s)
        if self.is_closed:
            stream.close()
        try:
            for entry in self.outstanding:
                self._send(entry.request)
            while True:
                self._set_lowat(1)
                await self._handle(await stream.receive(HEADER_READ_BYTES))
        finally:
            self.abandon()

    def abandon(self) -> None:
        """End all that is outstanding; idempotent."""
        self.close()
        while self.outstanding:
            entry = self.outstanding.popleft()
            if not entry.is_cancelled:
                self._end(entry, FailureReason.LOST)

    async def _handle(self, message: Message) -> None:
        match message:
            case Chunk():
                await self._receive_payload(self._expect_payload(message))
            case Refuse():
                self._refused(message)
            case _:
                # A Ping's reply has served its purpose by arriving.
                pass

    def _refused(self, message: Refuse) -> None:
        key = (message.session, message.version, message.chunk)
        for entry in self.outstanding:
            if _key(entry.request) == key:
                self.outstanding.remove(entry)
                if not entry.is_cancelled:
                    entry.transfer.refusal = message.reason
                    entry.transfer.load = message.load
                    self._end(entry, FailureReason.REFUSED)
                self._became_idle()
                return

    def _expect_payload(self, header: Chunk) -> Outstanding:
        """The request that the header answers, moved to the front."""
        key = (header.session, header.version, header.chunk)
        entry = next((each for each in self.outstanding if _key(each.request) == key), None)
        if entry is None:
            raise PeerProtocolError(f"chunk {header.chunk} was not asked for")
        if (header.offset, header.length) != (entry.request.offset, entry.share.payload_bytes):
            raise PeerProtocolError(
                f"chunk {header.chunk}: {header.length} bytes at {header.offset} were not asked for"
            )
        if entry.is_cancelled:
            # Crossed our Cancel. Its bytes are not wanted, and a new link costs less than they do.
            raise LinkClosedError
        place = self.outstanding.index(entry)
        entries = list(self.outstanding)
        # Requests that were cancelled before this one was made will get no answer.
        before = [each for each in entries[:place] if not each.is_cancelled]
        self.outstanding = deque((entry, *before, *entries[place + 1 :]))
        return entry

    async def _receive_payload(self, entry: Outstanding) -> None:
        stream = self._stream
        assert stream is not None
        self._payload_is_due = True
        self._payload_began_at = trio.current_time()
        self._parts.begun(entry.transfer)
        ahead = stream.decoder.take_payload()
        self._count(entry, len(ahead))
        for offset, length in entry.share.units():
            ahead = await self._receive_unit(entry, offset, length, ahead)
        self._payload_is_due = False
        self.outstanding.popleft()
        self._end(entry, None)
        self._became_idle()

    async def _receive_unit(
        self, entry: Outstanding, offset: int, length: int, ahead: bytes
    ) -> bytes:
        """One contiguous unit, segment by segment; `ahead` comes first, its rest is returned."""
        end = offset + length
        incoming, lane = entry.transfer.incoming, self._lane
        while offset < end:
            segment = await self._parts.segments.take(self._holder)
            count = min(SEGMENT_BYTES, end - offset)
            filled = min(len(ahead), count)
            segment[:filled] = ahead[:filled]
            ahead = ahead[filled:]
            try:
                await self._fill(entry, segment, filled, count)
            except BaseException:
                self._parts.segments.give_back(segment, self._holder)
                raise
            lane.submit(self._write_job(incoming.write, offset, segment, count))
            offset += count
        return ahead

    def _write_job(
        self,
        write: Callable[[int, memoryview], None],
        offset: int,
        segment: memoryview,
        count: int,
    ) -> Callable[[], None]:
        def job() -> None:
            write(offset, segment[:count])
            self._parts.segments.give(segment, self._holder)

        return job

    async def _fill(self, entry: Outstanding, segment: memoryview, filled: int, count: int) -> None:
        stream, parts = self._stream, self._parts
        assert stream is not None
        has_waited = False
        while filled < count:
            stop = count
            if parts.downlink.is_limited:
                await parts.downlink.wait()
                stop = min(count, filled + parts.downlink.slice_bytes)
            asked = stop - filled
            try:
                got = stream.sock.recv_into(segment[filled:stop])
            except BlockingIOError:
                got = -1
            if got == 0:
                raise LinkClosedError
            if got > 0:
                filled += got
                stream.consumed_bytes += got
                stream.decoder.payload_received(got)
                self._count(entry, got)
            if got != asked:
                presend = 0 if entry.transfer.is_near_end else self._presend_bytes(entry)
                left = stream.decoder.payload_bytes
                self._set_lowat(self._pace.lowat_bytes(left, presend // entry.request.stripes))
                await stream.wait_readable()
                has_waited = True
        self._pace.saw_payload(
            entry.share.payload_bytes - stream.decoder.payload_bytes,
            trio.current_time() - self._payload_began_at,
        )
        if not has_waited:
            # A sender that is always faster than us must not keep the loop to this link.
            await trio.lowlevel.checkpoint()

    def _count(self, entry: Outstanding, count: int) -> None:
        transfer = entry.transfer
        transfer.received_bytes += count
        self._parts.downlink.take(count)
        self._parts.count_bytes(count)
        if not transfer.is_near_end:
            left = transfer.length - transfer.received_bytes
            if left <= self._presend_bytes(entry):
                transfer.is_near_end = True
                self._parts.near_end(transfer)

    def _presend_bytes(self, entry: Outstanding) -> int:
        return self._pace.presend_bytes(entry.transfer.length, entry.request.stripes)

    def _set_lowat(self, count: int) -> None:
        if count != self._lowat:
            assert self._stream is not None
            self._lowat = count
            self._stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    # ---- progress

    def kernel_bytes(self) -> int:
        """Payload bytes that wait in the kernel for us; 0 before a payload begins."""
        if not self._payload_is_due or self._stream is None or self.is_closed:
            return 0
        waiting = read_tcp_info(self._stream.sock).bytes_received - self._stream.consumed_bytes
        return max(0, min(waiting, self._stream.decoder.payload_bytes))

    def check(self, now: float, settings: NetworkSettings) -> None:
        """The watchdog, about once a second."""
        if self._stream is None or self.is_closed:
            return
        live = next((entry for entry in self.outstanding if not entry.is_cancelled), None)
        if live is None:
            return
        info = read_tcp_info(self._stream.sock)
        self._pace.saw_rtt(info.rtt_s)
        if info.bytes_received != self._seen_bytes:
            self._seen_bytes, self._moved_at = info.bytes_received, now
        silent_s = now - self._moved_at
        if silent_s >= settings.no_progress_s or self._is_hopeless(live, now, settings):
            self.close()
        elif not self._payload_is_due and silent_s >= settings.no_progress_s / 3:
            self._send(Ping(0, is_reply=False))

    def _is_hopeless(self, live: Outstanding, now: float, settings: NetworkSettings) -> bool:
        """The peer is alive, but forgets us in its queue or drips."""
        if not self._payload_is_due:
            return now - live.asked_at >= settings.queue_wait_s
        elapsed = now - self._payload_began_at
        assert self._stream is not None
        received = live.share.payload_bytes - self._stream.decoder.payload_bytes
        return (
            elapsed >= settings.payload_patience_s
            and received + self.kernel_bytes() < PAYLOAD_RATE_MIN * elapsed
        )

    # ---- ends

    def _end(self, entry: Outstanding, failure: FailureReason | None) -> None:
        transfer = entry.transfer
        if transfer.has_begun or entry.request.stripes > 1:
            is_whole = failure is None
            self._lane.submit(lambda: transfer.incoming.end_stripe(is_whole=is_whole))
        self._parts.stripe_ended(transfer, self, failure)

    def _became_idle(self) -> None:
        self.idle_since = trio.current_time()

    def _send(self, message: Message) -> None:
        """Requests are 60 bytes and at most a few are on their way: a full send buffer means a peer
        that has stopped reading."""
        if self._stream is None or self.is_closed:
            return
        frame = encode(message)
        try:
            if self._stream.sock.send(frame) == len(frame):
                return
        except OSError:
            pass
        self.close()


def _key(request: Request) -> RequestKey:
    return (request.session, request.version, request.chunk)
