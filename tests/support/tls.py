"""TLS before a plain server, and a proxy that opens tunnels: real sockets, fresh keys."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import trio

READ_BYTES = 64 * 1024
HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate for localhost and 127.0.0.1 that signs itself."""

    certificate: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


def make_certificate(directory: Path) -> Certificate:
    """Needs the program openssl."""
    made = Certificate(directory / "certificate.pem", directory / "key.pem")
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
            "-nodes", "-days", "2", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-keyout", made.key, "-out", made.certificate,
        ],
        check=True,
        capture_output=True,
        timeout=30,
    )  # fmt: skip
    return made


async def serve_tls(
    upstream_port: int,
    context: ssl.SSLContext,
    *,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Take TLS off what arrives and pass it on; the started value is the port."""

    async def serve(client: trio.SSLStream[trio.SocketStream]) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", upstream_port) as server:
            await _relay(client, server)

    plain = await trio.open_tcp_listeners(0, host="127.0.0.1")
    secured = [trio.SSLListener(one, context, https_compatible=True) for one in plain]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, secured)
        task_status.started(int(plain[0].socket.getsockname()[1]))


@dataclass(slots=True)
class TunnelProxy:
    """Opens a tunnel for each CONNECT, or answers `refusal`; keeps the heads that it saw."""

    heads: list[str] = field(default_factory=list)
    refusal: bytes = b""

    async def serve(self, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """The started value is the port."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, self._serve_client, listeners)
            task_status.started(int(listeners[0].socket.getsockname()[1]))

    async def _serve_client(self, client: trio.SocketStream) -> None:
        head = b""
        while HEAD_END not in head:
            head += bytes(await client.receive_some(READ_BYTES))
        self.heads.append(head.decode())
        if self.refusal:
            await client.send_all(self.refusal)
            return
        host, _, port = head.split()[1].decode().rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as server:
            await client.send_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await _relay(client, server)


async def _relay(client: trio.abc.Stream, server: trio.abc.Stream) -> None:
    """Both ways, until either side ends."""
    async with trio.open_nursery() as nursery:
        for source, target in ((client, server), (server, client)):
            nursery.start_soon(_pass_on, source, target, nursery.cancel_scope)


async def _pass_on(
    source: trio.abc.Stream, target: trio.abc.Stream, scope: trio.CancelScope
) -> None:
    try:
        while piece := await source.receive_some(READ_BYTES):
            await target.send_all(piece)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # The tests break connections on purpose.
    scope.cancel()
