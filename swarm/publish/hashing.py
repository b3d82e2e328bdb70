"""Hashes files, a chunk at a time, on all cores.

Each thread takes the next chunk in file order, reads it in slices that fit the second-level cache
and feeds BLAKE3, which releases the interpreter for the time. Chunks are independent, so threads
meet only to take the next one; memory is one slice a thread, whatever the size of the model. Files
are read into a buffer and not mapped: truncating a mapped file kills the process that looks at it,
and a read says so.

Every read is bracketed by a look at the file's size, times and inode. A file that differs from what
the scan saw is refused by name; nothing of a mix is ever given a digest.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import trio
from blake3 import blake3

from swarm.protocol.ids import ChunkDigest
from swarm.protocol.manifest import FileEntry, cut
from swarm.publish.crew import work_through
from swarm.publish.scan import FileStamp, SourceFile
from swarm.publish.source_reader import changed, open_scanned, read_failure

SLICE_BYTES = 1 << 20
"""One read: calls cost nothing beside hashing it, and it fits the cache of a core."""
THREADS_MAX = 32
"""Past this the memory of any machine is the limit; containers are given 64 tasks or more."""


@dataclass(frozen=True, slots=True)
class _Span:
    """One chunk to hash."""

    file_index: int
    chunk_number: int
    offset: int
    length: int


def core_count() -> int:
    """Threads worth starting here."""
    return min(len(os.sched_getaffinity(0)), THREADS_MAX)


async def hash_files(
    files: Sequence[SourceFile],
    data_starts: Mapping[str, int],
    chunk_bytes: int,
    progress: Callable[[int], None],
    *,
    threads: int | None = None,
) -> list[FileEntry]:
    """The manifest's entries of `files`, in their order. `progress` is told of further bytes, from
    any thread. Raises ChangedError, PermissionDeniedError, StoreError."""
    cuts = [cut(file.size, data_starts[file.path], chunk_bytes) for file in files]
    hasher = _Hasher(files, cuts, progress)
    workers = threads or core_count()
    limiter = trio.CapacityLimiter(workers)

    async def work(_: int) -> None:
        await trio.to_thread.run_sync(hasher.run, limiter=limiter)

    await work_through(range(workers), work, at_once=workers)
    return [
        FileEntry(file.path, file.size, file.is_executable, data_starts[file.path], tuple(digests))
        for file, digests in zip(files, hasher.digests, strict=True)
    ]


class _Hasher:
    """The shared work list and its results; `run` is called from every thread."""

    def __init__(
        self,
        files: Sequence[SourceFile],
        cuts: Sequence[Sequence[tuple[int, int]]],
        progress: Callable[[int], None],
    ) -> None:
        self._files = files
        self._progress = progress
        self._spans = _spans(cuts)
        self._lock = threading.Lock()
        self.digests = [[ChunkDigest(b"")] * len(spans) for spans in cuts]

    def run(self) -> None:
        """Hash chunks until none is left. Stops within a slice when the caller is cancelled."""
        buffer = memoryview(bytearray(SLICE_BYTES))
        span = self._take()
        while span:
            # A thread keeps a file open while it goes on with it: one descriptor a thread.
            file_index = span.file_index
            file = self._files[file_index]
            fd = open_scanned(file)
            try:
                while span and span.file_index == file_index:
                    digest = _hash_span(file, fd, span, buffer)
                    self.digests[file_index][span.chunk_number] = digest
                    self._progress(span.length)
                    span = self._take()
            finally:
                os.close(fd)

    def _take(self) -> _Span | None:
        trio.from_thread.check_cancelled()
        with self._lock:
            return next(self._spans, None)


def _spans(cuts: Sequence[Sequence[tuple[int, int]]]) -> Iterator[_Span]:
    for file_index, spans in enumerate(cuts):
        for number, (offset, length) in zip(count(), spans, strict=False):
            yield _Span(file_index, number, offset, length)


def _hash_span(file: SourceFile, fd: int, span: _Span, buffer: memoryview) -> ChunkDigest:
    check_stamp(file, fd)
    hasher = blake3()
    done = 0
    while done < span.length:
        wanted = min(SLICE_BYTES, span.length - done)
        try:
            got = os.preadv(fd, [buffer[:wanted]], span.offset + done)
        except OSError as error:
            raise read_failure(file.path, error) from error
        if not got:
            raise changed(file.path, "it became shorter")
        hasher.update(buffer[:got])
        done += got
        trio.from_thread.check_cancelled()
    check_stamp(file, fd)
    return ChunkDigest(hasher.digest())


def check_stamp(file: SourceFile, fd: int) -> None:
    """Raises ChangedError if the open file is not as the scan saw it."""
    _compare(file, os.fstat(fd))


def check_unchanged(files: Sequence[SourceFile]) -> None:
    """Look at every file once more, by its name: a replaced file shows only there."""
    for file in files:
        try:
            status = os.stat(file.source)
        except OSError as error:
            raise read_failure(file.path, error) from error
        _compare(file, status)


def _compare(file: SourceFile, status: os.stat_result) -> None:
    stamp = FileStamp.of(status)
    if stamp == file.stamp:
        return
    is_other = (stamp.inode, stamp.device) != (file.stamp.inode, file.stamp.device)
    if is_other or not status.st_nlink:
        raise changed(file.path, "it was replaced or removed")
    if stamp.size != file.stamp.size:
        raise changed(file.path, f"{file.stamp.size} bytes became {stamp.size}")
    raise changed(file.path, "it was written to")
