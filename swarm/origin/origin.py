"""The origin: where versions are published to and where the first copy of each byte comes from.

One small interface over every store. It is cut so that no policy hides below it: `read_range` is
one attempt on one connection and says how it failed; who may ask, how often and what to do instead
is decided above (leases, the tracker, `swarm.agent.origin_client`). Documents, listings and
uploads, which only a publisher or a starting agent needs, repeat transient failures themselves,
under a deadline, because nobody above could do better.

A location is `s3://bucket/prefix` (any S3-compatible endpoint), `file:///dir`, or `https://` and
`http://` (read only). Keys are relative to it, `/`-separated, with no leading slash and no `.` or
`..` component; trailing slashes of the location make no difference.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from swarm.errors import OriginError, UsageError

MIB = 1 << 20

PART_BYTES_MIN = 5 * MIB  # S3 refuses smaller parts, the last one excepted.
PART_COUNT_MAX = 10_000  # S3's limit on the parts of one object.
PART_BYTES_DEFAULT = 16 * MIB
# The part size AWS advises for throughput; 8 in flight hold 128 MiB.


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object."""

    # Relative to the origin's location.
    key: str
    # Bytes.
    size: int
    # Opaque, without quotes; "" where the store has none. Never a content hash.
    etag: str


@dataclass(frozen=True, slots=True)
class OriginSettings:
    """How patient and how wide we are with an origin. Tests scale the times down."""

    # TCP and TLS each; a cloud answers in milliseconds, a dead address never.
    connect_timeout_s: float = 3.0
    # From a sent request to the first byte of its answer.
    first_byte_timeout_s: float = 15.0
    # A body that brings fewer than `progress_bytes` in this time is given up.
    idle_timeout_s: float = 20.0
    # What counts as progress, so that a drip of single bytes does not. 64 KiB in 20 s is 3 KiB/s.
    progress_bytes: int = 64 * 1024
    # A range must end within idle_timeout_s + length / this, whatever its progress.
    bytes_per_s_min: int = 64 * 1024
    # Documents, listings and parts of uploads repeat transient failures for so long.
    retry_for_s: float = 60.0
    # First pause before a retry, doubled each time up to the largest; both with full jitter.
    retry_pause_s: float = 0.5
    retry_pause_s_max: float = 10.0
    # Parts of one upload in flight; each holds one part in memory.
    upload_parts_in_flight: int = 4
    # HTTP_PROXY, HTTPS_PROXY and NO_PROXY apply to the origin (never to peers or the tracker).
    uses_proxy_environment: bool = True
    # Send unsigned requests to S3 (public buckets).
    is_anonymous: bool = False
    # The caller pays for S3 requests (header x-amz-request-payer).
    is_requester_pays: bool = False
    # More headers for https:// and http:// origins, such as Authorization. Never shown.
    http_headers: tuple[tuple[str, str], ...] = ()


class RangeSink(Protocol):
    """Takes the bytes of one range, in order and without gaps, in memory of its own: what comes
    from a connection is never copied on the way."""

    def room(self) -> memoryview | None:
        """Where the next bytes shall go, as many of them as fit; None while there is no room."""

    async def wait(self) -> None:
        """Until there is room. Raises what the sink cannot get over."""

    def filled(self, count: int) -> None:
        """The first `count` bytes of the room that was given last are here."""


class MemorySink:
    """A `RangeSink` that keeps a range of `length` bytes in memory."""

    def __init__(self, length: int) -> None:
        self.payload = bytearray(length)
        self._view = memoryview(self.payload)

    def room(self) -> memoryview | None:
        return self._view

    async def wait(self) -> None:
        raise AssertionError("there is room for the whole range")

    def filled(self, count: int) -> None:
        self._view = self._view[count:]


class PartSource(Protocol):
    """An object to upload, read part by part; several parts are read at the same time."""

    # Bytes of the object.
    size: int
    # Bytes of each part but the last; see `part_bytes_for`.
    part_bytes: int

    async def read_part(self, index: int) -> bytes:
        """Part `index`, `[index * part_bytes, …)`; asked for once. A SwarmError that it raises ends
        the upload and leaves no object (ChangedError also discards what was stored)."""


