"""One request and its answer, under deadlines, with the library's errors in our words.

Each wait has its own limit: connecting, the first byte, progress of the body, and the body as a
whole. Progress is counted in bytes rather than in reads, so a drip of single bytes ends too. Time
that the receiver of the bytes needs (a full disk queue, a rate limit) is not the origin's.
"""

from __future__ import annotations

import math
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import h11
import trio

from swarm.errors import OriginError
from swarm.origin.answers import content_encoding, wrong_body
from swarm.origin.connection import Headers
from swarm.origin.origin import OriginSettings, RangeSink
from swarm.origin.request import OriginRequest
from swarm.origin.transport import OriginTransport, ProxyRefusedError, Reply

ERROR_BODY_BYTES_MAX = 64 * 1024  # An S3 error is under 2 KiB; a proxy's page may be larger.
DOCUMENT_READ_BYTES = 64 * 1024  # Most documents and all errors are smaller.
DEADLINE_LAG = 0.05  # A body without progress is given up so much of its time early.
BROKEN = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError)
# How a connection fails.


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that was read whole."""

    status: int
    headers: Headers
    body: bytes


class Exchange:
    """Sends requests over one transport. Owned by one origin."""

    def __init__(self, settings: OriginSettings, transport: OriginTransport) -> None:
        self.settings = settings
        self.transport = transport

    async def start(
        self,
        request: OriginRequest,
        shown: str,
        *,
        body: bytes = b"",
        first_byte_timeout_s: float | None = None,
    ) -> Reply:
        """Send, and wait for the answer's head; the caller closes the reply. Raises OriginError."""
        patience_s = first_byte_timeout_s or self.settings.first_byte_timeout_s
        try:
            return await self.transport.send(request, body, first_byte_timeout_s=patience_s)
        except trio.TooSlowError as error:
            await self.transport.renew()
            raise OriginError(
                f"{shown}: no answer within {patience_s:g} s", object_name=shown, is_retryable=True
            ) from error
        except (*BROKEN, ProxyRefusedError) as error:
            await self.transport.renew()
            raise _transport_error(error, shown) from error

    async def read_whole(self, reply: Reply, shown: str, *, limit_bytes: int) -> Answer:
        """The body of a small answer; closes the reply. Raises OriginError, also if the body was
        re-encoded."""
        if reply.is_success and content_encoding(reply.headers):
            await close_reply(reply)
            raise wrong_body(reply.headers, shown, "not as it is stored")
        sink = _DocumentSink(shown, limit_bytes)
        await self.read_body(reply, shown, None, sink, length_expected=limit_bytes)
        return Answer(reply.status_code, reply.headers, sink.payload())

    async def read_rest(self, reply: Reply, shown: str) -> bytes:
        """What a small answer says beyond its status, b"" if that cannot be had; closes the reply.
        A reply that is closed unread costs its connection."""
        try:
            limit = ERROR_BODY_BYTES_MAX
            return (await self.read_whole(reply, shown, limit_bytes=limit)).body
        except OriginError:
            return b""

    async def read_body(
        self,
        reply: Reply,
        shown: str,
        length: int | None,
        sink: RangeSink,
        *,
        length_expected: int = 0,
    ) -> None:
        """Give the body to `sink`; closes the reply. `length` is what it must have, None if any
        will do (then `length_expected` sizes the deadline). Raises OriginError, and what the sink
        raises."""
        done = 0
        try:
            with trio.CancelScope() as scope:
                deadline = BodyDeadline(scope, self.settings, length or length_expected)
                while length is None or done < length:
                    room = sink.room()
                    if room is None:
                        with deadline.paused():
                            await sink.wait()
                        continue
                    count = await reply.read_into(room if length is None else room[: length - done])
                    if not count:
                        break
                    deadline.received(count)
                    done += count
                    sink.filled(count)
                if done == length and await reply.read_into(memoryview(bytearray(1))):
                    raise wrong_body(reply.headers, shown, f"more than {length} bytes")
            if scope.cancelled_caught:
                raise OriginError(
                    f"{shown}: the body stalled after {done} bytes",
                    object_name=shown,
                    is_retryable=True,
                )
            if length is not None and done < length:
                raise wrong_body(reply.headers, shown, f"{done} of {length} bytes")
        except BROKEN as error:
            await self.transport.renew()
            of = f" of {length}" if length else ""
            raise wrong_body(reply.headers, shown, f"cut after {done} bytes{of}") from error
        except OriginError:
            await self.transport.renew()
            raise
        finally:
            await close_reply(reply)

    async def aclose(self) -> None:
        await self.transport.aclose()


