"""Channel links: `CACHE/channels/<name> -> ../versions/<id>`, for engines that take a path.

A link is replaced by renaming a new one over it, so it is never missing and never half made, and
it only ever points at a READY version. Whoever opens files through it should resolve it once:
two opens may see two versions.
"""

from __future__ import annotations

from swarm.errors import NotFoundError
from swarm.protocol.ids import VersionId
from swarm.store.faults import faults_of
from swarm.store.readiness import is_ready
from swarm.store.tree import Tree

_DIRECTORY = "channels"
_TARGET_PREFIX = "../versions/"


class ChannelLinks:
    """The links of one cache; raises StoreError. Names are checked where references are read; the
    tree is lent."""

    def __init__(self, cache: Tree) -> None:
        self._cache = cache

    def point(self, name: str, version: VersionId) -> None:
        """Let `name` lead to `version`; raises NotFoundError if that is not READY here."""
        if not is_ready(f"{self._cache.path}/versions/{version.hex()}"):
            raise NotFoundError(
                f"channel {name}: version {version.hex()} is not ready on this node",
                object_name=version.hex(),
                hint="fetch it first",
            )
        with faults_of(f"{self._cache.path}/{_DIRECTORY}/{name}"):
            self._cache.replace_link(_TARGET_PREFIX + version.hex(), _relative(name))

    def target(self, name: str) -> VersionId | None:
        """The version that `name` leads to, or None."""
        target = self._cache.read_link(_relative(name))
        if target is None or not target.startswith(_TARGET_PREFIX):
            return None
        try:
            return VersionId(bytes.fromhex(target.removeprefix(_TARGET_PREFIX)))
        except ValueError:
            return None

    def remove(self, name: str) -> None:
        if self._cache.read_link(_relative(name)) is not None:
            with faults_of(f"{self._cache.path}/{_DIRECTORY}/{name}"):
                self._cache.unlink(_relative(name))

    def names(self) -> tuple[str, ...]:
        with faults_of(f"{self._cache.path}/{_DIRECTORY}"):
            found = self._cache.names(_DIRECTORY)
        return tuple(name for name in found if self.target(name) is not None)

    def remove_stale(self) -> tuple[str, ...]:
        """Remove every link to a version that is not ready; the names that went."""
        stale = [
            name
            for name in self.names()
            if (target := self.target(name)) is not None
            and not is_ready(f"{self._cache.path}/versions/{target.hex()}")
        ]
        for name in stale:
            self.remove(name)
        return tuple(stale)


def _relative(name: str) -> str:
    assert name not in {"", ".", ".."}, name
    assert "/" not in name, name
    return f"{_DIRECTORY}/{name}"
