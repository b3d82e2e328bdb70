"""Finding a tracker that answers: fail-over, stale connections, deadlines, and what is said when
none does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from swarm.agent.tracker_client import TrackerClient
from swarm.errors import TrackerError, UsageError
from swarm.protocol.ids import Identity, NodeId
from swarm.protocol.tracker_api import Listen
from tests.support.tls import make_certificate
from tests.support.tracker_server import CLUSTER_KEY, running_tracker

LISTEN = Listen((0, 0), (), ("prod",))


def agent(*urls: str) -> TrackerClient:
    return TrackerClient(urls, key=CLUSTER_KEY, identity=Identity(NodeId(os.urandom(16)), 1))


async def unused_port() -> int:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port: int = listener.socket.getsockname()[1]
    await listener.aclose()
    return port


async def test_a_dead_tracker_is_passed_over(tmp_path: Path) -> None:
    dead = f"http://127.0.0.1:{await unused_port()}"
    async with running_tracker(tmp_path) as tracker:
        for _ in range(4):
            client = tracker.kept(agent(dead, tracker.url))
            assert (await client.listen(LISTEN)).channels


async def test_a_name_with_several_addresses_is_tried_whole(tmp_path: Path) -> None:
    """`localhost` may be ::1 first, where nobody listens."""
    async with running_tracker(tmp_path) as tracker:
        url = tracker.url.replace("127.0.0.1", "localhost")
        client = tracker.kept(agent(url))
        assert (await client.listen(LISTEN)).channels


async def test_a_restarted_tracker_is_found_again(tmp_path: Path) -> None:
    """The connection kept from before is dead; the call still succeeds."""
    async with running_tracker(tmp_path) as tracker:
        client = agent(tracker.url)
        before = await client.listen(LISTEN)
        port = int(tracker.url.rpartition(":")[2])
    async with running_tracker(tmp_path, port=port):
        after = await client.listen(LISTEN)
        await client.aclose()
    assert before.seen[0] == 1
    assert after.seen[0] == 2


async def test_nobody_answers_names_every_url() -> None:
    urls = [f"http://127.0.0.1:{await unused_port()}" for _ in range(2)]
    urls.append("http://no-such-host.invalid:1")
    with trio.fail_after(10):
        with pytest.raises(TrackerError) as caught:
            await agent(*urls).listen(LISTEN)
    assert caught.value.is_retryable
    for url in urls:
        assert url in caught.value.message


async def test_an_operators_call_waits_for_a_tracker_that_starts(tmp_path: Path) -> None:
    port = await unused_port()
    client = TrackerClient([f"http://127.0.0.1:{port}"], key=CLUSTER_KEY)
    listed = trio.Event()

    async def list_versions() -> None:
        assert await client.list_versions() == ()
        listed.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(list_versions)
        await trio.sleep(0.2)
        async with running_tracker(tmp_path, port=port):
            with trio.fail_after(10):
                await listed.wait()
            await client.aclose()


async def test_a_service_that_is_no_tracker_is_named() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nnginx")

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        client = TrackerClient([url], key=None)
        with pytest.raises(TrackerError, match="not as a tracker does"):
            await client.list_versions()
        await client.aclose()
        nursery.cancel_scope.cancel()


async def hint_of(url: str) -> str:
    """What a user is told to try; asked once."""
    client = agent(url)
    with pytest.raises(TrackerError) as caught:
        await client.listen(LISTEN)
    await client.aclose()
    return caught.value.hint


async def test_https_to_a_tracker_without_tls_is_told_so(tmp_path: Path) -> None:
    async with running_tracker(tmp_path) as tracker:
        hint = await hint_of(tracker.url.replace("http://", "https://"))
    assert "write http://" in hint


async def test_http_to_a_server_with_tls_is_told_so(tmp_path: Path) -> None:
    """OpenSSL's own server: it closes without a word that a browser could show."""
    context = make_certificate(tmp_path).server_context()

    async def shake_hands(stream: trio.SocketStream) -> None:
        try:
            await trio.SSLStream(stream, context, server_side=True).do_handshake()
        except trio.BrokenResourceError:
            await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, shake_hands, [listener])
        port = listener.socket.getsockname()[1]
        assert "write https://" in await hint_of(f"http://127.0.0.1:{port}")
        nursery.cancel_scope.cancel()


GO_SAYS = b"Client sent an HTTP request to an HTTPS server.\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"\x15\x03\x03\x00\x02\x02\x46",
        b"HTTP/1.0 400 Bad Request\r\n\r\n" + GO_SAYS,
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 58\r\n\r\n"
        b"<p>The plain HTTP request was sent to HTTPS port</p>\r\n    ",
        b"",
    ],
    ids=["alert", "go", "nginx", "nothing"],
)
async def test_what_tls_servers_say_to_http_is_understood(answer: bytes) -> None:
    async with trio.open_nursery() as nursery:

        async def serve(stream: trio.SocketStream) -> None:
            async with stream:
                await stream.receive_some(65536)
                await stream.send_all(answer)

        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        port = listener.socket.getsockname()[1]
        assert "write https://" in await hint_of(f"http://127.0.0.1:{port}")
        nursery.cancel_scope.cancel()


async def test_proxies_of_the_environment_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{await unused_port()}")
    async with running_tracker(tmp_path) as tracker:
        assert (await tracker.agent().listen(LISTEN)).channels


async def test_a_cancelled_call_leaves_no_half_reply_behind(tmp_path: Path) -> None:
    async with running_tracker(tmp_path) as tracker:
        client = tracker.agent()
        seen = (await client.listen(LISTEN)).seen
        with trio.move_on_after(0.1):
            await client.listen(Listen(seen, (), ("prod",)))
        assert (await client.listen(LISTEN)).channels


def test_without_a_url_there_is_no_client() -> None:
    with pytest.raises(UsageError):
        TrackerClient([], key=None)
