"""The serving side of a data link: requests come in, payload goes out by sendfile.

Two tasks: one reads requests, so that policy hears of a pre-sent one while the current chunk still
goes out; one sends whenever the kernel takes more. What can go out at once goes out at once, in the
call that orders it, without waking any task: a small chunk costs its system calls and nothing else.

"Sent" means nearly on the wire, because policy gives slots by it: a chunk's bytes go to the kernel
as fast as it takes them, and its end is told when no more of them wait unsent than keep the link
busy while policy answers. Told earlier, a slow link would hold megabytes for peers that think they
are being served; handing over in small portions instead would cost a wake-up for each.

Frames and payloads leave in the order they were given; a payload is never interrupted. Before each
slice the page cache is asked whether it has the bytes; if not, a worker thread reads them first, so
that a slow disk never stops the loop.
"""

from __future__ import annotations

import enum
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

import trio

from swarm.agent import sockets
from swarm.agent.frame_stream import LINK_FAULTS, FrameStream, LinkClosedError, run_until_fault
from swarm.agent.network_settings import PAYLOAD_RATE_MIN, NetworkSettings
from swarm.agent.outgoing_part import SLICE_BYTES, OutgoingPart
from swarm.agent.rate_limit import RateLimit
from swarm.agent.tcp_info import read_tcp_info
from swarm.errors import NotFoundError, PeerProtocolError, StoreError, SwarmError
from swarm.protocol.codec import encode
from swarm.protocol.ids import NodeId, VersionId
from swarm.protocol.messages import (
    Cancel,
    DocumentRequest,
    Message,
    Ping,
    Refuse,
    RefuseReason,
    Request,
)

REQUESTS_MAX = 4
"""Unanswered requests on one link: the current, the pre-sent, and two that crossed a refusal or a
cancellation."""
UNSENT_FRAMES_MAX = 64
"""Pings and pages asked for without reading the answers."""
TURN_BYTES = 4 << 20
"""A receiver that is always faster than us must not keep the loop to this link."""
UNSENT_BYTES_MIN = 64 * 1024
UNSENT_BYTES_MAX = 4 << 20
UNSENT_S = 0.02
"""Unsent bytes worth this much of the link's rate keep it busy while the loop is elsewhere."""
NO_LOWAT = 1 << 30
"""TCP_NOTSENT_LOWAT: take what the send buffer takes."""


class _Pause(enum.Enum):
    """Why sending does not go on at once."""

    IDLE = enum.auto()
    # The kernel takes no more now.
    FULL = enum.auto()
    # The next bytes are on the disk.
    COLD = enum.auto()
    # Over the uplink limit.
    LIMITED = enum.auto()
    # Others are due.
    TURN = enum.auto()


@dataclass(slots=True, eq=False)
class PendingPart:
    """A request that is to be served on this link."""

    request: Request
    # Blocks on the store; raises NotFoundError, StoreError.
    open: Callable[[], OutgoingPart]
    # (payload bytes sent) the last byte was handed to the kernel, or the chunk could not be read.
    done: Callable[[int], None]
    # Its file was opened before, so opening it again waits for no disk.
    is_warm: bool


@dataclass(slots=True)
class UploadParts:
    """What all upload links of an agent share."""

    uplink: RateLimit
    requested: Callable[[UploadLink, Request], None]
    cancelled: Callable[[UploadLink, Cancel], None]
    document: Callable[[UploadLink, DocumentRequest], None]
    # Our disk failed while a chunk was read.
    problem: Callable[[VersionId, SwarmError], None]
    # A chunk that we announced cannot be read: it has to be looked at.
    unreadable: Callable[[UploadLink, Request], None]
    # Payload bytes sent.
    count_bytes: Callable[[int], None]


