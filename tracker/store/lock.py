"""One tracker a store: two that wrote one file would each grant leases and move channels as if the
other were not there.

The lock lies beside the store and not on it: sqlite's own locks on the file are the process's, and
would go as soon as anybody here closed a second descriptor of it. It goes with the process however
that ends; a file left behind by a dead one is free. Its content (pid, host) is for the message
alone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from pathlib import Path

from swarm.errors import LockedError

_CONTENT_BYTES_MAX = 1024
_TAKEN = frozenset({errno.EAGAIN, errno.EACCES})


class StoreLock:
    """Held from construction to `release`; raises LockedError naming the holder, OSError."""

    def __init__(self, store: Path) -> None:
        # Whatever link it was named by, one file has one lock.
        resolved = store.resolve()
        self.path = resolved.with_name(f"{resolved.name}.lock")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self.path, flags, 0o600)
        try:
            self._take(store)
        except BaseException:
            os.close(self._fd)
            raise

    def release(self) -> None:
        os.close(self._fd)

    def _take(self, store: Path) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            holder = os.pread(self._fd, _CONTENT_BYTES_MAX, 0).decode("utf-8", "replace").strip()
            raise LockedError(
                f"the store {store} is in use by another tracker ({holder or 'unknown'})",
                object_name=str(store),
                hint="stop that tracker first, or give this one a store of its own",
            ) from error
        content = f"pid {os.getpid()} on {socket.gethostname()}\n".encode()
        os.pwrite(self._fd, content, 0)
        os.ftruncate(self._fd, len(content))
