"""What being visible means: two mark files on disk, a flag in memory."""

from __future__ import annotations

from collections.abc import Callable

from swarm.protocol.ids import VersionId
from swarm.store.readiness import is_durable, withdraw, write_durable, write_ready
from swarm.store.tree import Tree


class DiskVisibility:
    """READY and DURABLE of one version directory. The tree is lent."""

    def __init__(
        self,
        tree: Tree,
        version: VersionId,
        owner: str,
        *,
        is_ready: bool,
        on_withdrawn: Callable[[], None],
    ) -> None:
        self._tree = tree
        self._version = version
        self._owner = owner
        self._on_withdrawn = on_withdrawn
        self.is_ready = is_ready
        self.is_durable = is_ready and is_durable(tree)

    def publish(self) -> None:
        write_ready(self._tree, self._version, self._owner)
        self.is_ready = True

    def withdraw(self) -> None:
        self.is_ready = False
        self.is_durable = False
        withdraw(self._tree)
        self._on_withdrawn()

    def mark_durable(self) -> None:
        # READY and the manifest are flushed with the directory that names them.
        self._tree.sync_file(".swarm/manifest")
        self._tree.sync_file(".swarm/READY")
        self._tree.sync_directory(".swarm")
        write_durable(self._tree, self._version)
        self.is_durable = True


class MemoryVisibility:
    """Nothing survives the process, so READY is a flag and DURABLE never is."""

    def __init__(self) -> None:
        self.is_ready = False
        self.is_durable = False

    def publish(self) -> None:
        self.is_ready = True

    def withdraw(self) -> None:
        self.is_ready = False

    def mark_durable(self) -> None:
        return
