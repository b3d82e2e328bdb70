"""The digest of a chunk, computed while it arrives.

BLAKE3 is a stream: it wants the bytes in order. What continues the hashed prefix is hashed from
the buffer it arrived in, still in the cache of the core; what lies ahead (stripes, split ranges) is
written first and read back, from hot pages, when the prefix reaches it. At any moment one thread
at most has the right to hash; the others write and go on, and whoever hashes picks up what they
left. Each range is hashed exactly once, and when the last write has returned, all are.
"""

from __future__ import annotations

import threading

from blake3 import blake3


class HashedPrefix:
    """The hasher of one chunk and the ranges that wait for it. The lock guards the book-keeping,
    never the hashing."""

    __slots__ = ("_ahead", "_is_hashing", "_lock", "end", "had_read_back", "hasher")

    def __init__(self) -> None:
        self.hasher = blake3()
        # Bytes hashed.
        self.end = 0
        # Some bytes were hashed as read from the disk rather than as received.
        self.had_read_back = False
        self._lock = threading.Lock()
        self._is_hashing = False
        # Ranges written and not hashed: start → end.
        self._ahead: dict[int, int] = {}

    def begin(self, offset: int) -> bool:
        """Whether the caller shall hash bytes at `offset` now; `advance` must follow."""
        with self._lock:
            assert offset >= self.end, f"bytes at {offset} were given before"
            if self._is_hashing or offset != self.end:
                return False
            self._is_hashing = True
            return True

    def advance(self, count: int) -> None:
        """`count` bytes more are hashed."""
        with self._lock:
            self.end += count
            self._is_hashing = False

    def put_ahead(self, offset: int, count: int) -> None:
        """A range is written that nobody has hashed."""
        with self._lock:
            assert offset not in self._ahead, f"bytes at {offset} were given before"
            self._ahead[offset] = offset + count

    def begin_read_back(self) -> tuple[int, int] | None:
        """A written (offset, count) for the caller to read back and hash now, `advance` must
        follow; None if there is none or another thread is at it."""
        with self._lock:
            if self._is_hashing or self.end not in self._ahead:
                return None
            self._is_hashing = True
            self.had_read_back = True
            return self.end, self._ahead.pop(self.end) - self.end
