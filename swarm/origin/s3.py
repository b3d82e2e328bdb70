"""An origin in a bucket, at Amazon or any S3-compatible endpoint.

Requests are plain: no aws-chunked bodies, no checksum trailers, no SDK. `S3Session` signs and sends
them; this file says which request does what, and `multipart` moves large objects. Ranges carry
`If-Match`, so a replaced object fails at once instead of by its digests.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import AsyncIterator, Callable
from urllib.parse import quote

import trio

from swarm.errors import ConflictError, IntegrityError, NotFoundError, OriginError, UsageError
from swarm.origin.answers import check_range_answer
from swarm.origin.exchange import Answer, close_reply
from swarm.origin.multipart import MultipartUpload
from swarm.origin.origin import (
    MIB,
    ObjectInfo,
    OriginSettings,
    PartSource,
    RangeSink,
    checked_key,
)
from swarm.origin.retry import retry_transient
from swarm.origin.s3_documents import parse_listing
from swarm.origin.s3_session import S3Session
from swarm.origin.transport import Reply

LISTING_BYTES_MAX = 8 * MIB  # 1,000 keys of 1,024 bytes, each byte percent-encoded, and the tags.
LISTING_KEYS = 1000  # The most that S3 gives in one answer.
ANSWER_BYTES_MAX = MIB  # Answers to writes are a few hundred bytes.
BUCKET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,254}")  # Old buckets had upper case and _.


def open_s3_origin(rest: str, settings: OriginSettings) -> S3Origin:
    """The origin behind `s3://` + `rest`; raises UsageError."""
    bucket, _, prefix = rest.partition("/")
    if not BUCKET_NAME.fullmatch(bucket) or "?" in rest or "#" in rest:
        raise UsageError(
            f"not a bucket and prefix: {'s3://' + rest.partition('?')[0]!r}",
            hint="write s3://bucket/prefix; the endpoint comes from AWS_ENDPOINT_URL_S3",
        )
    prefix = "/".join(part for part in prefix.split("/") if part)
    if any(part in (".", "..") for part in prefix.split("/")):
        raise UsageError(f"a prefix has no . or .. in it: {'s3://' + rest!r}")
    return S3Origin(bucket, prefix, settings)


class S3Origin:
    """Objects of one bucket below one prefix; see the module."""

    is_writable = True

    def __init__(self, bucket: str, prefix: str, settings: OriginSettings) -> None:
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._prefix = prefix + "/" if prefix else ""
        self._settings = settings
        self._session = S3Session(bucket, settings)

    async def read_document(self, key: str, *, limit_bytes: int) -> bytes:
        async def once() -> bytes:
            return (await self._whole("GET", key, limit_bytes=limit_bytes)).body

        return await retry_transient(once, self._settings)

    async def read_range(
        self, key: str, offset: int, length: int, *, etag: str | None, sink: RangeSink
    ) -> str:
        shown = self._shown(key)
        headers = {"Range": f"bytes={offset}-{offset + length - 1}"}
        if etag:
            headers["If-Match"] = f'"{etag}"'
        reply = await self._session.send("GET", self._full_key(key), shown=shown, headers=headers)
        if not reply.is_success:
            raise await self._session.error(reply, shown)
        exchange = await self._session.exchange()
        try:
            encoding = check_range_answer(reply, offset, length, shown)
        except OriginError:
            await close_reply(reply)
            await exchange.transport.renew()
            raise
        await exchange.read_body(reply, shown, length, sink)
        return encoding

    async def head(self, key: str) -> ObjectInfo | None:
        async def once() -> ObjectInfo | None:
            try:
                return await self._head(key)
            except NotFoundError as error:
                if error.object_name == self._shown(key):
                    return None
                raise

        return await retry_transient(once, self._settings)

    async def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        token = ""
        while True:
            page = parse_listing(await self._list_page(prefix, token), self.url)
            for info in page.objects:
                yield ObjectInfo(info.key.removeprefix(self._prefix), info.size, info.etag)
            if not page.next_token or page.next_token == token:
                return
            token = page.next_token

    async def put_document(self, key: str, payload: bytes, *, is_create_only: bool = False) -> None:
        condition = {"If-None-Match": "*"} if is_create_only else {}

        async def once() -> bool:
            return await self._put(key, payload, condition)

        if await retry_transient(once, self._settings):
            return
        if await self.read_document(key, limit_bytes=len(payload) + MIB) != payload:
            raise ConflictError(
                f"{self._shown(key)} exists with other bytes", object_name=self._shown(key)
            )

    async def upload(
        self,
        key: str,
        source: PartSource,
        *,
        progress: Callable[[int], None],
        resumed: Callable[[int], None] | None = None,
    ) -> ObjectInfo:
        if source.size <= source.part_bytes:
            payload = await source.read_part(0) if source.size else b""
            await self.put_document(key, payload)
            progress(len(payload))
        else:
            upload = MultipartUpload(
                self._session, self._full_key(key), self._shown(key), source, progress, resumed
            )
            await upload.run()
        return await self._check_stored(key, source.size)

    async def prepare(self) -> None:
        await self._session.prepare()

    async def aclose(self) -> None:
        await self._session.aclose()

    def _full_key(self, key: str) -> str:
        return self._prefix + checked_key(key)

    def _shown(self, key: str) -> str:
        return f"{self.url}/{key}"

    async def _whole(
        self,
        method: str,
        key: str,
        *,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        limit_bytes: int = ANSWER_BYTES_MAX,
    ) -> Answer:
        """The answer to a request on an object, read whole; raises what its status means."""
        shown = self._shown(key)
        reply = await self._session.send(
            method, self._full_key(key), shown=shown, headers=headers, body=body
        )
        if not reply.is_success:
            raise await self._session.error(reply, shown)
        exchange = await self._session.exchange()
        return await exchange.read_whole(reply, shown, limit_bytes=limit_bytes)

    async def _head(self, key: str) -> ObjectInfo:
        shown = self._shown(key)
        reply = await self._session.send("HEAD", self._full_key(key), shown=shown)
        if reply.status_code in (400, 403):
            # An answer to HEAD has no body and so does not say why; one byte's GET does.
            await self._session.discard(reply, shown)
            headers = {"Range": "bytes=0-0"}
            reply = await self._session.send(
                "GET", self._full_key(key), shown=shown, headers=headers
            )
        if not reply.is_success:
            raise await self._session.error(reply, shown)
        await self._session.discard(reply, shown)
        return ObjectInfo(key, _size(reply, shown), reply.headers.get("etag", "").strip('"'))

    async def _list_page(self, prefix: str, token: str) -> bytes:
        query = {
            "continuation-token": token,
            "encoding-type": "url",
            "list-type": "2",
            "max-keys": str(LISTING_KEYS),
            "prefix": self._prefix + prefix,
        }
        # Signed as it stands: every reserved character must be percent-encoded, slashes too.
        text = "&".join(
            f"{name}={quote(value, safe='~')}" for name, value in query.items() if value
        )

        async def once() -> bytes:
            reply = await self._session.send("GET", "", shown=self.url, query=text)
            if not reply.is_success:
                raise await self._session.error(reply, self.url)
            exchange = await self._session.exchange()
            answer = await exchange.read_whole(reply, self.url, limit_bytes=LISTING_BYTES_MAX)
            return answer.body

        return await retry_transient(once, self._settings)

    async def _put(self, key: str, payload: bytes, condition: dict[str, str]) -> bool:
        """Store; False if the condition says that there is an object already."""
        shown = self._shown(key)
        digest = await trio.to_thread.run_sync(_md5, payload)
        headers = {"Content-MD5": base64.b64encode(digest).decode("ascii")} | condition
        reply = await self._session.send(
            "PUT", self._full_key(key), shown=shown, headers=headers, body=payload
        )
        if condition and reply.status_code in (409, 412):
            await self._session.discard(reply, shown)
            return False
        if condition and reply.status_code == 501:
            return await self._put_if_absent(reply, key, payload)
        if not reply.is_success:
            raise await self._session.error(reply, shown)
        await self._session.discard(reply, shown)
        return True

    async def _put_if_absent(self, reply: Reply, key: str, payload: bytes) -> bool:
        """For stores without conditional writes: two writers in the same instant may both win."""
        await self._session.discard(reply, self._shown(key))
        return await self.head(key) is None and await self._put(key, payload, {})

    async def _check_stored(self, key: str, size: int) -> ObjectInfo:
        info = await self.head(key)
        if info is None or info.size != size:
            found = "nothing" if info is None else f"{info.size} bytes"
            raise IntegrityError(
                f"{self._shown(key)}: the store keeps {found} of an object of {size} bytes",
                object_name=self._shown(key),
                hint="the store or a proxy before it changes what is uploaded",
            )
        return info


def _size(reply: Reply, shown: str) -> int:
    """Bytes of the object, from an answer to HEAD or to a range."""
    text = reply.headers.get("content-range", "").rpartition("/")[2]
    text = text or reply.headers.get("content-length", "")
    if not text.isdecimal():
        raise OriginError(f"{shown}: no size in the answer", object_name=shown, is_retryable=False)
    return int(text)


def _md5(payload: bytes) -> bytes:
    return hashlib.md5(payload, usedforsecurity=False).digest()
