"""Reads chunks and documents of versions from the origin, and judges its answers.

A large chunk is read over several connections on split ranges, since a connection to an object
store has a rate of its own (about 90 MB/s at Amazon's). Small chunks that follow each other in one
object are read with one request; each is verified and told of by itself, and when the request
breaks, what was received stays and another goes on from there. Two kinds of failure are told apart:

*Wrong answers* (another status or range than asked for, a body too short, a wrong digest) are
repeated here, on new connections, `ATTEMPTS_MAX` times a chunk; a cut range goes on where it was
cut, a wrong digest starts the chunk again. They come fast, and asking the tracker for another
lease would only move them to another node. After that they are final: OriginError, or
IntegrityError where bytes arrived that are not the chunk's.

*Transient failures* (no connection, no answer, a stall, 5xx, 429) are told at once: whoever holds a
lease has to give it back, and whoever has none decides when to ask again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import trio
from blake3 import blake3

from swarm.agent.network_settings import default_worker_count
from swarm.agent.object_probes import ObjectProbes
from swarm.agent.origin_faults import final, wrong_digest
from swarm.agent.origin_read import (
    ATTEMPTS_MAX,
    AttemptBudget,
    ChunkRead,
    Ended,
    OriginRead,
    ReadOrder,
    ReadParts,
)
from swarm.agent.rate_limit import RateLimit
from swarm.agent.segments import SegmentPool
from swarm.agent.workers import Workers
from swarm.errors import IntegrityError, OriginAnswerError, SwarmError
from swarm.origin.origin import Origin
from swarm.protocol.ids import ChunkIndex, VersionId
from swarm.protocol.locations import (
    LOCATIONS_BYTES_MAX,
    Place,
    locations_key,
    manifest_key,
)
from swarm.protocol.manifest import MANIFEST_BYTES_MAX, Manifest
from swarm.store.chunk_store import VersionStore

PAUSE_S = 0.5  # Before the second attempt at most, doubled each time: 3.5 s in all, below the 10
# that a chunk's wrong answers may take.
SEGMENTS_MAX = 64  # MiB of memory for all reads together.


class OriginClient:
    """The agent's door to its origin. `limiter`, if given, caps the rate of all reads together;
    `pause_s` is the longest pause before a first repetition. Made and closed in the trio loop."""

    def __init__(
        self, origin: Origin, *, limiter: RateLimit | None = None, pause_s: float = PAUSE_S
    ) -> None:
        self.origin = origin
        self._pause_s = pause_s
        self._workers = Workers(default_worker_count(), trio.lowlevel.current_trio_token())
        pool = SegmentPool(SEGMENTS_MAX, self._workers)
        self._parts = ReadParts(origin, self._workers, pool, ObjectProbes(), limiter)

    async def prepare(self) -> None:
        """See `Origin.prepare`; what it finds wrong is left to the first read to say."""
        try:
            await self.origin.prepare()
        except SwarmError:
            return

    async def aclose(self) -> None:
        """End the threads and the connections; no read may be in flight."""
        await self._workers.close()
        await self.origin.aclose()

    async def fetch_manifest(self, version: VersionId) -> bytes:
        """The manifest's bytes, with the right digest. Raises NotFoundError, OriginError,
        IntegrityError, AuthError."""
        key = manifest_key(version)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            raw = await self._document(key, MANIFEST_BYTES_MAX)
            found = blake3(raw).hexdigest()
            if found == version.hex():
                return raw
            if attempt < ATTEMPTS_MAX:
                await trio.sleep(random.uniform(0, self._pause_s * 2 ** (attempt - 1)))
        raise IntegrityError(
            f"the manifest of version {version.hex()} at {self.origin.url} has digest {found}",
            object_name=version.hex(),
            hint="publish the version again",
        )

    async def fetch_locations(self, version: VersionId) -> bytes:
        """Where the version's bytes lie. Raises NotFoundError, OriginError, AuthError."""
        return await self._document(locations_key(version), LOCATIONS_BYTES_MAX)

    async def fetch_chunks(
        self,
        manifest: Manifest,
        store: VersionStore,
        chunks: Sequence[tuple[ChunkIndex, Place]],
        connections: int,
        *,
        progress: Callable[[ChunkIndex, int], None],
        ended: Ended,
    ) -> None:
        """Read, verify and store one chunk, over so many connections, or several whose places
        follow each other, over one; see the module for what is repeated.

        `progress` is told of further received bytes, those of repeated attempts included. `ended`
        is told of each chunk once, except of those that this read does not get to: because another
        failed or because it was cancelled.
        """
        order = ReadOrder(manifest, store, progress, ended)
        reads = [ChunkRead(chunk, place, AttemptBudget(self._pause_s)) for chunk, place in chunks]
        first = OriginRead(self._parts, order, reads, connections)
        wrong = await first.run()
        if first.is_broken:
            return
        for read in wrong:
            if not await self._repeat(order, read, connections):
                return

    async def _repeat(self, order: ReadOrder, read: ChunkRead, connections: int) -> bool:
        """Read a chunk again whose digest was wrong. False if the origin broke meanwhile."""
        while True:
            verdict = read.verdict
            if not await read.budget.may_repeat():
                assert verdict is not None
                assert isinstance(verdict.error, IntegrityError)
                error = wrong_digest(
                    f"{order.label(read.chunk)} from the origin {self.origin.url}",
                    read.place.key,
                    verdict.error,
                    read.content_encoding,
                )
                order.ended(read.chunk, error)
                return True
            again = OriginRead(self._parts, order, [read], connections)
            if not await again.run():
                return not again.is_broken

    async def _document(self, key: str, limit_bytes: int) -> bytes:
        try:
            return await self.origin.read_document(key, limit_bytes=limit_bytes)
        except OriginAnswerError as error:
            raise final(error.message, error) from error