class BodyDeadline:
    """Moves the deadline of the scope around a body; see the module."""

    def __init__(self, scope: trio.CancelScope, settings: OriginSettings, length: int) -> None:
        self._scope = scope
        self._idle_timeout_s = settings.idle_timeout_s
        self._progress_bytes = settings.progress_bytes
        now = trio.current_time()
        self._idle_at = now + settings.idle_timeout_s
        self._end_at = now + settings.idle_timeout_s + length / settings.bytes_per_s_min
        self._unsettled_bytes = 0
        self._apply()

    def received(self, count: int) -> None:
        """`count` more bytes are here."""
        self._unsettled_bytes += count
        if self._unsettled_bytes >= self._progress_bytes:
            self._unsettled_bytes = 0
            self._idle_at = trio.current_time() + self._idle_timeout_s
            # Setting it costs as much as all else that is done for a read; it may be a little old.
            if self._idle_at - self._scope.deadline > DEADLINE_LAG * self._idle_timeout_s:
                self._apply()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The time inside does not count."""
        started_at = trio.current_time()
        self._scope.deadline = math.inf
        try:
            yield
        finally:
            spent_s = trio.current_time() - started_at
            self._idle_at += spent_s
            self._end_at += spent_s
            self._apply()

    def _apply(self) -> None:
        self._scope.deadline = min(self._idle_at, self._end_at)


class _DocumentSink:
    """A `RangeSink` for a body of unknown length."""

    def __init__(self, shown: str, limit_bytes: int) -> None:
        self._shown = shown
        self._limit_bytes = limit_bytes
        self._pieces: list[bytes] = []
        self._length = 0
        self._room = memoryview(bytearray(DOCUMENT_READ_BYTES))

    def payload(self) -> bytes:
        return b"".join(self._pieces)

    def room(self) -> memoryview | None:
        return self._room

    async def wait(self) -> None:
        raise AssertionError("there is always room")

    def filled(self, count: int) -> None:
        self._length += count
        if self._length > self._limit_bytes:
            raise OriginError(
                f"{self._shown} is larger than {self._limit_bytes} bytes, which it should never be",
                object_name=self._shown,
                is_retryable=False,
            )
        self._pieces.append(bytes(self._room[:count]))


async def close_reply(reply: Reply) -> None:
    """Give the connection back, or close it if the body was not read to its end."""
    with trio.CancelScope(shield=True):
        await reply.aclose()


def is_name_unknown(error: BaseException | None) -> bool:
    """Whether a connection failed because its host name does not resolve."""
    return any(isinstance(cause, socket.gaierror) for cause in _causes(error))


def _transport_error(error: Exception, shown: str) -> OriginError:
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return OriginError(
                f"{shown}: its certificate is not trusted: {cause.verify_message}",
                object_name=shown,
                hint="name your own authority's file in SSL_CERT_FILE (or AWS_CA_BUNDLE for s3)",
                is_retryable=False,
            )
        if isinstance(cause, socket.gaierror):
            return OriginError(
                f"{shown}: its name does not resolve ({cause.strerror})",
                object_name=shown,
                hint="check the URL or the endpoint setting",
                is_retryable=True,
            )
    reason = str(error) or type(error).__name__
    return OriginError(f"{shown}: {reason}", object_name=shown, is_retryable=True)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(10):
        if error is None:
            return
        yield error
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        else:
            error = error.__cause__ or error.__context__
