"""The versions of this agent: fetch the manifest, open the store, and make a whole version visible.

The slow steps (hashing what an earlier run left, renaming, flushing) run in worker threads; what
other tasks see of a version changes between them in one step each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

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
        on_lost: Callable[[HeldVersion, tuple[ChunkIndex, ...]], None],
    ) -> None:
        """`on_lost` hears of chunks that are not held any more; of none when only READY is gone."""
        self._store = store
        self._sources = sources
        self._on_open = on_open
        self._on_ready = on_ready
        self._on_lost = on_lost
        self.held: dict[VersionId, HeldVersion] = {}
        # The same versions' stores: what the peer network reads and writes.
        self.stores: dict[VersionId, VersionStore] = {}
        self._opening: dict[VersionId, trio.CancelScope] = {}
        # One look at doubted chunks at a time: those of one file are often doubted together.
        self._hashing = trio.Lock()
        # Why a wanted version is not open or not whole, in its latest form.
        self.problems: dict[VersionId, SwarmError] = {}

    @property
    def wanted(self) -> tuple[VersionId, ...]:
        """Versions that are open or being opened."""
        return tuple(dict.fromkeys([*self.held, *self._opening]))

    def missing(self) -> tuple[VersionId, ...]:
        """Versions that were asked for and are not READY: being opened, being filled, or refused
        for what their manifest says."""
        asked = dict.fromkeys([*self.wanted, *self.problems])
        return tuple(version for version in asked if not self.is_ready(version))

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
        """READY at once, DURABLE when the disk has it. After a failure of our own disk (full, or a
        flush that lost pages) all is read again and tried again."""
        while True:
            try:
                if await self._make_ready(held):
                    await trio.to_thread.run_sync(held.store.make_durable, abandon_on_cancel=True)
                return
            except SwarmError as error:
                self._note(held.version, error)
                self._tell_lost(held, ())
            finally:
                held.durable.set()
            await trio.sleep(OPEN_RETRY_S)
            await self._look_at(held, _lost_chunks_of_all)

    async def _make_ready(self, held: HeldVersion) -> bool:
        """False if it is not whole any more: damage may have been found meanwhile."""
        async with self._hashing:
            if not (held.is_whole and held.store.have.is_full):
                return False
            if not held.is_ready:
                await trio.to_thread.run_sync(held.store.publish_ready)
                held.is_ready = True
        self.problems.pop(held.version, None)
        logger.info("version %s is ready", held.version.hex()[:12])
        self._on_ready(held)
        return True

    async def hash_again(self, version: VersionId, chunk: ChunkIndex) -> None:
        """Re-read a held chunk and, if it has lost its digest or its file, all others of its
        files: a disk seldom loses one chunk."""
        held = self.held.get(version)
        if held is not None:
            await self._look_at(held, partial(_lost_chunks, chunk=chunk))

    async def _look_at(
        self, held: HeldVersion, find_lost: Callable[[VersionStore], list[ChunkIndex]]
    ) -> None:
        async with self._hashing:
            try:
                found = await trio.to_thread.run_sync(find_lost, held.store)
            except SwarmError as error:
                self._note(held.version, error)
                return
        lost = tuple(chunk for chunk in found if held.drop(chunk))
        if lost:
            logger.warning("version %s: %d chunks are damaged", held.version.hex()[:12], len(lost))
            self._tell_lost(held, lost)

    def _tell_lost(self, held: HeldVersion, lost: tuple[ChunkIndex, ...]) -> None:
        held.is_ready = held.store.is_ready
        self._on_lost(held, lost)

    async def close(self) -> None:
        for held in self.held.values():
            await trio.to_thread.run_sync(held.store.close)
        self.held.clear()
        self.stores.clear()


def _lost_chunks(store: VersionStore, chunk: ChunkIndex) -> list[ChunkIndex]:
    """See `Shelf.hash_again`; runs in a worker thread."""
    if chunk not in store.have:
        return []  # Lost already, and told.
    files = _files_of(store, chunk)
    suspects = [held for held in list(store.have) if files & _files_of(store, held)]
    if not store.verify_chunk(chunk):
        for suspect in suspects:
            store.verify_chunk(suspect)
    return [suspect for suspect in suspects if suspect not in store.have]


def _lost_chunks_of_all(store: VersionStore) -> list[ChunkIndex]:
    """Reads everything; runs in a worker thread."""
    held = list(store.have)
    for chunk in held:
        store.verify_chunk(chunk)
    return [chunk for chunk in held if chunk not in store.have]


def _files_of(store: VersionStore, chunk: ChunkIndex) -> set[int]:
    return {position.file_index for position in store.manifest.chunks[chunk].positions}
