"""The connections below an origin: dialled, kept for a while, given up after a failure.

**New connections after a failure.** A store spreads over many addresses, and a connection that
failed says something about the one behind it. After `renew` no earlier connection is used again:
later requests dial, after a fresh look-up of the name.

**Proxies** come from the environment, for origins alone: a tunnel for https, whole URLs for http.

What other libraries log about requests could hold a signature or a token, so it is dropped whatever
level the process logs at.
"""

from __future__ import annotations

import base64
import logging
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import h11
import trio

from swarm.origin.connection import Headers, OriginConnection
from swarm.origin.origin import OriginSettings
from swarm.origin.proxy_environment import proxy_for
from swarm.origin.request import OriginRequest

KEEP_ALIVE_S = 15.0  # Below the 20 s after which S3 closes an idle connection.
TUNNEL_READ_BYTES = 4096

for _name in ("httpx", "httpcore", "botocore", "urllib3"):
    logging.getLogger(_name).setLevel(logging.WARNING)


class ProxyRefusedError(Exception):
    """The proxy did not open a tunnel; says its status."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a connection leads."""

    scheme: str
    host: str
    port: int
    # URL of the proxy in between, "" for none. May hold a password: never shown.
    proxy: str

    @property
    def is_forwarded(self) -> bool:
        """Whether a proxy reads the requests themselves, as it does without TLS."""
        return bool(self.proxy) and self.scheme == "http"


class Reply:
    """An answer whose head is here; its body is read by `read_into`. Close it in any case."""

    def __init__(self, status_code: int, headers: Headers, *, kept: bytes = b"") -> None:
        """With `kept` a body that has been read already."""
        self.status_code = status_code
        self.headers = headers
        self._kept = kept
        self._lent: _Lent | None = None

    @classmethod
    def over(cls, status_code: int, headers: Headers, lent: _Lent) -> Reply:
        """An answer whose body is still on its connection."""
        reply = cls(status_code, headers)
        reply._lent = lent
        return reply

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    async def read_into(self, room: memoryview) -> int:
        """Put further bytes of the body into `room` and say how many, 0 after the last."""
        if self._lent is not None:
            return await self._lent.connection.read_into(room)
        count = min(len(room), len(self._kept))
        room[:count] = self._kept[:count]
        self._kept = self._kept[count:]
        return count

    async def aclose(self) -> None:
        """Give the connection back, or close it if the body was not read to its end."""
        lent, self._lent = self._lent, None
        if lent is not None:
            await lent.transport.take_back(lent)


@dataclass(frozen=True, slots=True)
class _Lent:
    """A connection in use."""

    transport: OriginTransport
    target: Target
    connection: OriginConnection


