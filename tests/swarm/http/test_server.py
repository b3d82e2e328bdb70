"""The server against raw sockets and against httpx: what a broken or slow client costs, and an
orderly end. Real sockets on loopback, real time with small limits."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trio

from swarm.errors import LockedError, UsageError
from swarm.http.listeners import bound_port, open_tcp, open_unix
from swarm.http.messages import Request, Response, text_response
from swarm.http.router import Router
from swarm.http.server import HttpLimits, HttpServer
from tests.support.polling import until

LIMITS = HttpLimits(header_s=0.2, body_s=0.2, idle_s=0.3, send_s=0.5, connections=8)


class Site:
    """A few handlers, and what the tests need to know of them."""

    def __init__(self) -> None:
        self.router = Router()
        self.router.add("GET", "/hello/{name}", self._hello)
        self.router.add("POST", "/echo", self._echo, body_bytes_max=1000)
        self.router.add("GET", "/slow", self._slow)
        self.router.add("GET", "/held", self._slow, is_held=True)
        self.router.add("GET", "/stream", self._stream)
        self.router.add("GET", "/broken", self._broken)
        self.entered = trio.Event()
        self.release = trio.Event()
        self.stream_ended = False
        self.was_cancelled = False

    async def _hello(self, request: Request) -> Response:
        return text_response(200, f"hello {request.path_values['name']} {dict(request.query)}")

    async def _echo(self, request: Request) -> Response:
        return Response(200, request.body, request.headers.get("content-type", ""))

    async def _slow(self, request: Request) -> Response:
        self.entered.set()
        try:
            await self.release.wait()
        except trio.Cancelled:
            self.was_cancelled = True
            raise
        return text_response(200, "at last")

    async def _stream(self, request: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            try:
                for number in range(3):
                    yield f"{number}\n".encode()
                await self.release.wait()
            finally:
                self.stream_ended = True

        return Response(200, pieces())

    async def _broken(self, request: Request) -> Response:
        raise KeyError("a bug")


@asynccontextmanager
async def served(site: Site, limits: HttpLimits = LIMITS) -> AsyncIterator[tuple[HttpServer, int]]:
    server = HttpServer(site.router, limits=limits)
    listeners = await open_tcp("127.0.0.1", 0)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, listeners)
            yield server, bound_port(listeners[0])
            nursery.cancel_scope.cancel()


async def raw_exchange(port: int, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """Send pieces with pauses between them; everything that comes back until the server closes."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    answer = bytearray()

    async def send() -> None:
        for piece in pieces:
            try:
                await stream.send_all(piece)
            except trio.BrokenResourceError:
                return
            await trio.sleep(pause_s)

    async with stream, trio.open_nursery() as nursery:
        nursery.start_soon(send)
        with trio.fail_after(5):
            async for piece in stream:
                answer += piece
        nursery.cancel_scope.cancel()
    return bytes(answer)


async def test_httpx_reads_answers_bodies_and_queries() -> None:
    async with served(Site()) as (_, port), httpx.AsyncClient(trust_env=False) as client:
        url = f"http://127.0.0.1:{port}"
        answer = await client.get(f"{url}/hello/a%2Fb?x=1&y=%20")
        assert answer.text == "hello a/b {'x': '1', 'y': ' '}\n"
        assert "date" in answer.headers
        echo = await client.post(f"{url}/echo", content=b"\x00\xff" * 300)
        assert echo.content == b"\x00\xff" * 300


async def test_a_chunked_body_and_expect_continue_are_understood() -> None:
    async with served(Site()) as (_, port):
        answer = await raw_exchange(
            port,
            b"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n",
            b"3\r\nabc\r\n0\r\n\r\n",
            pause_s=0.05,
        )
    assert answer.startswith(b"HTTP/1.1 100 ")
    assert answer.endswith(b"abc")


async def test_head_has_the_header_of_get_and_no_body() -> None:
    async with served(Site()) as (_, port), httpx.AsyncClient(trust_env=False) as client:
        answer = await client.head(f"http://127.0.0.1:{port}/hello/x")
    assert answer.status_code == 200
    assert answer.headers["content-length"] == "11"
    assert answer.content == b""


async def test_one_connection_serves_many_requests() -> None:
    async with served(Site()) as (server, port), httpx.AsyncClient(trust_env=False) as client:
        for _ in range(5):
            await client.get(f"http://127.0.0.1:{port}/hello/x")
            assert server.connection_count == 1


async def test_pipelined_requests_are_answered_in_order() -> None:
    request = b"GET /hello/%d HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /hello/9 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    async with served(Site()) as (_, port):
        answer = await raw_exchange(port, b"".join(request % n for n in range(3)) + last)
    places = [answer.index(b"hello %d" % number) for number in (0, 1, 2, 9)]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 TLS hello", b"400"),
        (b"GET /hello x HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /hello/x HTTP/1.1\r\n\r\n", b"400"),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n", b"413"),
        (b"GET /hello/x HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", b"431"),
        (b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
        (b"DELETE /echo HTTP/1.1\r\nHost: x\r\n\r\n", b"405"),
    ],
)
async def test_a_broken_request_is_answered_and_closed(sent: bytes, status: bytes) -> None:
    async with served(Site()) as (_, port):
        answer = await raw_exchange(port, sent)
    assert answer.split(b" ")[1] == status
    assert b"connection: close" in answer.lower()


