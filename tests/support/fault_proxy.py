"""An HTTP proxy that stands before a real server and breaks its answers by a script.

What a real object store cannot be asked to do (cut a body, stall, flip a bit, send another status)
happens here, request by request, on the wire. The Host header is passed on as it came, so
signatures stay valid. It counts what it sends: the origin bytes of a test are these, never a
client's own.

In a trio test it runs in the test's nursery (`serve`); for tests without a loop, and for programs
started by a test, in a thread of its own (`fault_proxy_in_thread`).
"""

from __future__ import annotations

import contextlib
import gzip
import math
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import h11
import trio

READ_BYTES = 64 * 1024
IDLE_TIMEOUT_S = 60.0  # No test waits longer; a forgotten connection ends.
Headers = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class Fault:
    """What happens to which requests. Times are the proxy's own."""

    # Which: method and a part of the target, both empty for all.
    method: str = ""
    target_part: str = ""
    # Of those, every n-th, the first included.
    every: int = 1
    # How many requests are hit before it is over, and how long after the first hit.
    for_requests: float = math.inf
    for_seconds: float = math.inf
    # Answer without asking the server.
    status: int | None = None
    body: bytes = b""
    # Added to the answer, in place of the server's; an empty value removes the header.
    headers: dict[str, str] = field(default_factory=dict)
    # Close after so many body bytes, by FIN, or by RST.
    body_cut: int | None = None
    is_reset: bool = False
    # Send nothing more after so many body bytes, and leave the connection open.
    stall_after: int | None = None
    # Bytes per second of the body, in pieces of `piece_bytes`.
    rate: float | None = None
    piece_bytes: int = 1024
    # Flip the lowest bit of this byte of the body.
    flip_bit: int | None = None
    # Seconds before the answer begins.
    delay: float = 0.0
    # Ask the server for the whole object.
    ignores_range: bool = False
    # Compress the body and say so.
    gzips: bool = False
    # Send the body without its length, chunked.
    is_chunked: bool = False

    _seen: int = 0
    _hit: int = 0
    _first_at: float = -math.inf

    def hits(self, method: str, target: str) -> bool:
        """Whether this request is one of those; counts it."""
        if (self.method and method != self.method) or self.target_part not in target:
            return False
        now = trio.current_time()
        if self._hit >= self.for_requests or (
            self._hit and now - self._first_at >= self.for_seconds
        ):
            return False
        self._seen += 1
        if (self._seen - 1) % self.every:
            return False
        if not self._hit:
            self._first_at = now
        self._hit += 1
        return True


@dataclass(slots=True)
class SeenRequest:
    """One request and what was sent for it."""

    method: str
    target: str
    headers: dict[str, str]
    # Seconds on the proxy's clock.
    at: float
    status: int = 0
    body_bytes_sent: int = 0


