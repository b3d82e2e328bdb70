"""Reads chunks and documents of versions from the origin, and judges its answers.

A chunk is read over several connections on split ranges, since a connection to an object store has
a rate of its own (about 90 MB/s at Amazon's). Two kinds of failure are told apart:

*Wrong answers* (another status or range than asked for, a body too short, a wrong digest) are
repeated here, on new connections, `ATTEMPTS_MAX` times a chunk; a cut range goes on where it was
cut, a wrong digest starts the chunk again. They come fast, and asking the tracker for another
lease would only move them to another node. After that they are final: OriginError, or
IntegrityError where bytes arrived that are not the chunk's.

*Transient failures* (no connection, no answer, a stall, 5xx, 429) are raised at once: whoever holds
a lease has to give it back. A caller without a tracker uses `fetch_chunk_persistently`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import trio
from blake3 import blake3

from swarm.agent.object_probes import ObjectProbes
from swarm.agent.origin_faults import chunk_label, final, labelled, wrong_digest
from swarm.agent.range_receiver import ByteLimiter, RangeReceiver, WriteRoom
from swarm.agent.throttle_gate import ThrottleGate
from swarm.errors import (
    IntegrityError,
    OriginAnswerError,
    OriginError,
    OriginThrottledError,
    StalledError,
    SwarmError,
)
from swarm.origin.origin import Origin
from swarm.protocol.ids import ChunkIndex, VersionId
from swarm.protocol.locations import (
    LOCATIONS_BYTES_MAX,
    Locations,
    Place,
    locations_key,
    manifest_key,
)
from swarm.protocol.manifest import MANIFEST_BYTES_MAX, MIB, Manifest
from swarm.store.chunk_store import ChunkWriter, CommitResult

ATTEMPTS_MAX = 4  # A bad path among several is left by then; a bad origin answers four times fast.
PAUSE_S = 0.5  # Before the second attempt at most, doubled each time: 3.5 s in all, below the 10
# that a chunk's wrong answers may take.
RANGE_BYTES_MIN = MIB  # A connection is not worth opening for less; a request takes ~20 ms.
RETRY_S_MAX = 5.0  # Between persistent attempts; an origin that is back is noticed within this.


class OriginClient:
    """The agent's door to its origin. `limiter`, if given, caps the rate of all reads together;
    `pause_s` is the longest pause before a first repetition."""

    def __init__(
        self, origin: Origin, *, limiter: ByteLimiter | None = None, pause_s: float = PAUSE_S
    ) -> None:
        self.origin = origin
        self._pause_s = pause_s
        self._limiter = limiter
        self._room = WriteRoom()
        self._gate = ThrottleGate()
        self._probes = ObjectProbes()
        # When a chunk was last verified; the start before the first.
        self._verified_at = float("-inf")

    async def prepare(self) -> None:
        """See `Origin.prepare`; what it finds wrong is left to the first read to say."""
        try:
            await self.origin.prepare()
        except SwarmError:
            return

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

    async def fetch_chunk(
        self,
        manifest: Manifest,
        locations: Locations,
        chunk: ChunkIndex,
        connections: int,
        open_writer: Callable[[], ChunkWriter],
        *,
        progress: Callable[[int], None],
    ) -> CommitResult:
        """Read, verify and store one chunk; see the module for what is repeated.

        `open_writer` is called in a worker thread, once for each time the chunk starts. `progress`
        is told of further received bytes, those of repeated attempts included. Raises OriginError,
        OriginThrottledError, NotFoundError, AuthError, IntegrityError; StoreError and NoSpaceError
        from the writer.
        """
        read = _ChunkRead(
            place=locations.place(manifest, chunk),
            connections=connections,
            progress=progress,
            budget=_AttemptBudget(self._pause_s),
            label=chunk_label(manifest, chunk),
        )
        while True:
            writer = await trio.to_thread.run_sync(open_writer)
            await self._receive_or_abort(read, writer)
            try:
                # Shielded: a cancelled call might not begin, and only a writer that ends gives its
                # chunk back.
                with trio.CancelScope(shield=True):
                    result = await trio.to_thread.run_sync(writer.commit)
            except IntegrityError as error:
                if not await read.budget.may_repeat():
                    raise wrong_digest(
                        f"{read.label} from the origin {self.origin.url}",
                        read.place.key,
                        error,
                        read.content_encoding,
                    ) from error
                continue
            self._verified_at = trio.current_time()
            self._gate.open()
            return result

    async def fetch_chunk_persistently(
        self,
        manifest: Manifest,
        locations: Locations,
        chunk: ChunkIndex,
        connections: int,
        open_writer: Callable[[], ChunkWriter],
        *,
        progress: Callable[[int], None],
        stall_timeout_s: float,
    ) -> CommitResult:
        """The same for a caller that nobody coordinates: transient failures are repeated until this
        client has verified no chunk for `stall_timeout_s`; then StalledError with the last of
        them."""
        started_at = trio.current_time()
        pause_s = self._pause_s
        while True:
            await self._gate.pass_through()
            width = 1 if self._gate.is_closed else connections
            try:
                return await self.fetch_chunk(
                    manifest, locations, chunk, width, open_writer, progress=progress
                )
            except OriginError as error:
                if not error.is_retryable:
                    raise
                self._check_stall(started_at, stall_timeout_s, error)
                if isinstance(error, OriginThrottledError):
                    self._gate.close(error.retry_after_s)
            await trio.sleep(random.uniform(0, pause_s))
            pause_s = min(2 * pause_s, RETRY_S_MAX)

    async def _document(self, key: str, limit_bytes: int) -> bytes:
        try:
            return await self.origin.read_document(key, limit_bytes=limit_bytes)
        except OriginAnswerError as error:
            raise final(error.message, error) from error

    async def _receive_or_abort(self, read: _ChunkRead, writer: ChunkWriter) -> None:
        """A writer ends whatever happens: here, or by the caller's commit."""
        try:
            await self._receive(read, writer)
        except BaseException as error:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(writer.abort)
            if isinstance(error, SwarmError):
                raise labelled(read.label, error) from error.__cause__
            raise

    async def _receive(self, read: _ChunkRead, writer: ChunkWriter) -> None:
        """All bytes of a chunk into `writer`, over several connections."""
        async with trio.open_nursery() as nursery:
            for start, length in split(read.place.length, read.connections):
                receiver = RangeReceiver(
                    writer,
                    start,
                    length,
                    room=self._room,
                    nursery=nursery,
                    progress=read.progress,
                    limiter=self._limiter,
                )
                nursery.start_soon(self._read_range, read, receiver, nursery.cancel_scope)
        if read.failure is not None:
            failure, read.failure = read.failure, None
            raise failure

    async def _read_range(
        self, read: _ChunkRead, receiver: RangeReceiver, scope: trio.CancelScope
    ) -> None:
        """One split range, on as many connections as it takes; a failure stops the others."""
        try:
            while receiver.received < receiver.length:
                await self._read_once(read, receiver)
            await receiver.finish()
        except SwarmError as error:
            read.failure = read.failure or error
            scope.cancel()
        finally:
            receiver.close()

    async def _read_once(self, read: _ChunkRead, receiver: RangeReceiver) -> None:
        place = read.place

        async def sink(offset: int, view: memoryview) -> None:
            self._probes.note_bytes(place.key)
            await receiver.take(offset, view)

        try:
            async with self._probes.reading(place.key):
                encoding = await self.origin.read_range(
                    place.key,
                    place.offset + receiver.start + receiver.received,
                    receiver.length - receiver.received,
                    etag=place.etag,
                    sink=sink,
                )
        except OriginAnswerError:
            if not await read.budget.may_repeat():
                raise
        else:
            read.content_encoding = read.content_encoding or encoding

    def _check_stall(self, started_at: float, stall_timeout_s: float, error: OriginError) -> None:
        waited_s = trio.current_time() - max(started_at, self._verified_at)
        if waited_s >= stall_timeout_s:
            raise StalledError(
                f"no verified byte for {waited_s:.0f} s; last: {error.message}",
                object_name=error.object_name,
                hint="check the origin, or raise --stall-timeout",
            ) from error


@dataclass(slots=True)
class _ChunkRead:
    """One chunk that is being read."""

    place: Place
    connections: int
    progress: Callable[[int], None]
    budget: _AttemptBudget
    # Version, file and chunk, for messages.
    label: str
    # The first failure of any of its ranges.
    failure: SwarmError | None = None
    # "" unless an answer said that its body was re-encoded.
    content_encoding: str = ""


class _AttemptBudget:
    """How often a chunk's wrong answers are repeated, over all its ranges."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._repeat_count = 0

    async def may_repeat(self) -> bool:
        """Count one wrong answer. True after a pause, False if it was the last that is allowed."""
        self._repeat_count += 1
        if self._repeat_count >= ATTEMPTS_MAX:
            return False
        await trio.sleep(random.uniform(0, self._pause_s * 2 ** (self._repeat_count - 1)))
        return True


def split(length: int, connections: int) -> list[tuple[int, int]]:
    """(start, length) of equal contiguous ranges, at most one a connection, none of them small."""
    count = max(1, min(connections, length // RANGE_BYTES_MIN))
    bounds = [length * index // count for index in range(count + 1)]
    return [(start, stop - start) for start, stop in pairwise(bounds)]
