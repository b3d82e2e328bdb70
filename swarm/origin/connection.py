"""One HTTP/1.1 connection to an origin: h11 for the heads, the socket itself for the bodies.

A body with a Content-Length, which is every range, is received from the socket straight into the
receiver's memory and never passes through h11: general HTTP clients copy each byte three times,
which cost 2.5 times the CPU here (`benchmarks.s3_reads` measures httpx beside this in one run).
SO_RCVLOWAT lets the kernel collect 64 KiB before it wakes us. With TLS a body is copied once; a
chunked one, which only error pages and odd servers have, goes through h11. Bodies of requests are
written in slices, each with a deadline.

The connection is good for another request when the last answer was read to its end and neither
side asked for a close. It raises what the socket, trio and h11 raise; `swarm.origin.exchange`
translates.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import h11
import trio

MIB = 1 << 20
HEAD_READ_BYTES = 64 * 1024  # Enough for a head and the beginning of a body.
WAKE_BYTES = 64 * 1024  # As many as count as progress; see OriginSettings.progress_bytes.
WRITE_SLICE_BYTES = MIB
HEAD_BYTES_MAX = 64 * 1024  # Heads of stores are 1 KiB; long cookies of a proxy fit as well.

RawHeaders = Sequence[tuple[bytes, bytes]]
Headers = Mapping[str, str]
"""Of an answer; names in lower case, the values of a repeated one joined by commas."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of an answer."""

    status_code: int
    headers: Headers


class OriginConnection:
    """See the module. One request at a time; `generation` is the pool's."""

    def __init__(self, stream: trio.abc.Stream, generation: int) -> None:
        self.generation = generation
        # When it became idle, on trio's clock.
        self.idle_at = trio.current_time()
        self._stream = stream
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        self._http = h11.Connection(h11.CLIENT)
        self._wants_close = False
        self._is_over = True
        # Bytes of a body that are still to come past h11; None: h11 reads it.
        self._direct_left: int | None = None
        # What was read ahead: with the head, or from h11.
        self._early = b""
        self._wake_bytes = 1
        # The last receive took all that there was.
        self._is_drained = False

    async def request(
        self,
        method: bytes,
        target: bytes,
        headers: RawHeaders,
        body: bytes,
        *,
        write_timeout_s: float,
        first_byte_timeout_s: float,
    ) -> Head:
        """Send a request and read the head of its answer; trio.TooSlowError if either takes too
        long."""
        self._is_over = False
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        head = self._http.send(h11.Request(method=method, target=target, headers=list(headers)))
        assert head is not None
        try:
            await self._write(head, body, write_timeout_s)
        except trio.BrokenResourceError:
            # A store may answer, no, and close before it has read the body.
            if not body:
                raise
        with trio.fail_after(first_byte_timeout_s):
            response = await self._read_head()
        self._prepare_body(method, response)
        return Head(response.status_code, _headers_of(response))

    async def read_into(self, room: memoryview) -> int:
        """Put further bytes of the body into `room` and say how many, 0 after the last.
        ConnectionError if it ends too soon."""
        if self._direct_left is None and not self._early:
            self._early = await self._read_event()
        if self._early:
            count = min(len(room), len(self._early))
            room[:count] = self._early[:count]
            self._early = self._early[count:]
        elif self._direct_left:
            count = await self._receive_into(room[: self._direct_left])
            if not count:
                raise ConnectionResetError("the connection ended inside the body")
        else:
            self._is_over = True
            return 0
        if self._direct_left is not None:
            self._direct_left -= count
        return count

    @property
    def is_reusable(self) -> bool:
        """Whether another request can be sent, as far as this side knows."""
        return self._is_over and not self._wants_close

    def has_ended(self) -> bool:
        """Whether the other side has closed an idle connection, or sent what nobody asked for."""
        stream = self._stream
        while isinstance(stream, trio.SSLStream):
            stream = stream.transport_stream
        return isinstance(stream, trio.SocketStream) and stream.socket.is_readable()

    async def aclose(self) -> None:
        """Close without a farewell."""
        await trio.aclose_forcefully(self._stream)

    async def _write(self, head: bytes, body: bytes, timeout_s: float) -> None:
        with trio.fail_after(timeout_s):
            await self._stream.send_all(head)
        view = memoryview(body)
        for start in range(0, len(body), WRITE_SLICE_BYTES):
            with trio.fail_after(timeout_s):
                await self._stream.send_all(view[start : start + WRITE_SLICE_BYTES])

    async def _read_head(self) -> h11.Response:
        self._collect(1)
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Response):
                return event
            if event is h11.NEED_DATA:
                received = await self._stream.receive_some(HEAD_READ_BYTES)
                if not received:
                    raise ConnectionResetError("the connection ended before an answer")
                self._http.receive_data(bytes(received))
            elif not isinstance(event, h11.InformationalResponse):
                raise ConnectionResetError("the connection ended before an answer")

    def _prepare_body(self, method: bytes, response: h11.Response) -> None:
        headers = dict(response.headers)
        tokens = headers.get(b"connection", b"").lower()
        self._wants_close = b"close" in tokens or response.http_version < b"1.1"
        self._early, self._direct_left = b"", None
        self._is_drained = False
        if method == b"HEAD" or response.status_code in (204, 304):
            self._direct_left = 0
        elif b"transfer-encoding" not in headers and b"content-length" in headers:
            self._direct_left = int(headers[b"content-length"])
            self._early = self._http.trailing_data[0]
        if self._direct_left is not None and len(self._early) > self._direct_left:
            self._wants_close = True  # More than it announced: nothing here can be trusted.
            self._early = self._early[: self._direct_left]

    async def _read_event(self) -> bytes:
        self._collect(1)
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Data):
                return bytes(event.data)
            if event is h11.NEED_DATA:
                received = await self._stream.receive_some(HEAD_READ_BYTES)
                self._http.receive_data(bytes(received))
                continue
            self._is_over = True
            is_clean = self._http.their_state is h11.DONE and not self._http.trailing_data[0]
            self._wants_close = self._wants_close or not is_clean
            return b""

    async def _receive_into(self, room: memoryview) -> int:
        sock = self._socket
        if sock is None:
            received = await self._stream.receive_some(len(room))
            room[: len(received)] = received
            return len(received)
        if not self._is_drained:
            # A server that is always faster than us must not keep the loop to itself.
            await trio.lowlevel.checkpoint()
        while True:
            if self._is_drained:
                # Not beyond the room: what completes a chunk must not wait for the next one's.
                self._collect(min(WAKE_BYTES, len(room)))
                await trio.lowlevel.wait_readable(sock)
            try:
                # As trio's own method does it, without its 20 µs.
                count = os.readv(sock.fileno(), (room,))
            except BlockingIOError:
                self._is_drained = True
            else:
                self._is_drained = count < len(room)
                return count

    def _collect(self, count: int) -> None:
        """Wake up only once so many bytes are there; with TLS each record wakes us."""
        if self._socket is not None and count != self._wake_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
            self._wake_bytes = count


def _headers_of(response: h11.Response) -> Headers:
    found: dict[str, str] = {}
    for raw_name, raw_value in response.headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found
