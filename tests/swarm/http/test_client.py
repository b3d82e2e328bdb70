"""One client connection: what it accepts from a server, and what it says when it does not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from swarm.errors import UsageError
from swarm.http.client import Endpoint, HttpClientError, HttpConnection, Reply, parse_endpoint


@asynccontextmanager
async def scripted(*replies: bytes) -> AsyncIterator[Endpoint]:
    """A server that answers each packet with the next reply, then closes."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            for reply in replies:
                await stream.receive_some()
                await stream.send_all(reply)

    async with trio.open_nursery() as nursery:
        serve_tcp = partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
        listeners: list[trio.SocketListener] = await nursery.start(serve_tcp)
        port = listeners[0].socket.getsockname()[1]
        yield parse_endpoint(f"http://127.0.0.1:{port}")
        nursery.cancel_scope.cancel()


async def ask(connection: HttpConnection, *, timeout_s: float = 2.0) -> Reply:
    return await connection.request(
        "POST", "/x", (), b"body", timeout_s=timeout_s, body_bytes_max=100
    )


async def connect(endpoint: Endpoint) -> HttpConnection:
    return await HttpConnection.open_tcp(endpoint, ("127.0.0.1", endpoint.port), None)


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nSwarm-Mac: ab\r\n\r\nhi"


async def test_a_connection_is_used_again() -> None:
    async with scripted(OK, OK) as endpoint:
        connection = await connect(endpoint)
        for _ in range(2):
            reply = await ask(connection)
            assert (reply.status, reply.body) == (200, b"hi")
            assert reply.headers["swarm-mac"] == "ab"
        assert connection.is_reusable
        await connection.close()


async def test_a_connection_closed_meanwhile_is_stale_and_a_new_one_is_not() -> None:
    async with scripted(OK) as endpoint:
        connection = await connect(endpoint)
        await ask(connection)
        with pytest.raises(HttpClientError) as caught:
            await ask(connection)
        assert caught.value.is_stale
    async with scripted() as endpoint:
        with pytest.raises(HttpClientError) as caught:
            await ask(await connect(endpoint))
        assert not caught.value.is_stale


@pytest.mark.parametrize(
    "reply",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + b"x" * 500,
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf",
    ],
)
async def test_what_is_no_reply_closes_the_connection(reply: bytes) -> None:
    async with scripted(reply) as endpoint:
        connection = await connect(endpoint)
        with pytest.raises(HttpClientError):
            await ask(connection)
        assert not connection.is_reusable


async def test_connection_close_is_obeyed() -> None:
    reply = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    async with scripted(reply) as endpoint:
        connection = await connect(endpoint)
        assert (await ask(connection)).status == 200
        assert not connection.is_reusable


async def test_a_silent_server_is_left() -> None:
    async with scripted(b"", b"") as endpoint:
        with pytest.raises(HttpClientError, match="no reply"):
            await ask(await connect(endpoint), timeout_s=0.1)


async def test_nobody_there_says_so() -> None:
    async with scripted() as endpoint:
        pass
    with pytest.raises(HttpClientError, match=r"(?i)refused"):
        await connect(endpoint)


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix"),
    [
        ("http://10.0.0.7:7000", "10.0.0.7", 7000, ""),
        ("https://tracker.example/swarm/", "tracker.example", 443, "/swarm"),
        ("http://[fd00::7]:7000", "fd00::7", 7000, ""),
    ],
)
def test_urls(url: str, host: str, port: int, prefix: str) -> None:
    endpoint = parse_endpoint(url)
    assert (endpoint.host, endpoint.port, endpoint.prefix) == (host, port, prefix)


@pytest.mark.parametrize(
    "url", ["", "tracker:7000", "ftp://x", "http://", "http://u:secret@h:1", "http://h:1?a=b"]
)
def test_not_urls(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_endpoint(url)
    assert "secret" not in str(caught.value)
