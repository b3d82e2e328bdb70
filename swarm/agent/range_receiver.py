"""From one connection of the origin to the writers of the chunks that it brings.

Bytes are received straight into pooled segments, each of which belongs to one chunk, and handed to
the connection's lane, where a worker thread hashes and writes them while the next are received.
They are never copied or joined on the way, and the loop hears of a chunk once, when it is verified.
A connection that has all its segments in the lane stops reading, so a slow disk slows the origin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swarm.agent.incoming_chunk import IncomingChunk
from swarm.agent.rate_limit import RateLimit
from swarm.agent.segments import SEGMENT_BYTES, Holder, SegmentPool
from swarm.agent.workers import Lane


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a chunk that one range covers."""

    incoming: IncomingChunk
    # Within the chunk.
    start: int
    length: int


class RangeReceiver:
    """Takes one contiguous range of an object: a part of a chunk, or several chunks in a row. A
    `RangeSink`, owned by the task that reads; ends every piece exactly once."""

    def __init__(
        self,
        pieces: Sequence[Piece],
        start: int,
        *,
        pool: SegmentPool,
        lane: Lane,
        progress: Callable[[int, int], None],
        limiter: RateLimit | None,
    ) -> None:
        """`progress` is told (index of the piece, further bytes of it)."""
        # Where the range begins within the object.
        self.start = start
        self.length = sum(piece.length for piece in pieces)
        # Bytes of the range that have arrived; a retry goes on from here.
        self.received = 0
        # Index of the piece whose bytes are awaited.
        self.index = 0
        self._pieces = pieces
        self._pool = pool
        self._lane = lane
        self._progress = progress
        self._limiter = limiter if limiter is not None and limiter.is_limited else None
        self._holder = Holder()
        # The segment that is being filled, how far it is filled, and how far it shall be.
        self._segment: memoryview | None = None
        self._filled = 0
        self._end = 0
        # Bytes of the piece that were handed over.
        self._handed = 0

    def room(self) -> memoryview | None:
        if self._limiter is not None and self._limiter.delay_s() > 0:
            return None
        if self._segment is None:
            segment = self._pool.take_nowait(self._holder)
            if segment is None:
                return None
            self._begin(segment)
        assert self._segment is not None
        end = self._end
        if self._limiter is not None:
            end = min(end, self._filled + self._limiter.slice_bytes)
        return self._segment[self._filled : end]

    async def wait(self) -> None:
        if self._limiter is not None:
            await self._limiter.wait()
        if self._segment is None:
            self._begin(await self._pool.take(self._holder))

    def filled(self, count: int) -> None:
        self._filled += count
        self.received += count
        self._progress(self.index, count)
        if self._limiter is not None:
            self._limiter.take(count)
        if self._filled == self._end:
            self._hand_over()

    def close(self) -> None:
        """No more bytes will come: what is not whole ends broken. Idempotent."""
        if self._segment is not None:
            self._pool.give_back(self._segment, self._holder)
            self._segment = None
        for piece in self._pieces[self.index :]:
            self._lane.submit(_ending(piece))
        self.index = len(self._pieces)

    def _begin(self, segment: memoryview) -> None:
        self._segment = segment
        self._filled = 0
        self._end = min(SEGMENT_BYTES, self._pieces[self.index].length - self._handed)

    def _hand_over(self) -> None:
        piece, segment, count = self._pieces[self.index], self._segment, self._filled
        assert segment is not None
        offset = piece.start + self._handed
        self._segment = None
        self._handed += count
        is_last = self._handed == piece.length
        if is_last:
            self.index += 1
            self._handed = 0

        def job() -> None:
            piece.incoming.write(offset, segment[:count])
            self._pool.give(segment, self._holder)
            if is_last:
                piece.incoming.end_stripe(is_whole=True)

        self._lane.submit(job)


def _ending(piece: Piece) -> Callable[[], None]:
    return lambda: piece.incoming.end_stripe(is_whole=False)
