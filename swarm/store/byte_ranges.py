"""Whole ranges of open files: written, hashed and copied in full or not at all.

The kernel may write or read less than asked (signals, quotas, the 2 GiB limit of one call), so
every caller needs the same loops; here they are, once. Buffers are one segment per thread and
reused: a fresh one per call costs more page faults than the copy itself.
"""

from __future__ import annotations

import errno
import os
import threading

from blake3 import blake3

# One read or write of the store. BLAKE3 is at full speed from 128 KiB; larger gains nothing and
# leaves the second-level cache.
SEGMENT_BYTES = 1 << 20


class _Buffer(threading.local):
    def __init__(self) -> None:
        self.view = memoryview(bytearray(SEGMENT_BYTES))


_buffer = _Buffer()


def write_all(fd: int, payload: memoryview, offset: int) -> None:
    """Write all of `payload` at `offset`; raises OSError."""
    while payload.nbytes:
        count = os.pwrite(fd, payload, offset)
        if count == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        payload = payload[count:]
        offset += count


def hash_range(fd: int, offset: int, length: int, hasher: blake3) -> bool:
    """Feed `length` bytes at `offset` to `hasher`; False if the file ends before. Raises
    OSError."""
    while length:
        segment = _buffer.view[: min(length, SEGMENT_BYTES)]
        count = os.preadv(fd, [segment], offset)
        if count == 0:
            return False
        hasher.update(segment[:count])
        offset += count
        length -= count
    return True


def range_digest(fd: int, offset: int, length: int) -> bytes | None:
    """BLAKE3 of a range, or None if the file ends before its end. Raises OSError."""
    hasher = blake3()
    return hasher.digest() if hash_range(fd, offset, length, hasher) else None


def copy_range(
    source: int, source_offset: int, target: int, target_offset: int, length: int
) -> bytes:
    """Copy a range between files and return the BLAKE3 of what was copied; raises OSError (EIO if
    the source is too short)."""
    hasher = blake3()
    while length:
        segment = _buffer.view[: min(length, SEGMENT_BYTES)]
        count = os.preadv(source, [segment], source_offset)
        if count == 0:
            raise OSError(errno.EIO, "source ends early")
        hasher.update(segment[:count])
        write_all(target, segment[:count], target_offset)
        source_offset += count
        target_offset += count
        length -= count
    return hasher.digest()


def has_data(fd: int, offset: int, length: int) -> bool:
    """Whether any byte of the range was ever written, as far as the file system can tell."""
    try:
        return os.lseek(fd, offset, os.SEEK_DATA) < offset + length
    except OSError as error:
        # ENXIO: a hole up to the end. Anything else: the file system cannot tell.
        return error.errno != errno.ENXIO


def read_only_copy(fd: int) -> int:
    """The same inode through a descriptor that cannot write; raises OSError."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
