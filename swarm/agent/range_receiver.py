"""From the origin's connections to a chunk writer: gathering, and writing beside the receiving.

A read brings anything from one segment to a megabyte, and each write costs a visit to a worker
thread (about 0.1 ms) and a system call; so bytes are gathered up to `WRITE_BYTES` first. While one
batch is written the next is received; a third waits. The bytes are never copied on the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from swarm.errors import SwarmError
from swarm.protocol.manifest import MIB
from swarm.store.chunk_store import ChunkWriter

WRITE_BYTES = MIB  # 0.1 core-seconds per GB for the visits to threads; 256 KiB would cost 0.4.
BATCHES_MAX = 64  # Over all reads: 64 MiB, or 128 if every last read of a batch is large.
WRITING_THREADS = 8  # Enough to keep a disk's queue busy; hashing runs in them as well.

ByteLimiter = Callable[[int], Awaitable[None]]
"""Waits until so many more bytes may have been received."""


class WriteRoom:
    """What bounds the memory and the threads of all reads of one client."""

    def __init__(self) -> None:
        self.batches = trio.Semaphore(BATCHES_MAX)
        self.threads = trio.CapacityLimiter(WRITING_THREADS)


class RangeReceiver:
    """Takes one contiguous range of a chunk, in order. Owned by the task that reads it."""

    def __init__(
        self,
        writer: ChunkWriter,
        start: int,
        length: int,
        *,
        room: WriteRoom,
        nursery: trio.Nursery,
        progress: Callable[[int], None],
        limiter: ByteLimiter | None,
    ) -> None:
        self.length = length
        # Where the range begins within the chunk.
        self.start = start
        # Bytes of the range that have arrived; a retry goes on from here.
        self.received = 0
        # Why a write failed; the reader raises it.
        self.failure: SwarmError | None = None
        self._writer = writer
        self._room = room
        self._nursery = nursery
        self._progress = progress
        self._limiter = limiter
        self._views: list[memoryview] = []
        self._gathered_bytes = 0
        # Held while a batch is being written.
        self._writing = trio.Semaphore(1)

    async def take(self, _offset: int, view: memoryview) -> None:
        """A `RangeSink`; waits while the disk is behind. Raises what a write raised."""
        if not self._views:
            await self._room.batches.acquire()
        self._views.append(view)
        self._gathered_bytes += view.nbytes
        self.received += view.nbytes
        self._progress(view.nbytes)
        if self._gathered_bytes >= WRITE_BYTES or self.received == self.length:
            await self._hand_over()
        if self._limiter is not None:
            await self._limiter(view.nbytes)

    async def finish(self) -> None:
        """Wait for the last write. Raises what a write raised."""
        if self._views:
            await self._hand_over()
        async with self._writing:
            self._check()

    def close(self) -> None:
        """Give back what a cancelled or failed read holds."""
        if self._views:
            self._views = []
            self._room.batches.release()

    async def _hand_over(self) -> None:
        await self._writing.acquire()
        try:
            self._check()
        except SwarmError:
            self._writing.release()
            raise
        views, self._views = self._views, []
        offset = self.start + self.received - self._gathered_bytes
        self._gathered_bytes = 0
        self._nursery.start_soon(self._write, offset, views)

    async def _write(self, offset: int, views: Sequence[memoryview]) -> None:
        try:
            # Without a checkpoint before it: a batch that was handed over is written, also when
            # the chunk is being cancelled, or its buffers would be given back twice.
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(
                    _write_views, self._writer, offset, views, limiter=self._room.threads
                )
        except SwarmError as error:
            self.failure = error
        finally:
            self._room.batches.release()
            self._writing.release()

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure


def _write_views(writer: ChunkWriter, offset: int, views: Sequence[memoryview]) -> None:
    """In a worker thread: one write for small views, so that slow links cost no system calls."""
    whole = views[0] if len(views) == 1 else memoryview(b"".join(views))
    writer.write(offset, whole)
