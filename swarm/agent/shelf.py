"""The versions of this agent: fetch the manifest, open the store, and make a whole version visible.

The slow steps (hashing what an earlier run left, renaming, flushing) run in worker threads; what
other tasks see of a version changes between them in one step each."""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from swarm.agent.documents import ManifestSource, fetch_manifest
from swarm.agent.held_version import HeldVersion
from swarm.errors import ManifestError, SwarmError
from swarm.protocol.ids import ChunkIndex, VersionId
from swarm.protocol.manifest import decode_manifest
from swarm.store.chunk_store import ChunkStore, VersionStore

logger = logging.getLogger(__name__)

OPEN_RETRY_S = 30.0
"""Between two attempts to open a version here: what stands in the way of the first (a full disk, a
directory that may not be written) is mended by people."""


class Shelf:
    """Owns every `HeldVersion`. The agent says which versions are wanted and hears of each step."""

    def __init__(
        self,
        store: ChunkStore,
        *,
        sources: list[ManifestSource],
        on_open: Callable[[HeldVersion], None],
        on_ready: Callable[[HeldVersion], None],
    ) -> None:
        self._store = store
        self._sources = sources
        self._on_open = on_open
        self._on_ready = on_ready
        self.held: dict[VersionId, HeldVersion] = {}
        # The same versions' stores: what the peer network reads and writes.
        self.stores: dict[VersionId, VersionStore] = {}
        self._opening: dict[VersionId, trio.CancelScope] = {}
        # Why a wanted version is not open or not whole, in its latest form.
        self.problems: dict[VersionId, SwarmError] = {}

    @property
    def wanted(self) -> tuple[VersionId, ...]:
        """Versions that are open or being opened."""
        return tuple(dict.fromkeys([*self.held, *self._opening]))

    def is_ready(self, version: VersionId) -> bool:
        held = self.held.get(version)
        return held is not None and held.is_ready

    def want(self, version: VersionId, nursery: trio.Nursery) -> bool:
        """Open a version in the background; False if it is open or on its way."""
        if version in self.held or version in self._opening:
            return False
        scope = trio.CancelScope()
        self._opening[version] = scope
        nursery.start_soon(self._open, version, scope, nursery)
        return True

    async def _open(
        self, version: VersionId, scope: trio.CancelScope, nursery: trio.Nursery
    ) -> None:
        try:
            with scope:
                held = await self._opened_at_last(version)
                self.held[version] = held
                self.stores[version] = held.store
                self.problems.pop(version, None)
                self._on_open(held)
                if held.is_whole:
                    nursery.start_soon(self._finish, held)
        except ManifestError as error:
            # What the id stands for will never be better.
            self._note(version, error)
        finally:
            del self._opening[version]

    async def _opened_at_last(self, version: VersionId) -> HeldVersion:
        while True:
            try:
                return await self._opened(version)
            except ManifestError:
                raise
            except SwarmError as error:
                self._note(version, error)
            await trio.sleep(OPEN_RETRY_S)

    def _note(self, version: VersionId, error: SwarmError) -> None:
        logger.error("version %s: %s", version.hex()[:12], error.message)
        self.problems[version] = error

    async def _opened(self, version: VersionId) -> HeldVersion:
        raw = await trio.to_thread.run_sync(self._store.manifest_bytes, version)
        if raw is None:
            raw = await fetch_manifest(
                version,
                self._sources,
                on_wait=lambda error: self.problems.__setitem__(version, error),
            )
        manifest = decode_manifest(raw, version)
        store = await trio.to_thread.run_sync(self._store.open_version, manifest, raw)
        return HeldVersion(
            version, manifest, raw, store, bits=store.have.bits, is_ready=store.is_ready
        )

    def chunk_verified(
        self, version: VersionId, chunk: ChunkIndex, nursery: trio.Nursery
    ) -> HeldVersion | None:
        """Note a chunk; the version if it is new here."""
        held = self.held.get(version)
        if held is None or not held.hold(chunk):
            return None
        if held.is_whole:
            nursery.start_soon(self._finish, held)
        return held

    async def _finish(self, held: HeldVersion) -> None:
        """READY at once, DURABLE when the disk has it."""
        name = held.version.hex()[:12]
        try:
            if not held.is_ready:
                await trio.to_thread.run_sync(held.store.publish_ready)
                held.is_ready = True
            self.problems.pop(held.version, None)
            logger.info("version %s is ready", name)
            held.ready.set()
            self._on_ready(held)
            await trio.to_thread.run_sync(held.store.make_durable, abandon_on_cancel=True)
        except SwarmError as error:
            logger.error("version %s: %s", name, error.message)
            self.problems[held.version] = error
            held.is_ready = held.store.is_ready
        finally:
            held.durable.set()

    async def hash_again(self, version: VersionId, chunk: ChunkIndex) -> bool:
        """Re-read a held chunk; False if it has lost its digest (it is not held any more then)."""
        held = self.held.get(version)
        if held is None:
            return True
        is_sound = await trio.to_thread.run_sync(held.store.verify_chunk, chunk)
        if not is_sound:
            held.drop(chunk)
            held.is_ready = held.store.is_ready
        return is_sound

    async def close(self) -> None:
        for held in self.held.values():
            await trio.to_thread.run_sync(held.store.close)
        self.held.clear()
        self.stores.clear()
