"""One request that is being served: its header, its place in a file, and how far it is."""

from __future__ import annotations

import contextlib
import errno
import os

from swarm.errors import NotFoundError, StoreError
from swarm.protocol.codec import encode
from swarm.protocol.messages import Chunk, Request
from swarm.protocol.stripes import Stripe
from swarm.store.chunk_store import Span, VersionStore

SLICE_BYTES = 1 << 20
"""At most this much per system call, so that the loop is never held longer than a copy of it
takes."""
_PROBE = bytearray(1)


class OutgoingPart:
    """Made when its turn comes; `close` gives the file back."""

    __slots__ = (
        "_closing",
        "_position",
        "_span",
        "_unit_end",
        "_units",
        "_warm_end",
        "header",
        "sent_bytes",
        "share",
    )  # fmt: skip

    def __init__(self, store: VersionStore | None, request: Request) -> None:
        """Blocks on the store; raises NotFoundError, StoreError."""
        if store is None or not fits(store, request):
            version = request.version.hex()[:12]
            raise NotFoundError(f"chunk {request.chunk} of {version} is not here")
        self.share = Stripe(request.offset, request.length, request.stripe, request.stripes)
        self.header = encode(
            Chunk(
                request.session,
                request.version,
                request.chunk,
                request.offset,
                self.share.payload_bytes,
            )
        )
        self.sent_bytes = 0
        self._closing = contextlib.ExitStack()
        self._span: Span = self._closing.enter_context(store.open_span(request.chunk))
        self._units = self.share.units()[::-1]
        self._position = 0
        self._unit_end = 0
        # Up to here the pages were seen in memory.
        self._warm_end = 0
        self._next_unit()

    @property
    def is_whole(self) -> bool:
        return self.sent_bytes == self.share.payload_bytes

    def is_warm(self) -> bool:
        """The next slice is in the page cache, so that sending it does not wait for a disk. A
        look at its first and last byte; the pages between were read or written with them."""
        if self._position < self._warm_end:
            return True
        end = self._slice_end()
        if self._is_resident(self._position) and self._is_resident(end - 1):
            self._warm_end = end
            return True
        return False

    def warm_up(self) -> None:
        """Read the next slice into the page cache; blocks, for a worker thread."""
        end = self._slice_end()
        offset = self._span.offset + self._position
        length = end - self._position
        os.posix_fadvise(self._span.fd, offset, length, os.POSIX_FADV_WILLNEED)
        with contextlib.suppress(OSError):
            # A read error shows when the slice is sent.
            os.pread(self._span.fd, length, offset)
        self._warm_end = end

    def send(self, sock_fd: int, limit: int) -> None:
        """Hand up to `limit` bytes to the kernel; raises BlockingIOError when it takes none now,
        OSError when the connection is gone, StoreError when the file is."""
        count = min(self._warm_end - self._position, limit)
        sent = self._sendfile(sock_fd, self._span.offset + self._position, count)
        self._position += sent
        self.sent_bytes += sent
        if self._position == self._unit_end and self._units:
            self._next_unit()

    def close(self) -> None:
        self._closing.close()

    def _sendfile(self, sock_fd: int, offset: int, count: int) -> int:
        try:
            sent = os.sendfile(sock_fd, self._span.fd, offset, count)
        except OSError as error:
            if error.errno == errno.EIO:
                raise StoreError(f"reading a chunk to send: {error}") from error
            raise
        if sent == 0:
            raise StoreError("a file is shorter than its version says")
        return sent

    def _slice_end(self) -> int:
        return min(self._position + SLICE_BYTES, self._unit_end)

    def _next_unit(self) -> None:
        if self._units:
            self._position, length = self._units.pop()
            self._unit_end = self._position + length
            self._warm_end = self._position

    def _is_resident(self, position: int) -> bool:
        try:
            os.preadv(self._span.fd, [_PROBE], self._span.offset + position, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            # The file system cannot say (memory file systems); then there is no disk to wait for.
            return True
        return True


def fits(store: VersionStore, request: Request) -> bool:
    """The requested range lies within the chunk."""
    lengths = store.manifest.lengths
    return (
        request.chunk < len(lengths) and request.offset + request.length <= lengths[request.chunk]
    )
