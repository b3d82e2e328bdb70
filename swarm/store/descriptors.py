"""Open files, a bounded number of them: least recently used ones are closed first, pinned ones
never.

A version may have 100,000 files and a process 256 descriptors (`ulimit -n`), while the hot path
must not open a file per chunk. So descriptors are cached over all versions of a store, and a
transfer or an upload pins the one it works on. Pinned descriptors may exceed the limit: their
number is bounded by the live transfers, and waiting for one could deadlock.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable

# Enough for D = U = 4 sessions with pre-sent chunks and origin ranges; a quarter of the smallest
# `ulimit -n` in common use (256).
OPEN_FILES_MAX = 64


class Descriptor:
    """One open file. `fd` is valid while the descriptor is pinned."""

    __slots__ = ("fd", "is_forgotten", "pins")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.pins = 1
        # No longer in the cache: closed with its last pin.
        self.is_forgotten = False


# Which file: its owner (a version's files), and its index there.
Key = tuple[int, int]


class Descriptors:
    """The cache; thread-safe. The lock is never held over a system call that can block on the
    disk, except close."""

    def __init__(self, limit: int = OPEN_FILES_MAX) -> None:
        assert limit > 0
        self._limit = limit
        self._lock = threading.Lock()
        self._open: OrderedDict[Key, Descriptor] = OrderedDict()
        # Grows with every `forget`: tells a descriptor opened before one from those after it.
        self._epoch = 0

    def acquire(self, key: Key, opener: Callable[[], int]) -> Descriptor:
        """The descriptor of `key`, pinned; `opener` opens it if it is not cached."""
        while True:
            with self._lock:
                found = self._pin(key)
                if found is not None:
                    return found
                epoch = self._epoch
            fd = opener()
            with self._lock:
                if epoch == self._epoch:
                    return self._pin(key, spare_fd=fd) or self._insert(key, fd)
            os.close(fd)  # Forgotten in between: it may be another inode now.

    def release(self, descriptor: Descriptor) -> None:
        with self._lock:
            assert descriptor.pins > 0
            descriptor.pins -= 1
            if descriptor.is_forgotten and descriptor.pins == 0:
                os.close(descriptor.fd)

    def forget(self, key: Key) -> None:
        """The name now means another inode or another mode: open it anew next time."""
        with self._lock:
            self._epoch += 1
            descriptor = self._open.pop(key, None)
            if descriptor is not None:
                self._drop(descriptor)

    def forget_owner(self, owner: int) -> None:
        """Close all descriptors of one owner."""
        with self._lock:
            self._epoch += 1
            for key in [key for key in self._open if key[0] == owner]:
                self._drop(self._open.pop(key))

    def __len__(self) -> int:
        return len(self._open)

    def _pin(self, key: Key, spare_fd: int | None = None) -> Descriptor | None:
        descriptor = self._open.get(key)
        if descriptor is None:
            return None
        if spare_fd is not None:
            os.close(spare_fd)
        descriptor.pins += 1
        self._open.move_to_end(key)
        return descriptor

    def _insert(self, key: Key, fd: int) -> Descriptor:
        descriptor = self._open[key] = Descriptor(fd)
        surplus = len(self._open) - self._limit
        if surplus > 0:
            idle = [key for key, entry in self._open.items() if entry.pins == 0]
            for old in idle[:surplus]:
                self._drop(self._open.pop(old))
        return descriptor

    def _drop(self, descriptor: Descriptor) -> None:
        descriptor.is_forgotten = True
        if descriptor.pins == 0:
            os.close(descriptor.fd)
