"""Channel links: `CACHE/channels/<name> -> ../versions/<id>`, for engines that take a path.

A link is replaced by renaming a new one over it, so it is never missing and never half made, and
it only ever points at a READY version. Whoever opens files through it should resolve it once:
two opens may see two versions.
"""

from __future__ import annotations

import os

from swarm.errors import NotFoundError
from swarm.protocol.ids import VersionId
from swarm.store.faults import faults_of
from swarm.store.readiness import is_ready

_TARGET_PREFIX = "../versions/"


class ChannelLinks:
    """The links of one cache; raises StoreError. Names are checked where references are read."""

    def __init__(self, cache: str) -> None:
        self._cache = cache
        self._directory = f"{cache}/channels"

    def point(self, name: str, version: VersionId) -> None:
        """Let `name` lead to `version`; raises NotFoundError if that is not READY here."""
        assert name not in {"", ".", ".."}, name
        assert "/" not in name, name
        if not is_ready(f"{self._cache}/versions/{version.hex()}"):
            raise NotFoundError(
                f"channel {name}: version {version.hex()} is not ready on this node",
                object_name=version.hex(),
                hint="fetch it first",
            )
        link = f"{self._directory}/{name}"
        temporary = f"{self._directory}/.{name}.new"
        with faults_of(link):
            os.makedirs(self._directory, mode=0o755, exist_ok=True)
            _remove_link(temporary)
            os.symlink(_TARGET_PREFIX + version.hex(), temporary)
            os.replace(temporary, link)

    def target(self, name: str) -> VersionId | None:
        """The version that `name` leads to, or None."""
        try:
            target = os.readlink(f"{self._directory}/{name}")
            return VersionId(bytes.fromhex(target.removeprefix(_TARGET_PREFIX)))
        except (OSError, ValueError):
            return None

    def remove(self, name: str) -> None:
        with faults_of(f"{self._directory}/{name}"):
            _remove_link(f"{self._directory}/{name}")

    def names(self) -> tuple[str, ...]:
        try:
            found = os.listdir(self._directory)
        except FileNotFoundError:
            return ()
        return tuple(sorted(name for name in found if self.target(name) is not None))

    def remove_stale(self) -> tuple[str, ...]:
        """Remove every link to a version that is not ready; the names that went."""
        stale = [
            name
            for name in self.names()
            if (target := self.target(name)) is not None
            and not is_ready(f"{self._cache}/versions/{target.hex()}")
        ]
        for name in stale:
            self.remove(name)
        return tuple(stale)


def _remove_link(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
