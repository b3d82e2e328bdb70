"""One read of the origin under way: a chunk over several connections, or several chunks over one.

Each connection brings one range and has one receiver; each chunk has one verdict, which comes from
a worker thread when its last byte is hashed and stored, while later chunks are still on their way.
The read is over when every chunk has had its verdict, whatever happened: only then has every write
ended, and every chunk is free for another attempt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import trio

from swarm.agent.incoming_chunk import IncomingChunk, Verdict
from swarm.agent.object_probes import ObjectProbes
from swarm.agent.origin_faults import chunk_label, labelled
from swarm.agent.range_receiver import Piece, RangeReceiver
from swarm.agent.rate_limit import RateLimit
from swarm.agent.segments import SegmentPool
from swarm.agent.workers import Workers
from swarm.errors import OriginAnswerError, SwarmError
from swarm.origin.origin import Origin
from swarm.policy.events import FailureReason
from swarm.protocol.ids import ChunkIndex
from swarm.protocol.locations import Place
from swarm.protocol.manifest import MIB, Manifest
from swarm.store.chunk_store import VersionStore

ATTEMPTS_MAX = 4  # A bad path among several is left by then; a bad origin answers four times fast.
RANGE_BYTES_MIN = MIB  # A connection is not worth opening for less; a request takes ~20 ms.

Ended = Callable[[ChunkIndex, SwarmError | None], None]
"""(chunk, None if it is verified now, else why not)"""


@dataclass(frozen=True, slots=True)
class ReadParts:
    """What all reads of a client share."""

    origin: Origin
    workers: Workers
    pool: SegmentPool
    probes: ObjectProbes
    limiter: RateLimit | None


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """Who wants what; see `OriginClient.fetch_chunks`."""

    manifest: Manifest
    store: VersionStore
    progress: Callable[[ChunkIndex, int], None]
    ended: Ended

    def label(self, chunk: ChunkIndex) -> str:
        return chunk_label(self.manifest, chunk)


class AttemptBudget:
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


@dataclass(slots=True, eq=False)
class ChunkRead:
    """One chunk that is being read, over all attempts."""

    chunk: ChunkIndex
    place: Place
    budget: AttemptBudget
    # How its last attempt ended; None while it runs.
    verdict: Verdict | None = None
    # "" unless an answer said that its body was re-encoded.
    content_encoding: str = ""


class OriginRead:
    """See the module; `run` it once."""

    def __init__(
        self, parts: ReadParts, order: ReadOrder, reads: Sequence[ChunkRead], connections: int
    ) -> None:
        """One chunk and any number of connections, or one connection and chunks whose places
        follow each other."""
        assert len(reads) == 1 or connections == 1
        # Something else than a wrong digest ended it; whoever could be told was told.
        self.is_broken = False
        self._parts = parts
        self._order = order
        self._reads = reads
        self._connections = connections
        self._scope = trio.CancelScope()
        self._verdicts_left = len(reads)
        self._all_judged = trio.Event()

    async def run(self) -> list[ChunkRead]:
        """The chunks whose digest was wrong; the end of every other one was told, if this read got
        to it."""
        receivers = self._receivers()
        try:
            with self._scope:
                if len(receivers) == 1:
                    await self._receive(receivers[0])
                else:
                    async with trio.open_nursery() as nursery:
                        for receiver in receivers:
                            nursery.start_soon(self._receive, receiver)
                await self._all_judged.wait()
        finally:
            for receiver in receivers:
                receiver.close()
            # A chunk that is being written is not free, and only its verdict says when it is.
            with trio.CancelScope(shield=True):
                await self._all_judged.wait()
        return [
            read
            for read in self._reads
            if read.verdict is not None and read.verdict.failure is FailureReason.CORRUPT
        ]

    def _receivers(self) -> list[RangeReceiver]:
        first = self._reads[0]
        ranges = split(first.place.length, self._connections)
        incoming = [self._incoming(read, len(ranges)) for read in self._reads]
        if len(ranges) > 1:
            pieces = [[Piece(incoming[0], start, length)] for start, length in ranges]
        else:
            pieces = [
                [
                    Piece(each, 0, read.place.length)
                    for read, each in zip(self._reads, incoming, strict=True)
                ]
            ]
        starts = [first.place.offset + start for start, _ in ranges]
        return [
            RangeReceiver(
                each,
                start,
                pool=self._parts.pool,
                lane=self._parts.workers.lane(),
                progress=self._progressed,
                limiter=self._parts.limiter,
            )
            for start, each in zip(starts, pieces, strict=True)
        ]

    def _incoming(self, read: ChunkRead, stripes: int) -> IncomingChunk:
        read.verdict = None
        call_soon = self._parts.workers.call_soon

        def report(verdict: Verdict) -> None:
            call_soon(partial(self._judged, read, verdict))

        return IncomingChunk(self._order.store, read.chunk, stripes, report)

    def _judged(self, read: ChunkRead, verdict: Verdict) -> None:
        read.verdict = verdict
        self._verdicts_left -= 1
        if not self._verdicts_left:
            self._all_judged.set()
        if verdict.failure is None:
            self._order.ended(read.chunk, None)
        elif verdict.failure is FailureReason.LOCAL:
            assert verdict.error is not None
            self._break(read, verdict.error)

    def _progressed(self, index: int, count: int) -> None:
        read = self._reads[index]
        self._parts.probes.note_bytes(read.place.key)
        self._order.progress(read.chunk, count)

    def _break(self, read: ChunkRead, error: SwarmError) -> None:
        """The first failure ends the whole read, and is the chunk's that met it."""
        if not self.is_broken:
            self.is_broken = True
            self._order.ended(read.chunk, error)
            self._scope.cancel()

    async def _receive(self, receiver: RangeReceiver) -> None:
        """One range, on as many connections as it takes."""
        while receiver.received < receiver.length:
            try:
                await self._receive_once(receiver)
            except SwarmError as error:
                if receiver.received == receiver.length:
                    return  # Broken behind the last byte; the digests decide.
                # Whatever came before is whole; this chunk is the one that was cut.
                read = self._reads[receiver.index]
                is_wrong = isinstance(error, OriginAnswerError)
                if not is_wrong or not await read.budget.may_repeat():
                    self._break(read, labelled(self._order.label(read.chunk), error))
                    return

    async def _receive_once(self, receiver: RangeReceiver) -> None:
        place = self._reads[0].place
        async with self._parts.probes.reading(place.key):
            encoding = await self._parts.origin.read_range(
                place.key,
                receiver.start + receiver.received,
                receiver.length - receiver.received,
                etag=place.etag,
                sink=receiver,
            )
        if encoding:
            for read in self._reads:
                read.content_encoding = read.content_encoding or encoding


def split(length: int, connections: int) -> list[tuple[int, int]]:
    """(start, length) of equal contiguous ranges, at most one a connection, none of them small."""
    count = max(1, min(connections, length // RANGE_BYTES_MIN))
    bounds = [length * index // count for index in range(count + 1)]
    return [(start, stop - start) for start, stop in pairwise(bounds)]
