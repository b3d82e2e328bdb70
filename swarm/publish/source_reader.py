"""Reads parts of a file to publish, wherever it lies: on disk, or already at the origin.

Validation is written against `SourceReader` and runs in a worker thread; reads block.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import trio

from swarm.errors import ChangedError, PermissionDeniedError, StoreError, SwarmError
from swarm.origin.origin import MemorySink, ObjectInfo, Origin
from swarm.publish.scan import SourceFile


class SourceReader(Protocol):
    """One file, open for reading."""

    path: str
    size: int

    def read(self, offset: int, length: int) -> bytes:
        """Bytes at `offset`; fewer than `length` only where the file ends."""


OpenReader = Callable[[str], AbstractContextManager[SourceReader]]
"""Opens a file by its path in the version."""


class DiskReader:
    """A file on disk."""

    def __init__(self, file: SourceFile, fd: int) -> None:
        self.path = file.path
        self.size = file.size
        self._fd = fd

    def read(self, offset: int, length: int) -> bytes:
        pieces = []
        try:
            while length > 0 and (piece := os.pread(self._fd, length, offset)):
                pieces.append(piece)
                offset += len(piece)
                length -= len(piece)
        except OSError as error:
            raise read_failure(self.path, error) from error
        return b"".join(pieces)


class OriginReader:
    """An object at the origin, read from a worker thread of the loop that owns the origin."""

    def __init__(self, path: str, origin: Origin, info: ObjectInfo) -> None:
        self.path = path
        self.size = info.size
        self._origin = origin
        self._info = info

    def read(self, offset: int, length: int) -> bytes:
        length = min(length, self.size - offset)
        if length <= 0:
            return b""
        return trio.from_thread.run(self._read, offset, length)

    async def _read(self, offset: int, length: int) -> bytes:
        sink = MemorySink(length)
        info = self._info
        await self._origin.read_range(info.key, offset, length, etag=info.etag or None, sink=sink)
        return bytes(sink.payload)


class SeekableReader(io.RawIOBase):
    """Gives the standard library's archive reader what it needs: a file to seek in."""

    def __init__(self, reader: SourceReader) -> None:
        super().__init__()
        self._reader = reader
        self._offset = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._offset, os.SEEK_END: self._reader.size}[whence]
        if base + offset < 0:
            raise OSError("seek before the start of the file")
        self._offset = base + offset
        return self._offset

    def tell(self) -> int:
        return self._offset

    def read(self, size: int | None = -1) -> bytes:
        wanted = self._reader.size - self._offset if size is None or size < 0 else size
        piece = self._reader.read(self._offset, wanted)
        self._offset += len(piece)
        return piece


@contextmanager
def open_source(file: SourceFile) -> Iterator[SourceReader]:
    """Open a scanned file; raises ChangedError if it is gone, PermissionDeniedError."""
    fd = open_scanned(file)
    try:
        yield DiskReader(file, fd)
    finally:
        os.close(fd)


def open_scanned(file: SourceFile) -> int:
    """A descriptor of a scanned file; never blocks on what is a pipe by now."""
    try:
        return os.open(file.source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise read_failure(file.path, error) from error


def read_failure(path: str, error: OSError) -> SwarmError:
    """What a failed read of a file to publish means."""
    if isinstance(error, FileNotFoundError):
        return changed(path, "it is gone")
    if isinstance(error, PermissionError):
        return PermissionDeniedError(
            f"permission denied: {path}", object_name=path, hint="make it readable"
        )
    return StoreError(f"cannot read {path}: {error.strerror}", object_name=path)


def changed(path: str, what: str) -> ChangedError:
    return ChangedError(
        f"{path} changed while it was published: {what}",
        object_name=path,
        hint="publish again when nobody writes to it",
    )
