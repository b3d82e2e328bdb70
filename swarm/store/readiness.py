"""When a version is visible: `is_ready(directory)`, the one function used by `swarm wait`,
`swarm run`, probes, readers and the agent alike.

READY says that every chunk was verified and every file has its name. It is written without
waiting for the disk, so it must not outlive the page cache that holds the bytes: it records this
boot, the device, the mount and the agent that wrote it, and counts while boot and device match
and either

- the mount id matches: no unmount in between, so no page was lost with a detached disk; or
- the agent that wrote it is still alive and holds the cache lock: its open files keep the file
  system mounted. The serving container sees the same volume under another mount id, and this is
  how it may trust READY before the disk has caught up.

DURABLE is written after everything was flushed and counts always.
"""

from __future__ import annotations

import os

from swarm.protocol.ids import VersionId
from swarm.store.lock import is_held_by
from swarm.store.tree import Tree

READY = ".swarm/READY"
DURABLE = ".swarm/DURABLE"
_MARK_BYTES_MAX = 4096


def is_ready(directory: str) -> bool:
    """Whether the version in `directory` is whole and visible. Never raises for a missing or
    unreadable directory: that is not ready."""
    try:
        tree = Tree(directory)
    except OSError:
        return False
    try:
        return is_durable(tree) or _counts(tree)
    except OSError:
        return False
    finally:
        tree.close()


def is_durable(tree: Tree) -> bool:
    """Whether DURABLE stands; raises OSError."""
    return "version" in _read_mark(tree, DURABLE)


def write_ready(tree: Tree, version: VersionId, owner: str) -> None:
    """Make the version visible; raises OSError."""
    words = {
        "version": version.hex(),
        "boot": boot_id().hex(),
        "device": str(device_of(tree.fd)),
        "mount": mount_id(tree.fd),
        "owner": owner,
    }
    content = "".join(f"{name} {value}\n" for name, value in words.items())
    tree.write_file(READY, content.encode())


def write_durable(tree: Tree, version: VersionId) -> None:
    """Say that all is flushed; the caller has done so. Raises OSError."""
    tree.write_file(DURABLE, f"version {version.hex()}\n".encode(), is_synced=True)


def withdraw(tree: Tree) -> None:
    """Make the version invisible, and keep it so over a power failure; raises OSError."""
    removed = [_remove(tree, mark) for mark in (READY, DURABLE)]
    if any(removed):
        tree.sync_directory(".swarm")


def ready_at_ns(tree: Tree) -> int:
    """When the version became ready, by the file system's clock; raises OSError. No file of it is
    written after that."""
    status = tree.regular_status(READY) or tree.regular_status(DURABLE)
    return 0 if status is None else status.st_mtime_ns


def boot_id() -> bytes:
    """16 bytes that name this boot of the kernel, the same in every container."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return bytes.fromhex(file.read().strip().replace("-", ""))


def device_of(fd: int) -> int:
    return os.fstat(fd).st_dev


def mount_id(fd: int) -> str:
    """The kernel's number for the mount through which `fd` was opened."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name == "mnt_id":
                return value.strip()
    return "unknown"


def _counts(tree: Tree) -> bool:
    mark = _read_mark(tree, READY)
    if mark.get("boot") != boot_id().hex() or mark.get("device") != str(device_of(tree.fd)):
        return False
    if mark.get("mount") == mount_id(tree.fd):
        return True
    # In a cache the lock is beside versions/, in a plain directory inside .swarm.
    locks = (f"{tree.path}/.swarm/lock", f"{tree.path}/../../lock")
    return any(is_held_by(lock, mark.get("owner", "")) for lock in locks)


def _read_mark(tree: Tree, relative: str) -> dict[str, str]:
    raw = tree.read_file(relative, _MARK_BYTES_MAX) or b""
    text = raw.decode("ascii", "replace")
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)


def _remove(tree: Tree, relative: str) -> bool:
    try:
        tree.unlink(relative)
    except FileNotFoundError:
        return False
    return True
