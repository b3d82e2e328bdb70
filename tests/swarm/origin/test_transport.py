"""Connections below an origin: TLS, tunnels, keeping and giving up."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing

from swarm.errors import OriginError
from swarm.origin.origin import Origin, OriginSettings, open_origin
from tests.support.served_directory import ServedDirectory, serve_directory
from tests.support.tls import Certificate, TunnelProxy, make_certificate, serve_tls

PAYLOAD = bytes(range(256)) * 4096  # 1 MiB
SETTINGS = OriginSettings(retry_for_s=0.0)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
async def served(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> ServedDirectory:
    for name in ("NO_PROXY", "ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    (tmp_path / "f").write_bytes(PAYLOAD)
    return await serve_directory(tmp_path, nursery)


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Origin]:
    origin = open_origin(url, settings=SETTINGS)
    try:
        yield origin
    finally:
        await origin.aclose()


async def read(origin: Origin) -> bytes:
    return await origin.read_document("f", limit_bytes=len(PAYLOAD))


@pytest.mark.command("openssl")
async def test_https_is_read_and_an_unknown_certificate_is_refused(
    served: ServedDirectory,
    certificate: Certificate,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = await nursery.start(serve_tls, served.proxy.port, certificate.server_context())
    async with opened(f"https://localhost:{port}") as stranger:
        with pytest.raises(OriginError, match="certificate is not trusted") as caught:
            await read(stranger)
    assert not caught.value.is_retryable
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.certificate))
    before = served.proxy.connection_count
    async with opened(f"https://localhost:{port}") as origin:
        assert await read(origin) == PAYLOAD
        assert await read(origin) == PAYLOAD
    assert served.proxy.connection_count == before + 1


@pytest.mark.command("openssl")
async def test_https_goes_through_a_tunnel_that_may_be_refused(
    served: ServedDirectory,
    certificate: Certificate,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy = TunnelProxy()
    proxy_port = await nursery.start(proxy.serve)
    port = await nursery.start(serve_tls, served.proxy.port, certificate.server_context())
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:p%40ss@127.0.0.1:{proxy_port}")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.certificate))
    async with opened(f"https://localhost:{port}") as origin:
        assert await read(origin) == PAYLOAD
    assert proxy.heads[0].startswith(f"CONNECT localhost:{port} HTTP/1.1\r\n")
    assert "basic bwu6cebzcw==" in proxy.heads[0].lower()
    proxy.refusal = b"HTTP/1.1 407 Who are you\r\ncontent-length: 0\r\n\r\n"
    async with opened(f"https://localhost:{port}") as origin:
        with pytest.raises(OriginError, match=r"no tunnel through the proxy \(407\)") as caught:
            await read(origin)
    assert "p@ss" not in caught.value.message


async def test_http_asks_a_proxy_with_the_whole_url(
    served: ServedDirectory, tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault proxy passes targets on, and the server below answers 404 to a whole URL: what
    matters is what was asked."""
    monkeypatch.setenv("http_proxy", f"http://me:canary@127.0.0.1:{served.proxy.port}")
    async with opened("http://store.example/bucket?sig=1") as origin:
        assert await origin.head("f") is None
    seen = served.proxy.requests[0]
    assert seen.target == "http://store.example/bucket/f?sig=1"
    assert seen.headers["host"] == "store.example"
    assert seen.headers["proxy-authorization"].startswith("Basic ")


async def test_a_connection_that_was_closed_while_idle_is_no_failure(
    nursery: trio.Nursery,
) -> None:
    """The server closes after each answer without having said so: at once, so that it is seen,
    and when the next request arrives, so that it is not."""
    connection_count = 0
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

    async def serve(client: trio.SocketStream) -> None:
        nonlocal connection_count
        connection_count += 1
        await client.receive_some(65536)
        await client.send_all(answer)
        if connection_count % 2 == 0:
            await client.receive_some(65536)
        await trio.aclose_forcefully(client)

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, serve, listeners)
    port = listeners[0].socket.getsockname()[1]
    async with opened(f"http://127.0.0.1:{port}") as origin:
        for _ in range(6):
            assert await origin.read_document("f", limit_bytes=2) == b"ok"
            await trio.sleep(0.01)
    assert connection_count == 6


async def test_an_early_refusal_of_a_large_body_is_heard(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store says no and closes before it has read what we send."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKID",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    body = b"<Error><Code>EntityTooLarge</Code></Error>"

    async def serve(client: trio.SocketStream) -> None:
        await client.receive_some(65536)
        head = f"HTTP/1.1 400 Bad\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        await client.send_all(head.encode() + body)
        await client.send_eof()
        with trio.move_on_after(1):
            while await client.receive_some(65536):
                pass
        await client.aclose()

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, serve, listeners)
    monkeypatch.setenv(
        "AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    )
    async with opened("s3://a-bucket") as origin:
        with pytest.raises(OriginError, match="400 EntityTooLarge"):
            await origin.put_document("f", bytes(8 << 20))
