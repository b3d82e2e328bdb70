"""A disk cache as tests handle it: opened, killed, tampered with."""

from __future__ import annotations

import os
from pathlib import Path

from swarm.store.disk import DiskStore
from swarm.store.stored_version import StoredVersion
from tests.support.versions import MadeVersion


def open_cache(cache: Path) -> DiskStore:
    return DiskStore.open_cache(str(cache))


def open_made(store: DiskStore, made: MadeVersion) -> StoredVersion:
    return store.open_version(made.manifest, made.manifest_bytes)


def kill(store: DiskStore, version: StoredVersion) -> None:
    """What SIGKILL leaves: descriptors closed by the kernel, no orderly close."""
    version._states.close(is_clean=False)
    version._files.close()
    version.is_closed = True
    store.close()


def part(version_directory: str, path: str) -> Path:
    return Path(version_directory, ".swarm", "parts", path)


def rot(path: Path, offset: int) -> None:
    """Flip a bit as a failing disk does: no time tells of it."""
    status = path.stat()
    _flip(path, offset)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def tamper(path: Path, offset: int) -> None:
    """Flip a bit as a user does, later than the store's last write. The clock of a file system
    may tick every few milliseconds only, so the time is moved on."""
    _flip(path, offset)
    changed_at_ns = path.stat().st_mtime_ns + 10_000_000
    os.utime(path, ns=(changed_at_ns, changed_at_ns))


def _flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes((byte[0] ^ 1,)))
