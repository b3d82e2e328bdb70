"""What the operating system says, in our words: one table from `OSError` to the classes of
`swarm.errors`.

A full disk, a forbidden path and a failing disk need three different remedies, so each names its
numbers: bytes needed and free and the mount for the first, path and uid for the second, the
errno's own text for the third. Nobody outside this machine is ever to blame for any of them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from swarm.errors import NoSpaceError, PermissionDeniedError, StoreError, SwarmError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


def store_fault(error: OSError, path: str, *, needed_bytes: int = 0) -> SwarmError:
    """The error to raise from `error`; `path` is what we worked on, `needed_bytes` what a write
    wanted."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _FULL:
        return no_space(path, needed_bytes, reason)
    if error.errno in _FORBIDDEN:
        return PermissionDeniedError(
            f"{path}: {reason} (uid {os.geteuid()})",
            object_name=path,
            hint="give this user write access to the directory, or choose another one",
        )
    if error.errno in _NO_DESCRIPTORS:
        return StoreError(
            f"{path}: {reason}", object_name=path, hint="raise ulimit -n", is_retryable=True
        )
    return StoreError(
        f"{path}: {reason}", object_name=path, hint="look at the disk (dmesg) or move the cache"
    )


def no_space(path: str, needed_bytes: int, reason: str) -> NoSpaceError:
    """The disk under `path` cannot take `needed_bytes` more."""
    return NoSpaceError(
        f"{path}: {reason}: needs {needed_bytes} bytes, free {free_bytes(path)}"
        f" at {mount_point(path)}",
        object_name=path,
        hint="free space there, evict versions, or choose another cache",
    )


@contextmanager
def faults_of(path: str, *, needed_bytes: int = 0) -> Iterator[None]:
    """Translate every OSError of the block."""
    try:
        yield
    except OSError as error:
        raise store_fault(error, path, needed_bytes=needed_bytes) from error


def free_bytes(path: str) -> int:
    """Bytes an ordinary user may still write on the file system of `path`, or of its nearest
    parent that exists."""
    status = os.statvfs(_nearest_existing(path))
    return status.f_bavail * status.f_frsize


def mount_point(path: str) -> str:
    """Where the file system of `path` is mounted."""
    place = os.path.realpath(_nearest_existing(path))
    while not os.path.ismount(place):
        place = os.path.dirname(place)
    return place


def _nearest_existing(path: str) -> str:
    place = os.path.abspath(path)
    while not os.path.exists(place) and place != "/":
        place = os.path.dirname(place)
    return place
