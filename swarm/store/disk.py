"""The store on disk: one cache directory, one agent, many versions.

Two layouts share all code. A **cache** keeps versions under `versions/<id>` beside its lock, its
node file and channel links. A plain **directory** (`swarm pull REF DIR`) is one version at the
root, with lock and node inside its `.swarm`, so that nothing else is added to DIR.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from types import TracebackType

from blake3 import blake3

from swarm.errors import LockedError, UsageError
from swarm.protocol.ids import Identity, VersionId
from swarm.protocol.manifest import Manifest, decode_manifest
from swarm.store.channels import ChannelLinks
from swarm.store.descriptors import Descriptors
from swarm.store.disk_files import remove_below
from swarm.store.faults import faults_of, free_bytes, no_space
from swarm.store.identity import next_identity
from swarm.store.lock import CacheLock, has_reader
from swarm.store.opening import STATE, OpeningContext, open_stored_version, read_manifest
from swarm.store.readiness import READY, is_ready, withdraw
from swarm.store.reuse import ReadyVersion, copy_known_chunks
from swarm.store.stored_version import StoredVersion
from swarm.store.tree import Tree, make_root


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are below the root."""

    root: str
    # One version at the root, everything of ours in its `.swarm`.
    is_single: bool

    @property
    def control(self) -> str:
        """Prefix of lock and node file, relative to the root."""
        return ".swarm/" if self.is_single else ""

    def version_directory(self, version: VersionId) -> str:
        return self.root if self.is_single else f"{self.root}/versions/{version.hex()}"