class OriginTransport:
    """See the module. Owned by one origin. Raises what sockets, trio and h11 raise."""

    def __init__(
        self,
        settings: OriginSettings,
        *,
        ca_bundle: str = "",
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._settings = settings
        self._ca_bundle = ca_bundle
        self._environment = environment
        self._ssl_context: ssl.SSLContext | None = None
        self._generation = 0
        # The last one was used last.
        self._idle: dict[Target, list[OriginConnection]] = {}

    async def send(
        self, request: OriginRequest, body: bytes, *, first_byte_timeout_s: float
    ) -> Reply:
        """Send a request and wait for the head of its answer."""
        target = self._target(request)
        connection = await self._pick_idle(target)
        if connection is not None and request.method != "POST":
            try:
                return await self._send_over(
                    connection, target, request, body, first_byte_timeout_s
                )
            except (ConnectionError, trio.BrokenResourceError, h11.RemoteProtocolError):
                # The other side closed it at the same moment; that is no failure of the origin.
                connection = None
        if connection is None:
            connection = OriginConnection(await self._dial(target), self._generation)
        return await self._send_over(connection, target, request, body, first_byte_timeout_s)

    async def take_back(self, lent: _Lent) -> None:
        """Keep a connection for the next request, if it is good for one."""
        connection = lent.connection
        if connection.is_reusable and connection.generation == self._generation:
            connection.idle_at = trio.current_time()
            self._idle.setdefault(lent.target, []).append(connection)
        else:
            await connection.aclose()

    async def renew(self) -> None:
        """Later requests open new connections."""
        self._generation += 1
        idle, self._idle = self._idle, {}
        # Shielded, for a cancellation must not leave the rest of them open; closing never waits.
        with trio.CancelScope(shield=True):
            for connections in idle.values():
                for connection in connections:
                    await connection.aclose()

    async def aclose(self) -> None:
        await self.renew()

    async def _send_over(
        self,
        connection: OriginConnection,
        target: Target,
        request: OriginRequest,
        body: bytes,
        first_byte_timeout_s: float,
    ) -> Reply:
        shown_target = request.target
        headers = [("Host", request.place), *request.headers.items()]
        if target.is_forwarded:
            shown_target = f"{request.scheme}://{request.place}{request.target}"
            headers += _proxy_headers(target.proxy)
        try:
            head = await connection.request(
                request.method.encode("ascii"),
                shown_target.encode("ascii"),
                [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers],
                body,
                write_timeout_s=self._settings.idle_timeout_s,
                first_byte_timeout_s=first_byte_timeout_s,
            )
        except BaseException:
            with trio.CancelScope(shield=True):
                await connection.aclose()
            raise
        return Reply.over(head.status_code, head.headers, _Lent(self, target, connection))

    async def _pick_idle(self, target: Target) -> OriginConnection | None:
        idle = self._idle.get(target, [])
        while idle:
            connection = idle.pop()
            is_old = trio.current_time() - connection.idle_at > KEEP_ALIVE_S
            if not is_old and not connection.has_ended():
                return connection
            await connection.aclose()
        return None

    def _target(self, request: OriginRequest) -> Target:
        place = (request.scheme, request.host, request.port)
        proxy = None
        if self._settings.uses_proxy_environment:
            proxy = proxy_for(*place, self._environment)
        return Target(*place, proxy or "")

    async def _dial(self, target: Target) -> trio.abc.Stream:
        if not target.proxy:
            stream: trio.abc.Stream = await self._connect(target.host, target.port)
        else:
            stream = await self._dial_proxy(target)
        if target.scheme == "https":
            stream = await self._start_tls(stream, target.host)
        return stream

    async def _dial_proxy(self, target: Target) -> trio.abc.Stream:
        parts = urlsplit(target.proxy)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        stream: trio.abc.Stream = await self._connect(host, port)
        if parts.scheme == "https":
            stream = await self._start_tls(stream, host)
        if target.scheme == "https":
            await self._open_tunnel(stream, target)
        return stream

    async def _open_tunnel(self, stream: trio.abc.Stream, target: Target) -> None:
        host = f"[{target.host}]" if ":" in target.host else target.host
        place = f"{host}:{target.port}"
        http = h11.Connection(h11.CLIENT)
        headers = [("host", place), *_proxy_headers(target.proxy)]
        request = http.send(h11.Request(method=b"CONNECT", target=place, headers=headers))
        assert request is not None
        try:
            with trio.fail_after(self._settings.first_byte_timeout_s):
                await stream.send_all(request)
                while (event := http.next_event()) is h11.NEED_DATA:
                    http.receive_data(bytes(await stream.receive_some(TUNNEL_READ_BYTES)))
            if not isinstance(event, h11.Response) or event.status_code != 200:
                status = getattr(event, "status_code", "no answer")
                raise ProxyRefusedError(f"no tunnel through the proxy ({status})")
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise

    async def _connect(self, host: str, port: int) -> trio.SocketStream:
        limit_s = self._settings.connect_timeout_s
        with trio.move_on_after(limit_s):
            return await trio.open_tcp_stream(host, port)
        raise TimeoutError(f"no connection within {limit_s:g} s")

    async def _start_tls(self, stream: trio.abc.Stream, host: str) -> trio.abc.Stream:
        limit_s = self._settings.connect_timeout_s
        secured = trio.SSLStream(stream, self._tls(), server_hostname=host, https_compatible=True)
        try:
            with trio.move_on_after(limit_s):
                await secured.do_handshake()
                return secured
            raise TimeoutError(f"no TLS within {limit_s:g} s")
        except BaseException:
            await trio.aclose_forcefully(secured)
            raise

    def _tls(self) -> ssl.SSLContext:
        """httpx's own roots, or the bundle that the environment names."""
        if self._ssl_context is None:
            bundle = self._ca_bundle
            if bundle:
                self._ssl_context = ssl.create_default_context(cafile=bundle)
            else:
                import httpx  # Half a tenth of a second, which plain http need not pay.

                self._ssl_context = httpx.create_ssl_context()
        return self._ssl_context


def _proxy_headers(url: str) -> list[tuple[str, str]]:
    """Who we are, if the proxy's URL says so."""
    parts = urlsplit(url)
    if parts.username is None:
        return []
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return [("proxy-authorization", "Basic " + base64.b64encode(pair).decode("ascii"))]
