"""Who holds a cache, and who still reads a version.

**The cache lock** (`CACHE/lock`): one agent per cache. It is an open-file-description lock, so it
goes with the process however that ends: a lock file left by a dead process, even one whose pid
lives again, is simply free. Its content (pid, host, owner) is for the message alone. This kind of
lock, unlike flock, can be looked at without taking it, which `readiness` needs: a probe that took
the lock even for a microsecond could make a starting agent fail.

**The reader lock**: a process that reads a version holds a shared lock on its `.swarm/manifest`, a
file that is never rewritten; `evict` needs the exclusive one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct

from swarm.errors import LockedError, StoreError
from swarm.store.faults import faults_of
from swarm.store.tree import Tree

# struct flock on 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("@hhqqi4x")
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_TAKEN = frozenset({errno.EAGAIN, errno.EACCES})
# A pid, a host name and an owner; more is not ours.
_CONTENT_BYTES_MAX = 1024


class CacheLock:
    """Held from construction to `release`; raises LockedError naming the holder."""

    def __init__(self, tree: Tree, relative: str) -> None:
        self._path = f"{tree.path}/{relative}"
        with faults_of(self._path):
            self._fd = tree.create(relative, 0o644)
        try:
            self._take()
        except BaseException:
            os.close(self._fd)
            raise

    def describe(self, owner: str) -> None:
        """Say who holds it: for humans, and for `is_held_by`."""
        content = f"pid {os.getpid()}\nhost {socket.gethostname()}\nowner {owner}\n".encode()
        with faults_of(self._path):
            os.pwrite(self._fd, content, 0)
            os.ftruncate(self._fd, len(content))

    def release(self) -> None:
        os.close(self._fd)

    def _take(self) -> None:
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
        except OSError as error:
            if error.errno in _NO_LOCKS:
                raise StoreError(
                    f"{self._path}: this file system has no locks ({os.strerror(error.errno)})",
                    object_name=self._path,
                    hint="put the cache on a local file system",
                ) from error
            if error.errno not in _TAKEN:
                raise
            holder = _read_content(self._fd)
            who = f"pid {holder.get('pid', '?')} on {holder.get('host', '?')}"
            raise LockedError(
                f"{os.path.dirname(self._path)} is held by another agent ({who})",
                object_name=self._path,
                hint="stop that agent, or give this one its own cache directory",
            ) from error


def is_held(path: str) -> bool:
    """Whether a live process holds the cache lock at `path`. Takes no lock."""
    return _holder(path) is not None


def is_held_by(path: str, owner: str) -> bool:
    """Whether a live process holds the cache lock at `path` and is `owner`. Takes no lock."""
    holder = _holder(path)
    return holder is not None and holder.get("owner") == owner


def _holder(path: str) -> dict[str, str] | None:
    """What the live holder of a lock says of itself; None where nobody holds it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_RDLCK, 0, 0, 0, 0))
        is_locked = _FLOCK.unpack(answer)[0] != fcntl.F_UNLCK
        return _read_content(fd) if is_locked else None
    except OSError:
        return None
    finally:
        os.close(fd)


class ReaderLock:
    """Keeps a version from being evicted, from construction to `release`."""

    def __init__(self, directory: str) -> None:
        path = f"{directory}/.swarm/manifest"
        with faults_of(path):
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._fd, fcntl.LOCK_SH)

    def outlive_exec(self) -> None:
        """Let the program that replaces this process keep the lock until it ends."""
        os.set_inheritable(self._fd, True)

    def release(self) -> None:
        os.close(self._fd)


def has_reader(tree: Tree) -> bool:
    """Whether any process holds the reader lock of a version directory."""
    try:
        fd = tree.open(".swarm/manifest", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _read_content(fd: int) -> dict[str, str]:
    text = os.pread(fd, _CONTENT_BYTES_MAX, 0).decode("utf-8", "replace")
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