async def test_a_body_past_the_limit_gets_its_answer_while_it_is_still_sent() -> None:
    """Closing at once would reset the connection, and the client would see that instead of 413."""
    async with served(Site()) as (_, port):
        answer = await raw_exchange(
            port,
            b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
            *[b"400\r\n" + b"x" * 0x400 + b"\r\n"] * 50,
        )
    assert answer.split(b" ")[1] == b"413"


async def test_a_dripping_header_is_cut() -> None:
    async with served(Site()) as (_, port):
        started_at = trio.current_time()
        answer = await raw_exchange(port, *[b"G", b"E", b"T"] * 100, pause_s=0.02)
    assert answer.split(b" ")[1] == b"408"
    assert trio.current_time() - started_at < 2.0


async def test_a_body_that_does_not_come_is_cut() -> None:
    async with served(Site()) as (_, port):
        answer = await raw_exchange(
            port, b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nab"
        )
    assert answer.split(b" ")[1] == b"408"


async def test_an_idle_connection_is_closed_without_a_word() -> None:
    async with served(Site()) as (server, port):
        assert await raw_exchange(port) == b""
        assert server.connection_count == 0


async def test_a_client_that_goes_away_costs_nothing() -> None:
    site = Site()
    async with served(site) as (server, port):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await site.entered.wait()
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await stream.aclose()
        site.release.set()
        await until(lambda: server.connection_count == 0)
        assert b"hello x" in await raw_exchange(
            port, b"GET /hello/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )


async def test_a_held_handler_ends_when_its_client_goes_away() -> None:
    site = Site()
    async with served(site) as (server, port):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n")
        await site.entered.wait()
        await stream.aclose()
        await until(lambda: server.connection_count == 0)
        assert site.was_cancelled


async def test_a_request_behind_a_held_one_is_served_after_it() -> None:
    site = Site()
    async with served(site) as (_, port):
        async with trio.open_nursery() as nursery:
            answers: list[bytes] = []

            async def ask() -> None:
                answers.append(
                    await raw_exchange(
                        port,
                        b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n",
                        b"GET /hello/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                        pause_s=0.05,
                    )
                )

            nursery.start_soon(ask)
            await site.entered.wait()
            await trio.sleep(0.1)
            site.release.set()
        assert answers[0].index(b"at last") < answers[0].index(b"hello x")


async def test_past_the_cap_a_connection_is_told_to_come_back() -> None:
    async with served(Site()) as (server, port):
        streams = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(8)]
        await until(lambda: server.connection_count == 8)
        answer = await raw_exchange(port, b"GET /hello/x HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.split(b" ")[1] == b"503"
        for stream in streams:
            await stream.aclose()


async def test_a_stream_arrives_piece_by_piece() -> None:
    site = Site()
    async with served(site) as (_, port), httpx.AsyncClient(trust_env=False) as client:
        async with client.stream("GET", f"http://127.0.0.1:{port}/stream") as answer:
            lines = answer.aiter_lines()
            assert [await anext(lines) for _ in range(3)] == ["0", "1", "2"]
            site.release.set()
            assert [line async for line in lines] == []
        assert site.stream_ended


async def test_a_bug_in_a_handler_is_answered_500_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served(Site()) as (_, port), httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"http://127.0.0.1:{port}/broken")).status_code == 500
        assert (await client.get(f"http://127.0.0.1:{port}/hello/x")).status_code == 200
    assert "a bug" in caplog.text


async def test_a_drain_answers_what_is_in_flight_and_closes_what_is_idle() -> None:
    site = Site()
    async with served(site, HttpLimits()) as (server, port):
        idle = await trio.open_tcp_stream("127.0.0.1", port)
        answers: list[bytes] = []

        async def ask() -> None:
            answers.append(await raw_exchange(port, b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await site.entered.wait()
            server.drain(grace_s=5.0)
            assert await idle.receive_some() == b""
            with pytest.raises(OSError, match=r"attempts to connect"):
                await trio.open_tcp_stream("127.0.0.1", port)
            site.release.set()
            await server.wait_drained()
        assert b"at last" in answers[0]
        assert b"connection: close" in answers[0].lower()
        await idle.aclose()


async def test_a_drain_ends_at_its_grace() -> None:
    site = Site()
    async with served(site) as (server, port):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await site.entered.wait()
        server.drain(grace_s=0.1)
        with trio.fail_after(2):
            await server.wait_drained()
        await stream.aclose()


async def test_a_unix_socket_is_private_and_a_stale_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listener = await open_unix(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(LockedError):
        await open_unix(path)
    await listener.aclose()
    again = await open_unix(path)
    site = Site()
    async with trio.open_nursery() as nursery:
        await nursery.start(HttpServer(site.router).serve, [again])
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport) as client:
            assert (await client.get("http://swarm/hello/x")).status_code == 200
        nursery.cancel_scope.cancel()


async def test_a_file_in_the_way_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(UsageError):
        await open_unix(path)
    assert path.read_text() == "precious"


async def test_an_address_in_use_is_a_clear_error() -> None:
    async with served(Site()) as (_, port):
        with pytest.raises(UsageError, match=str(port)):
            await open_tcp("127.0.0.1", port)