class FaultProxy:
    """The script and the counters; `serve` does the work."""

    def __init__(self, upstream_port: int, *, upstream_host: str = "127.0.0.1") -> None:
        self._upstream = (upstream_host, upstream_port)
        # Applied in order; the first that hits decides.
        self.faults: list[Fault] = []
        self.requests: list[SeenRequest] = []
        self.connection_count = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def body_bytes_sent(self) -> int:
        """Over all requests."""
        return sum(request.body_bytes_sent for request in self.requests)

    def count(self, method: str, target_part: str = "") -> int:
        """Requests of a method whose target has a part."""
        return sum(
            request.method == method and target_part in request.target for request in self.requests
        )

    async def serve(
        self, *, task_status: trio.TaskStatus[FaultProxy] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen until cancelled."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = int(listeners[0].socket.getsockname()[1])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, self._serve_client, listeners)
            task_status.started(self)

    async def _serve_client(self, client: trio.SocketStream) -> None:
        self.connection_count += 1
        side = _Side(client, h11.Connection(h11.SERVER))
        try:
            with trio.move_on_after(IDLE_TIMEOUT_S):
                while await self._serve_request(side):
                    side.http.start_next_cycle()
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
            return  # The client or the server went away; both sides see it by their own.
        finally:
            await trio.aclose_forcefully(client)

    async def _serve_request(self, client: _Side) -> bool:
        """Whether the connection goes on."""
        request = await client.next_event()
        if not isinstance(request, h11.Request):
            return False
        body = await client.whole_body()
        seen = SeenRequest(
            request.method.decode(),
            request.target.decode(),
            {name.decode(): value.decode("latin-1") for name, value in request.headers},
            trio.current_time(),
        )
        self.requests.append(seen)
        hit = next((f for f in self.faults if f.hits(seen.method, seen.target)), Fault(every=1))
        await trio.sleep(hit.delay)
        if hit.status is not None:
            headers = _changed([(b"content-length", str(len(hit.body)).encode())], hit)
            await _answer(client, seen, hit, hit.status, headers, _Kept(hit.body).next_piece)
        else:
            await self._forward(client, seen, hit, request, body)
        return client.is_reusable()

    async def _forward(
        self, client: _Side, seen: SeenRequest, hit: Fault, request: h11.Request, body: bytes
    ) -> None:
        stream = await trio.open_tcp_stream(*self._upstream)
        async with stream:
            server = _Side(stream, h11.Connection(h11.CLIENT))
            headers = [
                pair
                for pair in request.headers
                if not (hit.ignores_range and pair[0] == b"range")
                and pair[0] not in (b"connection", b"transfer-encoding", b"content-length")
            ]
            headers += [
                (b"connection", b"close"),
                (b"content-length", str(len(body)).encode()),
            ]
            await server.send(
                h11.Request(method=request.method, target=request.target, headers=headers)
            )
            if body:
                await server.send(h11.Data(data=body))
            await server.send(h11.EndOfMessage())
            response = await server.next_event()
            while isinstance(response, h11.InformationalResponse):
                response = await server.next_event()
            assert isinstance(response, h11.Response)
            answer = [pair for pair in response.headers if pair[0] != b"connection"]
            next_piece = server.next_piece
            if hit.gzips:
                packed = gzip.compress(await server.whole_body())
                next_piece = _Kept(packed).next_piece
                answer = _without(answer, b"content-length")
                answer += [
                    (b"content-encoding", b"gzip"),
                    (b"content-length", str(len(packed)).encode()),
                ]
            if hit.is_chunked:
                answer = [
                    *_without(answer, b"content-length"),
                    (b"transfer-encoding", b"chunked"),
                ]
            await _answer(
                client, seen, hit, response.status_code, _changed(answer, hit), next_piece
            )


class _Side:
    """One connection and its side of the HTTP conversation."""

    def __init__(self, stream: trio.SocketStream, http: h11.Connection) -> None:
        self.stream = stream
        self.http = http

    async def send(self, event: h11.Event) -> None:
        payload = self.http.send(event)
        if payload:
            await self.stream.send_all(payload)

    async def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while True:
            event = self.http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self.http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            self.http.receive_data(await self.stream.receive_some(READ_BYTES))

    async def next_piece(self) -> bytes:
        """The next bytes of the body, b"" after the last."""
        event = await self.next_event()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def whole_body(self) -> bytes:
        pieces: list[bytes] = []
        while piece := await self.next_piece():
            pieces.append(piece)
        return b"".join(pieces)

    def is_reusable(self) -> bool:
        return self.http.our_state is h11.DONE and self.http.their_state is h11.DONE


class _Kept:
    """A body that is here already."""

    def __init__(self, payload: bytes) -> None:
        self._rest = payload

    async def next_piece(self) -> bytes:
        await trio.lowlevel.checkpoint()
        piece, self._rest = self._rest[:READ_BYTES], self._rest[READ_BYTES:]
        return piece


async def _answer(
    client: _Side,
    seen: SeenRequest,
    hit: Fault,
    status: int,
    headers: Headers,
    next_piece: Callable[[], Awaitable[bytes]],
) -> None:
    seen.status = status
    await client.send(h11.Response(status_code=status, headers=headers))
    limit = min(_or_infinite(hit.body_cut), _or_infinite(hit.stall_after))
    if seen.method != "HEAD":
        while piece := await next_piece():
            await _send_piece(client, seen, hit, piece, limit)
            if seen.body_bytes_sent >= limit:
                break
    if hit.body_cut is not None and seen.method != "HEAD":
        await _break(client.stream, is_reset=hit.is_reset)
    elif hit.stall_after is not None:
        await trio.sleep_forever()
    else:
        await client.send(h11.EndOfMessage())


async def _send_piece(
    client: _Side, seen: SeenRequest, hit: Fault, piece: bytes, limit: float
) -> None:
    if hit.flip_bit is not None and 0 <= (at := hit.flip_bit - seen.body_bytes_sent) < len(piece):
        piece = piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]
    piece = piece[: int(min(len(piece), limit - seen.body_bytes_sent))]
    step = hit.piece_bytes if hit.rate else max(1, len(piece))
    for start in range(0, len(piece), step):
        part = piece[start : start + step]
        if hit.rate:
            await trio.sleep(len(part) / hit.rate)
        await client.send(h11.Data(data=part))
        seen.body_bytes_sent += len(part)


async def _break(stream: trio.SocketStream, *, is_reset: bool) -> None:
    if is_reset:
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await trio.aclose_forcefully(stream)


def _or_infinite(limit: int | None) -> float:
    return math.inf if limit is None else limit


def _without(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> Headers:
    return [pair for pair in headers if pair[0] != name]


def _changed(headers: Headers, hit: Fault) -> Headers:
    for name, value in hit.headers.items():
        headers = _without(headers, name.lower().encode())
        if value:
            headers.append((name.lower().encode(), value.encode()))
    return headers


@contextlib.contextmanager
def fault_proxy_in_thread(upstream: str) -> Iterator[FaultProxy]:
    """A proxy with a loop and thread of its own, stopped at the end of the context."""
    address = urlsplit(upstream)
    assert address.hostname is not None, upstream
    assert address.port is not None, upstream
    proxy = FaultProxy(address.port, upstream_host=address.hostname)
    is_ready = threading.Event()
    stop: list[tuple[trio.lowlevel.TrioToken, trio.CancelScope]] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(proxy.serve)
            stop.append((trio.lowlevel.current_trio_token(), nursery.cancel_scope))
            is_ready.set()

    thread = threading.Thread(target=trio.run, args=(main,), name="fault proxy")
    thread.start()
    assert is_ready.wait(10), "the fault proxy did not start"
    token, scope = stop[0]
    try:
        yield proxy
    finally:
        trio.from_thread.run_sync(scope.cancel, trio_token=token)
        thread.join(10)
