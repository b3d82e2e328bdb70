"""A large object stored in parts, several at a time, going on where an earlier attempt stopped.

Every part is read again, even if the store has it: the reader is what notices that the file
changed, and a part counts as stored only if its size and its MD5 (the ETag that stores give a part)
fit. So a part of a store whose ETags are something else (KMS keys) is uploaded again, which costs
time and is never wrong. Content-MD5 lets the store refuse what was damaged on its way.

An upload that fails stays unfinished for the next attempt, except when the file changed. Buckets
should have a lifecycle rule that removes unfinished uploads after some days.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from urllib.parse import quote

import trio

from swarm.errors import ChangedError, NotFoundError, OriginError, SwarmError, UsageError
from swarm.origin.exchange import Answer
from swarm.origin.origin import MIB, PART_BYTES_MIN, PART_COUNT_MAX, PartSource
from swarm.origin.retry import retry_transient
from swarm.origin.s3_documents import (
    StoredPart,
    completion_document,
    is_error_document,
    parse_parts,
    parse_upload_id,
    parse_uploads,
)
from swarm.origin.s3_session import S3Session

ANSWER_BYTES_MAX = 8 * MIB  # A listing of 1,000 uploads or parts.
COMPLETE_TIMEOUT_S = 300.0  # A store may copy parts together before it answers.
ABORT_TIMEOUT_S = 10.0


class MultipartUpload:
    """One upload of one object. Used once."""

    def __init__(
        self,
        session: S3Session,
        full_key: str,
        shown: str,
        source: PartSource,
        progress: Callable[[int], None],
        resumed: Callable[[int], None] | None,
    ) -> None:
        self._session = session
        self._full_key = full_key
        self._shown = shown
        self._source = source
        self._progress = progress
        self._resumed = resumed
        self._part_count = -(-source.size // source.part_bytes)
        if source.part_bytes < PART_BYTES_MIN or self._part_count > PART_COUNT_MAX:
            raise UsageError(
                f"{shown}: {self._part_count} parts of {source.part_bytes} bytes; S3 takes at most "
                f"{PART_COUNT_MAX}, of at least {PART_BYTES_MIN} bytes"
            )
        self._upload_id = ""
        self._stored: dict[int, StoredPart] = {}
        self._etags = [""] * self._part_count
        self._next_index = 0
        self._failure: SwarmError | None = None
        self._completion_count = 0

    async def run(self) -> None:
        """Store the whole object. Raises what the module says and what the source raises."""
        await self._begin()
        try:
            await self._store_parts()
        except ChangedError:
            await self._abort()
            raise
        try:
            await retry_transient(self._complete, self._session.settings)
        except NotFoundError:
            # The answer to an attempt that succeeded was lost; the caller checks the object.
            if self._completion_count == 1:
                raise

    async def _begin(self) -> None:
        """Find the latest unfinished upload of this object, or begin one."""
        answer = await self._repeated("GET", "", f"uploads=&prefix={_quoted(self._full_key)}")
        uploads = [
            upload
            for upload in parse_uploads(answer.body, self._shown)
            if upload.key == self._full_key and upload.upload_id
        ]
        if uploads:
            self._upload_id = max(uploads, key=lambda upload: upload.initiated).upload_id
            await self._find_stored_parts()
            return
        answer = await self._repeated("POST", self._full_key, "uploads=")
        self._upload_id = parse_upload_id(answer.body, self._shown)

    async def _find_stored_parts(self) -> None:
        marker = ""
        for _ in range(PART_COUNT_MAX):
            query = f"uploadId={_quoted(self._upload_id)}"
            if marker:
                query = f"part-number-marker={_quoted(marker)}&{query}"
            answer = await self._repeated("GET", self._full_key, query)
            parts, marker = parse_parts(answer.body, self._shown)
            self._stored |= {part.number: part for part in parts}
            if not marker:
                return

    async def _store_parts(self) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(min(self._session.settings.upload_parts_in_flight, self._part_count)):
                nursery.start_soon(self._work, nursery.cancel_scope)
        if self._failure is not None:
            raise self._failure

    async def _work(self, scope: trio.CancelScope) -> None:
        """Take one part after the other; the first failure stops all workers."""
        while self._next_index < self._part_count:
            index = self._next_index
            self._next_index += 1
            try:
                await self._store_part(index)
            except SwarmError as error:
                self._failure = self._failure or error
                scope.cancel()
                return

    async def _store_part(self, index: int) -> None:
        part = await self._source.read_part(index)
        digest = await trio.to_thread.run_sync(_md5, part)
        stored = self._stored.get(index + 1)
        if stored is not None and (stored.size, stored.etag) == (len(part), digest.hex()):
            self._etags[index] = stored.etag
            if self._resumed is not None:
                self._resumed(len(part))
        else:
            query = f"partNumber={index + 1}&uploadId={_quoted(self._upload_id)}"
            headers = {"Content-MD5": base64.b64encode(digest).decode("ascii")}
            answer = await self._repeated("PUT", self._full_key, query, headers, part)
            self._etags[index] = answer.headers.get("etag", "").strip('"')
        self._progress(len(part))

    async def _complete(self) -> None:
        self._completion_count += 1
        query = f"uploadId={_quoted(self._upload_id)}"
        answer = await self._once(
            "POST",
            self._full_key,
            query,
            {"Content-Type": "application/xml"},
            completion_document(self._etags),
            first_byte_timeout_s=COMPLETE_TIMEOUT_S,
        )
        if is_error_document(answer.body):
            raise OriginError(
                f"{self._shown}: the store could not complete the upload",
                object_name=self._shown,
                is_retryable=True,
            )

    async def _abort(self) -> None:
        """Discard stored parts; a failure to do so leaves them to the bucket's lifecycle rule."""
        query = f"uploadId={_quoted(self._upload_id)}"
        deadline = trio.current_time() + ABORT_TIMEOUT_S
        with trio.CancelScope(deadline=deadline, shield=True):
            try:
                reply = await self._session.send(
                    "DELETE", self._full_key, shown=self._shown, query=query
                )
            except SwarmError:
                return
            await self._session.discard(reply, self._shown)

    async def _repeated(
        self,
        method: str,
        full_key: str,
        query: str,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> Answer:
        return await retry_transient(
            lambda: self._once(method, full_key, query, headers, body), self._session.settings
        )

    async def _once(
        self,
        method: str,
        full_key: str,
        query: str,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        first_byte_timeout_s: float | None = None,
    ) -> Answer:
        reply = await self._session.send(
            method,
            full_key,
            shown=self._shown,
            query=query,
            headers=headers,
            body=body,
            first_byte_timeout_s=first_byte_timeout_s,
        )
        if not reply.is_success:
            raise await self._session.error(reply, self._shown)
        exchange = await self._session.exchange()
        return await exchange.read_whole(reply, self._shown, limit_bytes=ANSWER_BYTES_MAX)


def _quoted(text: str) -> str:
    return quote(text, safe="~")


def _md5(payload: bytes) -> bytes:
    return hashlib.md5(payload, usedforsecurity=False).digest()
