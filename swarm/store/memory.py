"""A store in memory: one memfd a file, so that `sendfile` and reader hand-over work as on disk.

For nodes whose disk is slower than their network, and for tests under a virtual clock. The bytes
count as this process's shared memory and cannot be reclaimed, so the store has a budget. One
descriptor a file: versions with more files than `ulimit -n` belong on disk.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from functools import partial

from swarm.errors import LockedError, NoSpaceError
from swarm.protocol.ids import NODE_ID_BYTES, Identity, NodeId, VersionId
from swarm.protocol.manifest import Manifest
from swarm.store.byte_ranges import copy_range, read_only_copy
from swarm.store.descriptors import Descriptor, Descriptors
from swarm.store.faults import faults_of
from swarm.store.readiness import boot_id
from swarm.store.state_file import StateHeader, StateTable
from swarm.store.stored_version import StoredVersion
from swarm.store.visibility import MemoryVisibility

# Each version has a cache of its own, so any number does.
_OWNER = 0


class MemoryFiles:
    """`VersionFiles` over memfds, all open until `free`."""

    path = "memory"

    def __init__(self, manifest: Manifest) -> None:
        self._is_whole = [False] * len(manifest.files)
        # Large enough for all: they are opened here and never again.
        self._descriptors = Descriptors(limit=len(manifest.files))
        try:
            for index, entry in enumerate(manifest.files):
                opener = partial(_memfd, entry.path, entry.size)
                self.release(self._descriptors.acquire((_OWNER, index), opener))
        except OSError:
            self.free()
            raise

    def acquire(self, file_index: int) -> Descriptor:
        return self._descriptors.acquire((_OWNER, file_index), _freed)

    def release(self, descriptor: Descriptor) -> None:
        self._descriptors.release(descriptor)

    def open_read_only(self, file_index: int) -> int:
        descriptor = self.acquire(file_index)
        try:
            return read_only_copy(descriptor.fd)
        finally:
            self.release(descriptor)

    def open_scratch(self) -> int:
        return _memfd("scratch", 0)

    def is_whole(self, file_index: int) -> bool:
        return self._is_whole[file_index]

    def is_gone(self, file_index: int) -> bool:
        return False

    def complete(self, file_index: int) -> None:
        self._is_whole[file_index] = True

    def reopen(self, file_index: int, *, keeps_inode: bool) -> bool:
        """The old memory stays with whoever mapped it."""
        self._is_whole[file_index] = False
        if keeps_inode:
            return False
        descriptor = self.acquire(file_index)
        try:
            size = os.fstat(descriptor.fd).st_size
            fd = _memfd("copy", size)
            copy_range(descriptor.fd, 0, fd, 0, size)
            # The number stays, the inode behind it changes: descriptors in use stay valid.
            os.dup2(fd, descriptor.fd, inheritable=False)
            os.close(fd)
        finally:
            self.release(descriptor)
        return True

    def clear_parts(self) -> None:
        return

    def sync(self) -> None:
        return

    def close(self) -> None:
        """The bytes stay with the store."""

    def free(self) -> None:
        """Give the memory back, each file with its last pin."""
        self._descriptors.forget_owner(_OWNER)


@dataclass(frozen=True, slots=True)
class _Resident:
    """A version's bytes, which stay over `close` of its handle until it is evicted."""

    manifest_bytes: bytes
    files: MemoryFiles
    visibility: MemoryVisibility
    # The latest handle, open or closed.
    version: StoredVersion


class MemoryStore:
    """A `ChunkStore` of at most `budget_bytes` of file bytes."""

    def __init__(self, budget_bytes: int) -> None:
        self.identity = Identity(NodeId(os.urandom(NODE_ID_BYTES)), 1)
        self._budget_bytes = budget_bytes
        self._residents: dict[VersionId, _Resident] = {}

    def open_version(self, manifest: Manifest, manifest_bytes: bytes) -> StoredVersion:
        resident = self._residents.get(manifest.version)
        if resident is not None:
            assert resident.version.is_closed, "a version is opened once at a time"
            files, visibility = resident.files, resident.visibility
            held = tuple(resident.version.have)
        else:
            self._check_budget(manifest)
            with faults_of("memory"):
                files, visibility = MemoryFiles(manifest), MemoryVisibility()
            held = ()
        with faults_of("memory"):
            states = StateTable(_header(manifest, visibility), held, None)
        version = StoredVersion(manifest, "", files, states, visibility, held)
        self._residents[manifest.version] = _Resident(manifest_bytes, files, visibility, version)
        return version

    def versions(self) -> tuple[VersionId, ...]:
        return tuple(self._residents)

    def manifest_bytes(self, version: VersionId) -> bytes | None:
        resident = self._residents.get(version)
        return resident.manifest_bytes if resident else None

    def evict(self, version: VersionId) -> None:
        resident = self._residents.get(version)
        if resident is None:
            return
        if not resident.version.is_closed:
            raise LockedError(f"version {version.hex()} is open", object_name=version.hex())
        del self._residents[version]
        resident.files.free()

    def close(self) -> None:
        for resident in self._residents.values():
            if not resident.version.is_closed:
                resident.version.close()
            resident.files.free()
        self._residents.clear()

    def _check_budget(self, manifest: Manifest) -> None:
        used = sum(other.version.manifest.total_bytes for other in self._residents.values())
        if used + manifest.total_bytes > self._budget_bytes:
            raise NoSpaceError(
                f"memory store: needs {manifest.total_bytes} bytes,"
                f" free {self._budget_bytes - used} of {self._budget_bytes}",
                object_name=manifest.version.hex(),
                hint="raise the budget, evict a version, or use --store disk",
            )


def _header(manifest: Manifest, visibility: MemoryVisibility) -> StateHeader:
    return StateHeader(
        boot_id=boot_id(),
        version=manifest.version,
        generation=1,
        device=0,
        chunk_count=len(manifest.chunks),
        is_clean=False,
        is_published=visibility.is_ready,
    )


def _freed() -> int:
    raise OSError(errno.EBADF, "the version was evicted")


def _memfd(name: str, size: int) -> int:
    # The kernel takes 249 bytes of name; it is only seen in /proc.
    fd = os.memfd_create(name.encode()[-200:].decode("utf-8", "replace"), os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd
