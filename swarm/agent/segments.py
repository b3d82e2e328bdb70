"""The memory that payload passes through: 1 MiB buffers, a bounded number of them, used again.

Memory is bounded whatever the chunk size: a link holds at most a few segments (one that it fills,
one that is being hashed, one that waits), and all links together at most the pool. A link that
finds none stops reading its socket, and TCP makes the sender wait. Receiving into a pooled buffer
and writing from it was faster than receiving into a mapping of the file, which faults once a page.
"""

from __future__ import annotations

from collections import deque

import trio

from swarm.agent.workers import Workers

SEGMENT_BYTES = 1 << 20
"""Larger gains nothing (a thread hop costs 0.1 ms, hashing this 0.2 ms), smaller pays more hops."""
SEGMENTS_PER_LINK = 3


class Holder:
    """How many segments one link holds. Two counters, each written by one side only, so that no
    lock is needed."""

    __slots__ = ("given_count", "may_look", "taken_count")

    def __init__(self) -> None:
        # Set when there is a segment for a link that waits for one.
        self.may_look = trio.Event()
        # Written by the loop.
        self.taken_count = 0
        # Written by the worker that has the link's lane.
        self.given_count = 0

    @property
    def held_count(self) -> int:
        return self.taken_count - self.given_count


class SegmentPool:
    """All segments of an agent. `take` is called in the loop, `give` in worker threads."""

    def __init__(self, limit: int, workers: Workers) -> None:
        assert limit > 0
        self._limit = limit
        self._workers = workers
        self._free: deque[memoryview] = deque()
        self._made_count = 0
        # Links that wait, the longest first.
        self._waiting: dict[Holder, None] = {}
        # The loop has been asked to look who can go on.
        self._is_wake_due = False

    def take_nowait(self, holder: Holder) -> memoryview | None:
        """A segment for this link, None if there is none for it now."""
        if holder.held_count >= SEGMENTS_PER_LINK:
            return None
        if self._free:
            segment = self._free.pop()
        elif self._made_count < self._limit:
            self._made_count += 1
            segment = memoryview(bytearray(SEGMENT_BYTES))
        else:
            return None
        holder.taken_count += 1
        return segment

    async def take(self, holder: Holder) -> memoryview:
        """A segment for this link, as soon as there is one."""
        try:
            while (segment := self.take_nowait(holder)) is None:
                # Say so first and look again: a segment given in between is not missed.
                holder.may_look = trio.Event()
                self._waiting[holder] = None
                if (segment := self.take_nowait(holder)) is not None:
                    break
                await holder.may_look.wait()
        except BaseException:
            # What it was woken for is another's now.
            self._waiting.pop(holder, None)
            self._wake()
            raise
        self._waiting.pop(holder, None)
        return segment

    def give_back(self, segment: memoryview, holder: Holder) -> None:
        """From the loop: a segment that no job has seen."""
        holder.taken_count -= 1
        self._free.append(segment)
        self._wake()

    def give(self, segment: memoryview, holder: Holder) -> None:
        """From a worker thread: the segment's bytes are no longer needed."""
        holder.given_count += 1
        self._free.append(segment)
        if self._waiting and not self._is_wake_due:
            self._is_wake_due = True
            self._workers.call_soon(self._wake)

    def _wake(self) -> None:
        """Let as many links look as there are segments, and none that holds its share: with all of
        them woken for each segment, waking was a twentieth of the CPU of a read of the origin."""
        self._is_wake_due = False
        count = len(self._free) + self._limit - self._made_count
        for holder in list(self._waiting):
            if not count:
                return
            if holder.held_count < SEGMENTS_PER_LINK:
                del self._waiting[holder]
                holder.may_look.set()
                count -= 1