class DiskStore:
    """A `ChunkStore`. Holds the cache lock from construction to `close`; at the start it takes
    back every READY and channel link that does not count any more."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        with faults_of(layout.root):
            make_root(layout.root)
            self._tree = Tree(layout.root)
        try:
            self._lock = CacheLock(self._tree, f"{layout.control}lock")
        except BaseException:
            self._tree.close()
            raise
        self._open: dict[VersionId, StoredVersion] = {}
        # Two versions opened at once must not both be promised the same free bytes.
        self._opening = threading.Lock()
        self._descriptors = Descriptors()
        self.channels = ChannelLinks(self._tree)
        try:
            # Which boot of which node this is; synced before anybody hears of it.
            self.identity: Identity = next_identity(self._tree, f"{layout.control}node")
            self._owner = f"{self.identity.node_id.hex()}:{self.identity.generation}"
            self._lock.describe(self._owner)
            self.withdraw_stale_ready()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open_cache(cls, path: str) -> DiskStore:
        """The cache at `path`, made if it is not there; raises LockedError, PermissionDeniedError,
        StoreError."""
        return cls(Layout(os.path.abspath(path), is_single=False))

    @classmethod
    def open_directory(cls, path: str) -> DiskStore:
        """A directory that holds one version and nothing else of ours."""
        return cls(Layout(os.path.abspath(path), is_single=True))

    def __enter__(self) -> DiskStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def version_directory(self, version: VersionId) -> str:
        return self._layout.version_directory(version)

    def withdraw_stale_ready(self) -> tuple[VersionId, ...]:
        """Make invisible what may have lost its bytes (a reboot or an unmount before the disk
        had them); the versions concerned."""
        stale = []
        for version in self.versions():
            directory = self.version_directory(version)
            if is_ready(directory):
                continue
            with faults_of(directory):
                tree = Tree(directory)
                try:
                    if tree.regular_size(READY) is not None:
                        withdraw(tree)
                        stale.append(version)
                finally:
                    tree.close()
        self.channels.remove_stale()
        return tuple(stale)

    def open_version(self, manifest: Manifest, manifest_bytes: bytes) -> StoredVersion:
        version = manifest.version
        assert blake3(manifest_bytes).digest() == version
        assert version not in self._open or self._open[version].is_closed, "opened twice"
        sources = self._ready_sources(version)
        directory = self.version_directory(version)
        context = OpeningContext(self._descriptors, self._owner, self._remove_stale_links, sources)
        with faults_of(directory):
            self._make_version_directory(version)
            opened = open_stored_version(directory, manifest, manifest_bytes, context)
        try:
            self._reserve_space(opened)
            for damaged in copy_known_chunks(opened, sources):
                self._distrust(damaged.manifest.version)
        except BaseException:
            opened.close()
            raise
        return opened

    def versions(self) -> tuple[VersionId, ...]:
        if self._layout.is_single:
            raw = self._read_manifest(self._layout.root)
            return () if raw is None else (VersionId(blake3(raw).digest()),)
        with faults_of(self._layout.root):
            found = [_version_named(name) for name in self._tree.names("versions")]
        return tuple(version for version in found if version is not None)

    def manifest_bytes(self, version: VersionId) -> bytes | None:
        raw = self._read_manifest(self.version_directory(version))
        return raw if raw is not None and blake3(raw).digest() == version else None

    def evict(self, version: VersionId) -> None:
        """Remove a closed version with all it holds; nothing if it is not here. Raises
        LockedError while it is open or a reader holds it."""
        if self._layout.is_single:
            raise UsageError("a pulled directory is not evicted", hint="remove the directory")
        opened = self._open.get(version)
        if opened is not None and not opened.is_closed:
            raise LockedError(f"version {version.hex()} is open", object_name=version.hex())
        directory = self.version_directory(version)
        if not os.path.isdir(directory):
            return
        with faults_of(directory):
            tree = Tree(directory)
            try:
                if has_reader(tree):
                    raise LockedError(
                        f"version {version.hex()} is in use by a reader",
                        object_name=version.hex(),
                        hint="stop the process that serves it",
                    )
                withdraw(tree)
            finally:
                tree.close()
            self.channels.remove_stale()
            remove_below(self._tree, f"versions/{version.hex()}")
        self._open.pop(version, None)

    def close(self) -> None:
        for version in self._open.values():
            if not version.is_closed:
                version.close()
        self._open.clear()
        self._tree.close()
        self._lock.release()

    def _make_version_directory(self, version: VersionId) -> None:
        if not self._layout.is_single:
            self._tree.make_directory(f"versions/{version.hex()}")

    def _remove_stale_links(self) -> None:
        self.channels.remove_stale()

    def _ready_sources(self, target: VersionId) -> list[ReadyVersion]:
        """Other versions that are ready here; none if the target is ready itself."""
        if is_ready(self.version_directory(target)):
            return []
        sources = []
        for version in self.versions():
            directory = self.version_directory(version)
            raw = self.manifest_bytes(version)
            if version != target and raw is not None and is_ready(directory):
                sources.append(ReadyVersion(directory, decode_manifest(raw, version)))
        return sources

    def _reserve_space(self, opened: StoredVersion) -> None:
        """Versions being filled have their missing bytes reserved; raises NoSpaceError."""
        with self._opening:
            others = sum(
                version.missing_bytes for version in self._open.values() if not version.is_closed
            )
            free = free_bytes(opened.directory)
            if opened.missing_bytes > free - others:
                raise no_space(
                    opened.directory,
                    opened.missing_bytes,
                    f"not enough space ({others} bytes are reserved for other versions)",
                )
            self._open[opened.manifest.version] = opened

    def _distrust(self, version: VersionId) -> None:
        """Some chunk of a ready version has not the digest it should: hash it all again when it
        is opened, and let nobody see it until then."""
        opened = self._open.get(version)
        if opened is not None and not opened.is_closed:
            for chunk in list(opened.have):
                opened.verify_chunk(chunk)
            return
        directory = self.version_directory(version)
        with faults_of(directory):
            tree = Tree(directory)
            try:
                withdraw(tree)
                tree.unlink(STATE)  # Nothing in it may be trusted.
            finally:
                tree.close()
        self.channels.remove_stale()

    def _read_manifest(self, directory: str) -> bytes | None:
        with faults_of(directory):
            try:
                tree = Tree(directory)
            except FileNotFoundError:
                return None
            try:
                return read_manifest(tree)
            finally:
                tree.close()


def _version_named(name: str) -> VersionId | None:
    try:
        raw = bytes.fromhex(name)
    except ValueError:
        return None
    return VersionId(raw) if len(raw) == 32 and raw.hex() == name else None
