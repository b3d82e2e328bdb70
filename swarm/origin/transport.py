"""The connections below an origin: httpx requests over httpcore, with two changes.

**Wide reads.** httpcore asks its stream for 64 KiB at a time. Asking for 1 MiB takes what the
kernel holds in one call; `benchmarks.s3_single` measures both in one run.

**New connections after a failure.** A store spreads over many addresses, and a connection that
failed says something about the one behind it. `renew` retires the pool: requests in flight keep
their connections, later ones open new ones after a fresh look-up of the name.

Proxies come from the environment, for origins alone. What the libraries log about requests could
hold a signature or a token, so it is dropped whatever level the process logs at.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from urllib.parse import unquote, urlsplit

import httpcore
import httpx
import trio

from swarm.origin.origin import MIB, OriginSettings
from swarm.origin.proxy_environment import proxy_for

READ_BYTES = MIB  # What one receive may take; see the module.
KEEP_ALIVE_S = 15.0  # Below the 20 s after which S3 closes an idle connection.
SOCKET_OPTION = (
    tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]
)

for _name in ("httpx", "httpcore", "botocore", "urllib3"):
    logging.getLogger(_name).setLevel(logging.WARNING)


class WideStream(httpcore.AsyncNetworkStream):
    """A network stream that reads at least `read_bytes` when it is asked for less."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, read_bytes: int) -> None:
        self._stream = stream
        self._read_bytes = read_bytes
        self._is_closed = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._stream.read(max(max_bytes, self._read_bytes), timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        self._is_closed = True
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        inner = await self._stream.start_tls(ssl_context, server_hostname, timeout)
        return WideStream(inner, self._read_bytes)

    def get_extra_info(self, info: str) -> object:
        if info == "is_readable" and self._is_closed:
            return True  # A pool asks this before it uses a connection again; its end is readable.
        return self._stream.get_extra_info(info)


class WideBackend(httpcore.AsyncNetworkBackend):
    """Opens `WideStream`s on trio."""

    def __init__(self, read_bytes: int) -> None:
        self._backend = httpcore.TrioBackend()
        self._read_bytes = read_bytes

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._backend.connect_tcp(host, port, timeout, local_address, socket_options)
        return WideStream(stream, self._read_bytes)

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class _Generation:
    """One pool of connections and how many exchanges use it; closed when retired and unused."""

    def __init__(self, pool: httpcore.AsyncConnectionPool) -> None:
        self.pool = pool
        self._user_count = 0
        self._is_retired = False

    def enter(self) -> None:
        self._user_count += 1

    async def leave(self) -> None:
        self._user_count -= 1
        await self._close_if_unused()

    async def retire(self) -> None:
        self._is_retired = True
        await self._close_if_unused()

    async def _close_if_unused(self) -> None:
        if self._is_retired and self._user_count == 0:
            await self.pool.aclose()


class _Body(httpx.AsyncByteStream):
    """The body of an answer; leaves its generation once closed."""

    def __init__(self, response: httpcore.Response, generation: _Generation) -> None:
        self._response = response
        self._generation: _Generation | None = generation

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._response.aiter_stream()

    async def aclose(self) -> None:
        generation, self._generation = self._generation, None
        if generation is not None:
            try:
                await self._response.aclose()
            finally:
                await generation.leave()


class OriginTransport(httpx.AsyncBaseTransport):
    """See the module. Raises httpcore's errors; `swarm.origin.exchange` translates them."""

    def __init__(
        self,
        settings: OriginSettings,
        *,
        ca_bundle: str = "",
        read_bytes: int = READ_BYTES,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._settings = settings
        self._ca_bundle = ca_bundle
        self._read_bytes = read_bytes
        self._environment = environment
        self._ssl_context: ssl.SSLContext | None = None
        # By URL of the proxy, "" for none.
        self._generations: dict[str, _Generation] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        generation = self._generation(self._proxy(url))
        generation.enter()
        try:
            response = await generation.pool.handle_async_request(
                httpcore.Request(
                    method=request.method,
                    url=httpcore.URL(
                        scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
                    ),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        except BaseException:
            with trio.CancelScope(shield=True):
                await generation.leave()
            raise
        return httpx.Response(
            status_code=response.status,
            headers=response.headers,
            stream=_Body(response, generation),
            extensions=response.extensions,
        )

    async def renew(self) -> None:
        """Later requests open new connections."""
        retired = list(self._generations.values())
        self._generations.clear()
        for generation in retired:
            await generation.retire()

    async def aclose(self) -> None:
        await self.renew()

    def _proxy(self, url: httpx.URL) -> str:
        if not self._settings.uses_proxy_environment:
            return ""
        port = url.port or (443 if url.scheme == "https" else 80)
        return proxy_for(url.scheme, url.host, port, self._environment) or ""

    def _generation(self, proxy_url: str) -> _Generation:
        generation = self._generations.get(proxy_url)
        if generation is None:
            generation = _Generation(self._open_pool(proxy_url))
            self._generations[proxy_url] = generation
        return generation

    def _open_pool(self, proxy_url: str) -> httpcore.AsyncConnectionPool:
        return httpcore.AsyncConnectionPool(
            ssl_context=self._tls(),
            proxy=_proxy(proxy_url) if proxy_url else None,
            # Leases bound the requests in flight; a second bound here would only hide a wait.
            max_connections=None,
            max_keepalive_connections=None,
            keepalive_expiry=KEEP_ALIVE_S,
            http1=True,
            http2=False,
            network_backend=WideBackend(self._read_bytes),
        )

    def _tls(self) -> ssl.SSLContext:
        """httpx's own roots, or the bundle that the environment names."""
        if self._ssl_context is None:
            bundle = self._ca_bundle
            self._ssl_context = (
                ssl.create_default_context(cafile=bundle) if bundle else httpx.create_ssl_context()
            )
        return self._ssl_context


def _proxy(url: str) -> httpcore.Proxy:
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    auth = None
    if parts.username is not None:
        auth = (unquote(parts.username).encode(), unquote(parts.password or "").encode())
    return httpcore.Proxy(url=f"{parts.scheme}://{host}{port}", auth=auth)