class UploadLink:
    """One connection from one fetching peer. Owns its socket while `run` runs."""

    def __init__(self, peer: NodeId, zone: str, stream: FrameStream, parts: UploadParts) -> None:
        self.peer = peer
        # Of the peer.
        self.zone = zone
        self.is_closed = False
        self.active_at = trio.current_time()
        self._stream = stream
        self._parts = parts
        # Requests read and not answered yet.
        self._unanswered_count = 0
        self._queue: deque[bytes | PendingPart] = deque()
        # The rest of a frame that is going out.
        self._out = memoryview(b"")
        self._part: OutgoingPart | None = None
        self._pending: PendingPart | None = None
        # For the watchdog: bytes that have arrived at the last look and when they last moved, and
        # where the current payload began.
        self._acked_bytes = 0
        self._moved_at = self.active_at
        self._part_began_at = self.active_at
        self._part_began_acked = 0
        # Set while the sending task sleeps for want of work.
        self._sleep: trio.Event | None = None
        self._pause: _Pause | None = None
        self._paced = sockets.NO_PACE
        # TCP_NOTSENT_LOWAT is set: a chunk's end waits for its bytes to leave.
        self._is_draining = False

    # ---- orders, immediate

    def send_part(self, pending: PendingPart) -> None:
        self._queue.append(pending)
        self._kick()

    def pace(self, bytes_per_s: int) -> None:
        """Send no faster from now on; 0 means no limit. The kernel spaces the segments itself."""
        wanted = bytes_per_s or sockets.NO_PACE
        if self._stream.sock.fileno() < 0:
            return  # The link ended while its request was being answered.
        if not 0.8 * self._paced <= wanted <= 1.25 * self._paced:
            self._paced = wanted
            sockets.set_pace(self._stream.sock, wanted)

    def send_frame(self, message: Message) -> None:
        if len(self._queue) >= UNSENT_FRAMES_MAX:
            self.close()
            return
        self._queue.append(encode(message))
        self._kick()

    def answered(self) -> None:
        """A request was refused or taken back."""
        self._unanswered_count -= 1

    def close(self) -> None:
        self.is_closed = True
        self._stream.close()

    def check(self, now: float, settings: NetworkSettings) -> None:
        """The watchdog, about once a second: ends a link whose payload does not move or drips,
        and one that its peer has forgotten (the peer's own idle limit comes first)."""
        if self.is_closed:
            return
        if self._pending is None:
            if not self._unanswered_count and now - self.active_at >= 2 * settings.data_link_idle_s:
                self.close()
            return
        acked = read_tcp_info(self._stream.sock).bytes_acked
        if acked != self._acked_bytes:
            self._acked_bytes, self._moved_at = acked, now
        elapsed = now - self._part_began_at
        drips = acked - self._part_began_acked < PAYLOAD_RATE_MIN * elapsed
        is_stuck = now - self._moved_at >= settings.no_progress_s
        if is_stuck or (drips and elapsed >= settings.payload_patience_s):
            self.close()

    # ---- tasks

    async def run(self) -> None:
        """Serve until the link ends; raises what ended it."""
        try:
            await run_until_fault(self._read_forever, self._send_forever)
        finally:
            self.close()
            if self._part is not None:
                self._part.close()

    async def _read_forever(self) -> None:
        while True:
            message = await self._stream.receive()
            self.active_at = trio.current_time()
            match message:
                case Request():
                    self._unanswered_count += 1
                    if self._unanswered_count > REQUESTS_MAX:
                        raise PeerProtocolError(f"more than {REQUESTS_MAX} requests at once")
                    self._parts.requested(self, message)
                case Cancel():
                    self._parts.cancelled(self, message)
                case DocumentRequest():
                    self._parts.document(self, message)
                case Ping(token, is_reply) if not is_reply:
                    self.send_frame(Ping(token, is_reply=True))
                case _:
                    pass

    async def _send_forever(self) -> None:
        while True:
            pause, self._pause = self._pause or self._advance(), None
            match pause:
                case _Pause.IDLE:
                    self._sleep = trio.Event()
                    await self._sleep.wait()
                case _Pause.FULL:
                    await self._stream.wait_writable()
                case _Pause.COLD:
                    await self._warm_up()
                case _Pause.LIMITED:
                    await self._parts.uplink.wait()
                case _Pause.TURN:
                    await trio.lowlevel.checkpoint()
                case _:
                    assert_never(pause)

    def _kick(self) -> None:
        """Send what can go now; leave the rest to the sending task."""
        if self._sleep is None or self.is_closed:
            return
        try:
            pause = self._advance()
        except LINK_FAULTS:
            # The reading task finds out why.
            self.close()
            return
        if pause is not _Pause.IDLE:
            self._pause = pause
            self._sleep.set()
            self._sleep = None

    # ---- sending

    def _advance(self) -> _Pause:
        """Hand bytes to the kernel until something stands in the way."""
        budget = TURN_BYTES
        while budget > 0:
            if self._out and not self._send_out():
                return _Pause.FULL
            if self._part is None:
                pause = self._next_item()
            elif self._part.is_whole:
                if not self._has_left(self._part):
                    return _Pause.FULL
                self._finish_part(self._part)
                continue
            elif self._parts.uplink.delay_s() > 0:
                pause = _Pause.LIMITED
            elif not self._part.is_warm():
                pause = _Pause.COLD
            else:
                sent = self._send_slice(self._part)
                budget -= sent
                pause = None if sent else _Pause.FULL
            if pause is not None:
                return pause
        return _Pause.TURN

    def _send_out(self) -> bool:
        """The rest of a frame; a header waits in the kernel for its payload (MSG_MORE)."""
        flags = socket.MSG_MORE if self._part is not None else 0
        try:
            self._out = self._out[self._stream.sock.send(self._out, flags) :]
        except BlockingIOError:
            return False
        return not self._out

    def _next_item(self) -> _Pause | None:
        if not self._queue:
            return _Pause.IDLE
        item = self._queue[0]
        if isinstance(item, bytes):
            self._out = memoryview(item)
            self._queue.popleft()
        elif item.is_warm:
            self._queue.popleft()
            self._open(item)
        else:
            return _Pause.COLD
        return None

    def _open(self, pending: PendingPart) -> None:
        try:
            part = pending.open()
        except SwarmError as error:
            self._unreadable(pending, error)
        else:
            self._begin(pending, part)

    async def _warm_up(self) -> None:
        """What would wait for the disk, in a thread that may."""
        if self._part is not None:
            await trio.to_thread.run_sync(self._part.warm_up)
            return
        item = self._queue.popleft()
        assert isinstance(item, PendingPart)
        try:
            part = await trio.to_thread.run_sync(item.open)
        except SwarmError as error:
            self._unreadable(item, error)
        else:
            self._begin(item, part)

    def _begin(self, pending: PendingPart, part: OutgoingPart) -> None:
        self._part, self._pending = part, pending
        self._out = memoryview(part.header)
        self._moved_at = self._part_began_at = trio.current_time()
        self._part_began_acked = self._acked_bytes = read_tcp_info(self._stream.sock).bytes_acked

    def _send_slice(self, part: OutgoingPart) -> int:
        uplink = self._parts.uplink
        before = part.sent_bytes
        try:
            part.send(self._stream.fd, uplink.slice_bytes if uplink.is_limited else SLICE_BYTES)
        except BlockingIOError:
            return 0
        except StoreError as error:
            # The header has promised bytes that do not come; only the link's end can say so.
            assert self._pending is not None
            self._parts.problem(self._pending.request.version, error)
            self._parts.unreadable(self, self._pending.request)
            raise LinkClosedError from error
        sent = part.sent_bytes - before
        uplink.take(sent)
        self._parts.count_bytes(sent)
        return sent

    def _finish_part(self, part: OutgoingPart) -> None:
        pending = self._pending
        assert pending is not None
        part.close()
        self._part = self._pending = None
        self._unanswered_count -= 1
        self.active_at = trio.current_time()
        pending.done(part.sent_bytes)

    def _unreadable(self, pending: PendingPart, error: SwarmError) -> None:
        request = pending.request
        self._unanswered_count -= 1
        refusal = Refuse(request.session, request.version, request.chunk, RefuseReason.NOT_HELD, 0)
        self._queue.appendleft(encode(refusal))
        if not isinstance(error, NotFoundError):
            self._parts.problem(request.version, error)
            self._parts.unreadable(self, request)
        pending.done(0)

    def _has_left(self, part: OutgoingPart) -> bool:
        """The unsent rest is no more than what keeps the link busy; else have the kernel wake us
        when it is. A first measured rate may be a burst's, so the chunk's size has a say too."""
        info = read_tcp_info(self._stream.sock)
        goal = min(int(info.delivery_rate * UNSENT_S), part.sent_bytes // 4, UNSENT_BYTES_MAX)
        goal = max(goal, UNSENT_BYTES_MIN)
        if info.unsent_bytes <= goal:
            if self._is_draining:
                self._set_lowat(NO_LOWAT)
            return True
        # The kernel calls a socket writable below half the mark.
        self._set_lowat(2 * goal)
        return False

    def _set_lowat(self, count: int) -> None:
        self._is_draining = count != NO_LOWAT
        self._stream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, count)
