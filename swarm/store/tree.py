"""A directory of ours, seen through its descriptor, so that no name leads out of it.

Manifest paths are checked when a manifest is read, but what lies on the disk is not: somebody may
have put a symbolic link where a directory is expected. So every path is walked one component at a
time from the root's descriptor with O_NOFOLLOW; a link on the way is an error, never followed.
Modes do not depend on the umask: the serving process often runs as another user (directories
0755, files 0644, or 0755 when the manifest says executable).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from stat import S_ISREG

DIRECTORY_MODE = 0o755
FILE_MODE = 0o644
EXECUTABLE_MODE = 0o755
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Tree:
    """The root directory, open until `close`; relative paths use '/'. All methods raise OSError."""

    def __init__(self, path: str) -> None:
        self.path = path
        # The root itself may be reached through a link: where the cache lies is the operator's
        # choice.
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self.fd)
        # A late caller gets EBADF, not whatever directory has this number next.
        self.fd = -1

    def open(self, relative: str, flags: int) -> int:
        with self._parent(relative) as (parent, name):
            return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)

    def create(self, relative: str, mode: int) -> int:
        """Open for reading and writing, made with its directories if it is not there."""
        with self._parent(relative, is_made=True) as (parent, name):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(name, flags, mode, dir_fd=parent)
        try:
            os.fchmod(fd, mode)
        except OSError:
            os.close(fd)
            raise
        return fd

    def write_file(self, relative: str, content: bytes, *, is_synced: bool = False) -> None:
        """Put a small file in place whole: a reader sees the old content or the new one."""
        temporary = f"{relative}.new"
        with suppress(FileNotFoundError):
            self.unlink(temporary)
        fd = self.create(temporary, FILE_MODE)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            if is_synced:
                os.fsync(fd)
        finally:
            os.close(fd)
        self.rename(temporary, relative)
        if is_synced:
            self.sync_directory(os.path.dirname(relative))

    def read_file(self, relative: str, limit_bytes: int) -> bytes | None:
        """The content, or None if there is no such regular file or it is longer than the limit."""
        try:
            fd = self.open(relative, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with os.fdopen(fd, "rb") as file:
            if not S_ISREG(os.fstat(fd).st_mode):
                return None
            content = file.read(limit_bytes + 1)
        return content if len(content) <= limit_bytes else None

    def rename(self, source: str, target: str) -> None:
        with (
            self._parent(source) as (source_parent, source_name),
            self._parent(target, is_made=True) as (target_parent, target_name),
        ):
            os.rename(source_name, target_name, src_dir_fd=source_parent, dst_dir_fd=target_parent)

    def link_from(self, source: Tree, relative_source: str, relative: str) -> None:
        """Make a hard link to a file of another tree."""
        with (
            source._parent(relative_source) as (source_parent, source_name),
            self._parent(relative, is_made=True) as (parent, name),
        ):
            os.link(
                source_name,
                name,
                src_dir_fd=source_parent,
                dst_dir_fd=parent,
                follow_symlinks=False,
            )

    def unlink(self, relative: str) -> None:
        with self._parent(relative) as (parent, name):
            os.unlink(name, dir_fd=parent)

    def regular_size(self, relative: str) -> int | None:
        """Size of a regular file, or None if there is none under this name."""
        status = self.regular_status(relative)
        return None if status is None else status.st_size

    def regular_status(self, relative: str) -> os.stat_result | None:
        """Status of a regular file, or None if there is none under this name."""
        try:
            with self._parent(relative) as (parent, name):
                status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status if S_ISREG(status.st_mode) else None

    def replace_link(self, target: str, relative: str) -> None:
        """Let a symbolic link point at `target`, at once and whatever it was before."""
        temporary = f"{relative}.new"
        with self._parent(temporary, is_made=True) as (parent, name):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=parent)
            os.symlink(target, name, dir_fd=parent)
        self.rename(temporary, relative)

    def read_link(self, relative: str) -> str | None:
        """Where a symbolic link points, or None if there is none."""
        with suppress(OSError), self._parent(relative) as (parent, name):
            return os.readlink(name, dir_fd=parent)
        return None

    def names(self, relative: str) -> list[str]:
        """What a directory holds, sorted; nothing if it is not there."""
        try:
            with self._parent(f"{relative}/x") as (parent, _):
                return sorted(os.listdir(parent))
        except FileNotFoundError:
            return []

    def make_directory(self, relative: str) -> None:
        with self._parent(f"{relative}/x", is_made=True):
            pass

    def sync_file(self, relative: str) -> None:
        fd = self.open(relative, os.O_RDONLY)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def sync_directory(self, relative: str) -> None:
        with self._parent(f"{relative}/x" if relative else "x") as (parent, _):
            os.fsync(parent)

    @contextmanager
    def _parent(self, relative: str, *, is_made: bool = False) -> Iterator[tuple[int, str]]:
        """The open parent directory of a path, and its last component."""
        *directories, name = relative.split("/")
        parent = self.fd
        try:
            for directory in directories:
                child = _step(parent, directory, is_made=is_made)
                if parent != self.fd:
                    os.close(parent)
                parent = child
            yield parent, name
        finally:
            if parent != self.fd:
                os.close(parent)


def make_root(path: str) -> None:
    """Make a directory with its missing parents, readable by others whatever the umask; raises
    OSError."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(directory)
            os.chmod(directory, DIRECTORY_MODE)


def _step(parent: int, name: str, *, is_made: bool) -> int:
    try:
        return os.open(name, _DIRECTORY_FLAGS, dir_fd=parent)
    except FileNotFoundError:
        if not is_made:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
    child = os.open(name, _DIRECTORY_FLAGS, dir_fd=parent)
    os.fchmod(child, DIRECTORY_MODE)
    return child
