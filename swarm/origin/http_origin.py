"""An origin behind plain HTTP: a web server, a content network, a bucket with signed addresses.

Read only and without listings. A query in the location (an access signature) is sent with each
request and never shown; more headers (Authorization) come from the settings. Redirects are
followed, to other hosts without those headers and never from https to http.

ETags are not used: a mirror of a bucket has its own, and a replaced object shows by its digests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from urllib.parse import quote

import httpx

from swarm.errors import NotFoundError, OriginError, SwarmError, UsageError
from swarm.origin.answers import check_range_answer, status_error
from swarm.origin.exchange import Exchange, close_reply
from swarm.origin.origin import (
    ObjectInfo,
    OriginSettings,
    PartSource,
    RangeSink,
    checked_key,
    shown_url,
)
from swarm.origin.request import OriginRequest
from swarm.origin.retry import retry_transient
from swarm.origin.transport import OriginTransport, Reply

REDIRECTS_MAX = 5  # Hubs use one or two.
REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
PATH_SAFE = "/~!$&'()*+,;=:@"  # What a path may hold as it is, by RFC 3986.
BASE_HEADERS = {"accept-encoding": "identity", "user-agent": "weightswarm"}


def open_http_origin(url: str, settings: OriginSettings) -> HttpOrigin:
    """The read-only origin at `url`; raises UsageError."""
    try:
        location = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        raise UsageError(f"not a URL: {shown_url(url)!r}") from None
    if not location.host:
        raise UsageError(f"no host in {shown_url(url)!r}", hint="write https://host/path")
    return HttpOrigin(location, settings, Exchange(settings, OriginTransport(settings)))


class HttpOrigin:
    """See the module."""

    is_writable = False

    def __init__(self, location: httpx.URL, settings: OriginSettings, exchange: Exchange) -> None:
        self.url = shown_url(str(location)).rstrip("/")
        self._location = location
        self._path = location.raw_path.partition(b"?")[0].decode("ascii").rstrip("/")
        self._query = location.query.decode("ascii")
        self._settings = settings
        self._exchange = exchange

    async def read_document(self, key: str, *, limit_bytes: int) -> bytes:
        async def once() -> bytes:
            reply = await self._open("GET", key, {})
            if reply.status_code != 200:
                raise await self._status_error(reply, key)
            shown = self._shown(key)
            return (await self._exchange.read_whole(reply, shown, limit_bytes=limit_bytes)).body

        return await retry_transient(once, self._settings)

    async def read_range(
        self, key: str, offset: int, length: int, *, etag: str | None, sink: RangeSink
    ) -> str:
        range_header = {"range": f"bytes={offset}-{offset + length - 1}"}
        reply = await self._open("GET", key, range_header)
        if not reply.is_success:
            raise await self._status_error(reply, key)
        shown = self._shown(key)
        try:
            encoding = check_range_answer(reply, offset, length, shown)
        except OriginError:
            await close_reply(reply)
            await self._exchange.transport.renew()
            raise
        await self._exchange.read_body(reply, shown, length, sink)
        return encoding

    async def head(self, key: str) -> ObjectInfo | None:
        async def once() -> ObjectInfo | None:
            reply = await self._open("HEAD", key, {})
            if not reply.is_success:
                error = await self._status_error(reply, key)
                if isinstance(error, NotFoundError):
                    return None
                raise error
            await self._exchange.read_rest(reply, self._shown(key))
            return ObjectInfo(key=key, size=_length(reply, self._shown(key)), etag="")

        return await retry_transient(once, self._settings)

    def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        raise OriginError(f"{self.url} cannot be listed", object_name=self.url, is_retryable=False)

    async def put_document(self, key: str, payload: bytes, *, is_create_only: bool = False) -> None:
        raise self._read_only()

    async def upload(
        self,
        key: str,
        source: PartSource,
        *,
        progress: Callable[[int], None],
        resumed: Callable[[int], None] | None = None,
    ) -> ObjectInfo:
        raise self._read_only()

    async def prepare(self) -> None:
        return

    async def aclose(self) -> None:
        await self._exchange.aclose()

    def _read_only(self) -> UsageError:
        return UsageError(
            f"{self.url} is read only", hint="publish to the bucket behind it (s3:// or file://)"
        )

    def _shown(self, key: str) -> str:
        return f"{self.url}/{key}"

    async def _open(self, method: str, key: str, headers: dict[str, str]) -> Reply:
        path = f"{self._path}/{quote(checked_key(key), safe=PATH_SAFE)}"
        target = f"{path}?{self._query}" if self._query else path
        url = self._location.copy_with(raw_path=target.encode("ascii"))
        for _ in range(REDIRECTS_MAX):
            request = OriginRequest.to(method, str(url), self._headers(url) | headers)
            reply = await self._exchange.start(request, self._shown(key))
            if reply.status_code not in REDIRECT_STATUSES:
                return reply
            url = await self._redirected(reply, url, key)
        raise OriginError(
            f"{self._shown(key)}: more than {REDIRECTS_MAX} redirects",
            object_name=key,
            is_retryable=False,
        )

    async def _redirected(self, reply: Reply, url: httpx.URL, key: str) -> httpx.URL:
        await self._exchange.read_rest(reply, self._shown(key))
        target = reply.headers.get("location", "")
        try:
            new = url.join(target)
        except (httpx.InvalidURL, ValueError):
            new = url.copy_with(scheme="")
        if not target or new.scheme not in ("https", url.scheme):
            raise OriginError(
                f"{self._shown(key)}: redirected to {shown_url(target)[:200]!r}, not followed",
                object_name=key,
                is_retryable=False,
            )
        return new

    def _headers(self, url: httpx.URL) -> dict[str, str]:
        """Headers for a request to `url`; the settings' own only for the origin itself."""
        place = (url.scheme, url.host, url.port)
        if place != (self._location.scheme, self._location.host, self._location.port):
            return dict(BASE_HEADERS)
        return BASE_HEADERS | dict(self._settings.http_headers)

    async def _status_error(self, reply: Reply, key: str) -> SwarmError:
        shown = self._shown(key)
        await self._exchange.read_rest(reply, shown)
        return status_error(reply.status_code, reply.headers, shown)


def _length(reply: Reply, shown: str) -> int:
    text = reply.headers.get("content-length", "")
    if not text.isdecimal():
        raise OriginError(f"{shown}: no Content-Length", object_name=shown, is_retryable=False)
    return int(text)
