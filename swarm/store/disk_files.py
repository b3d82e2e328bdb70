"""The files of a version on disk: parts until they are whole, then final names.

A part lies at full size (sparse) under `.swarm/parts/`, where no loader looks; the rename that
gives it its name keeps the inode, so maps and descriptors of streaming readers stay good. A file
with its final name is opened read-only: nothing can write to it any more by accident.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from contextlib import suppress

from swarm.protocol.manifest import Manifest
from swarm.store.byte_ranges import copy_range, read_only_copy
from swarm.store.descriptors import Descriptor, Descriptors
from swarm.store.tree import EXECUTABLE_MODE, FILE_MODE, Tree

PARTS = ".swarm/parts"
SCRATCH = ".swarm/scratch"


class DiskFiles:
    """`VersionFiles` over a `Tree`. Owns the tree; shares the descriptor cache.

    Opening and renaming exclude each other: otherwise a reader could look for a part in the moment
    in which it gets its final name, and make a new, empty one in its place.
    """

    def __init__(self, tree: Tree, manifest: Manifest, descriptors: Descriptors) -> None:
        self.path = tree.path
        self._tree = tree
        self._manifest = manifest
        self._descriptors = descriptors
        self._owner = id(self)
        # By final name; another size than the manifest's is damage, not a whole file.
        self._sizes = [tree.regular_size(entry.path) for entry in manifest.files]
        self._names = threading.RLock()
        self._scratch_count = itertools.count()

    def size(self, file_index: int) -> int | None:
        """Size under the final name, or None if there is no such file."""
        return self._sizes[file_index]

    def part_size(self, file_index: int) -> int | None:
        return self._tree.regular_size(self._part(file_index))

    def changed_at_ns(self, file_index: int) -> int:
        """When the bytes last changed, in nanoseconds of the file system's clock; 0 if there is
        no such file."""
        final = self._sizes[file_index] is not None
        path = self._manifest.files[file_index].path if final else self._part(file_index)
        status = self._tree.regular_status(path)
        return 0 if status is None else status.st_mtime_ns

    def is_whole(self, file_index: int) -> bool:
        return self._sizes[file_index] is not None

    def is_gone(self, file_index: int) -> bool:
        with self._names:
            entry = self._manifest.files[file_index]
            name = entry.path if self.is_whole(file_index) else self._part(file_index)
            return self._tree.regular_status(name) is None

    def acquire(self, file_index: int) -> Descriptor:
        return self._descriptors.acquire((self._owner, file_index), lambda: self._open(file_index))

    def release(self, descriptor: Descriptor) -> None:
        self._descriptors.release(descriptor)

    def open_read_only(self, file_index: int) -> int:
        descriptor = self.acquire(file_index)
        try:
            return read_only_copy(descriptor.fd)
        finally:
            self.release(descriptor)

    def open_scratch(self) -> int:
        """The name is unique and gone at once: nothing is left behind by a kill."""
        name = f"{SCRATCH}/{os.getpid()}-{next(self._scratch_count)}-{os.urandom(4).hex()}"
        fd = self._tree.create(name, 0o600)
        self._tree.unlink(name)
        return fd

    def complete(self, file_index: int) -> None:
        entry = self._manifest.files[file_index]
        with self._names:
            # A file without chunks is made here.
            self.release(self.acquire(file_index))
            self._tree.rename(self._part(file_index), entry.path)
            self._sizes[file_index] = entry.size
            self._descriptors.forget((self._owner, file_index))

    def reopen(self, file_index: int, *, keeps_inode: bool) -> bool:
        path = self._manifest.files[file_index].path
        with self._names:
            try:
                fd = self._tree.open(path, os.O_RDONLY)
            except FileNotFoundError:
                # Somebody removed it: its successor is a new inode.
                self._sizes[file_index] = None
                self._descriptors.forget((self._owner, file_index))
                return True
            try:
                # Another name for the inode is another version's: never to be written.
                keeps_inode = keeps_inode and os.fstat(fd).st_nlink == 1
                if keeps_inode:
                    self._tree.rename(path, self._part(file_index))
                else:
                    self._copy_to_part(fd, file_index)
                    self._tree.unlink(path)
            finally:
                os.close(fd)
            self._sizes[file_index] = None
            self._descriptors.forget((self._owner, file_index))
        return not keeps_inode

    def link_from(self, source: Tree, path: str, file_index: int) -> None:
        """Take a whole equal file of another version as this one; raises OSError."""
        entry = self._manifest.files[file_index]
        self._tree.link_from(source, path, entry.path)
        self._sizes[file_index] = entry.size

    def clear_parts(self) -> None:
        """Remove empty directories of parts, and whatever an earlier kill left there."""
        for relative in (PARTS, SCRATCH):
            remove_below(self._tree, relative)

    def sync(self) -> None:
        directories = {""}
        for entry in self._manifest.files:
            self._tree.sync_file(entry.path)
            parent = os.path.dirname(entry.path)
            while parent not in directories:
                directories.add(parent)
                parent = os.path.dirname(parent)
        for directory in sorted(directories):
            self._tree.sync_directory(directory)

    def close(self) -> None:
        self._descriptors.forget_owner(self._owner)
        self._tree.close()

    def _part(self, file_index: int) -> str:
        return f"{PARTS}/{self._manifest.files[file_index].path}"

    def _open(self, file_index: int) -> int:
        with self._names:
            return self._open_named(file_index)

    def _open_named(self, file_index: int) -> int:
        entry = self._manifest.files[file_index]
        if self.is_whole(file_index):
            return self._tree.open(entry.path, os.O_RDONLY)
        mode = EXECUTABLE_MODE if entry.is_executable else FILE_MODE
        fd = self._tree.create(self._part(file_index), mode)
        try:
            if os.fstat(fd).st_size != entry.size:
                os.ftruncate(fd, entry.size)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _copy_to_part(self, source: int, file_index: int) -> None:
        """A new inode with the old bytes, as many as there are."""
        with suppress(FileNotFoundError):
            self._tree.unlink(self._part(file_index))
        entry = self._manifest.files[file_index]
        mode = EXECUTABLE_MODE if entry.is_executable else FILE_MODE
        target = self._tree.create(self._part(file_index), mode)
        try:
            length = min(os.fstat(source).st_size, entry.size)
            copy_range(source, 0, target, 0, length)
            os.ftruncate(target, entry.size)
        finally:
            os.close(target)


def remove_below(tree: Tree, relative: str) -> None:
    """Remove a directory of a tree with all it holds, if it is there; follows no link."""
    with suppress(FileNotFoundError, NotADirectoryError):
        shutil.rmtree(relative, dir_fd=tree.fd)