class Origin(Protocol):
    """A place that holds objects. Closed by `aclose`; used from one event loop."""

    # Shown to people: never with credentials or a query.
    url: str
    is_writable: bool

    async def read_document(self, key: str, *, limit_bytes: int) -> bytes:
        """A whole small object; transient failures are repeated. Raises NotFoundError, OriginError
        (also if it is larger than `limit_bytes`), AuthError."""

    async def read_range(
        self, key: str, offset: int, length: int, *, etag: str | None, sink: RangeSink
    ) -> str:
        """ONE attempt to read `[offset, offset + length)`; with `etag` only of that object.

        Returns the Content-Encoding that the answer carried, "" if none: the bytes may still be
        right, and if their digest is not, the reason can be named. After a failure a caller may go
        on from where the sink stopped. Raises OriginError (`is_retryable` says whether a new
        connection may help), OriginThrottledError, NotFoundError, AuthError.
        """

    async def head(self, key: str) -> ObjectInfo | None:
        """What is stored under `key`, or None. Raises OriginError, AuthError."""

    def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in key order. Read-only HTTP has no listing:
        OriginError."""

    async def put_document(self, key: str, payload: bytes, *, is_create_only: bool = False) -> None:
        """Store a small object whole. With `is_create_only` an object that exists stays: equal
        bytes are success, others raise ConflictError."""

    async def upload(
        self,
        key: str,
        source: PartSource,
        *,
        progress: Callable[[int], None],
        resumed: Callable[[int], None] | None = None,
    ) -> ObjectInfo:
        """Store a large object: one request when it fits in one part, else in parts, several at a
        time. Parts that an interrupted upload left are used again if their bytes are the same.

        `progress` is told the number of further bytes that are safely stored; `resumed`, if given,
        of those among them that were stored by the interrupted upload. The object appears whole or
        not at all. Raises OriginError, AuthError, IntegrityError (the store kept other
        bytes than it was given) and whatever `source` raises.
        """

    async def prepare(self) -> None:
        """Load what the first request would have to (libraries, credentials, certificates), so
        that a cold start does not pay for it when every node is busy. Raises what that request
        would raise; calling it is never needed."""

    async def aclose(self) -> None:
        """Close connections; no request may be in flight."""


def part_bytes_for(size: int) -> int:
    """A part size for an object of `size` bytes that every S3 accepts: 16 MiB, more above 156 GiB
    (whole MiB)."""
    least = -(-size // PART_COUNT_MAX)
    return max(PART_BYTES_DEFAULT, -(-least // MIB) * MIB)


def open_origin(url: str, *, settings: OriginSettings | None = None) -> Origin:
    """The origin at `url`. Opens no connection. Raises UsageError."""
    settings = settings or OriginSettings()
    scheme, separator, rest = url.partition("://")
    # Imported where they are needed: httpx and botocore take a quarter of a second to load.
    match scheme.lower() if separator else "":
        case "file":
            from swarm.origin.file_origin import open_file_origin

            return open_file_origin(rest)
        case "s3":
            from swarm.origin.s3 import open_s3_origin

            return open_s3_origin(rest, settings)
        case "https" | "http":
            from swarm.origin.http_origin import open_http_origin

            return open_http_origin(url, settings)
    raise UsageError(
        f"not an origin: {shown_url(url)!r}",
        hint="write s3://bucket/prefix, file:///directory, https://host/path or http://host/path",
    )


def shown_url(url: str) -> str:
    """`url` without what may be secret: user information, query and fragment."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    rest = rest.partition("?")[0].partition("#")[0]
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"


def checked_key(key: str) -> str:
    """`key`, if it stays below the location; raises OriginError. Keys can come from a document in
    the store itself, which must not lead out of it."""
    parts = key.split("/")
    if not key or "\0" in key or any(part in ("", ".", "..") for part in parts):
        raise OriginError(
            f"not a key of an object: {key[:200]!r}", object_name=key[:200], is_retryable=False
        )
    return key
