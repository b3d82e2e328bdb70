"""Chunks from a real HTTP server whose answers a proxy breaks, into a real store."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import trio

from swarm.agent.origin_client import OriginClient
from swarm.agent.origin_read import split
from swarm.agent.rate_limit import BURST_S, RateLimit
from swarm.errors import (
    AuthError,
    IntegrityError,
    NoSpaceError,
    NotFoundError,
    OriginError,
    OriginThrottledError,
    SwarmError,
)
from swarm.origin.origin import OriginSettings, open_origin
from swarm.protocol.ids import ChunkIndex
from swarm.protocol.locations import (
    Location,
    Locations,
    encode_locations,
    file_key,
    locations_key,
    manifest_key,
)
from swarm.protocol.tracker_api import PublishRecord
from swarm.store.chunk_store import CommitResult, VersionStore
from swarm.store.memory import MemoryStore
from tests.support.fault_proxy import Fault
from tests.support.served_directory import ServedDirectory, serve_directory
from tests.support.versions import MadeVersion, make_version

MIB = 1 << 20
CHUNK_BYTES = 4 * MIB
CHUNK = ChunkIndex(1)
ALL = (0, 1, 2)
CONTENT = random.Random(1).randbytes(2 * CHUNK_BYTES + 5)
SETTINGS = OriginSettings(
    first_byte_timeout_s=0.3,
    idle_timeout_s=0.3,
    retry_for_s=2.0,
    retry_pause_s=0.02,
    uses_proxy_environment=False,
)


@dataclass(slots=True)
class Bench:
    """A published version, its origin and a store to fetch into."""

    made: MadeVersion
    locations: Locations
    served: ServedDirectory
    client: OriginClient
    store: VersionStore
    # What `progress` was told.
    received: list[int] = field(default_factory=list)

    async def fetch(self, connections: int = 1, chunks: tuple[int, ...] = (CHUNK,)) -> None:
        """Raises what the first chunk that failed ended with."""
        ended = await self.fetch_all(connections, chunks)
        for error in ended.values():
            if error is not None:
                raise error

    async def fetch_all(
        self, connections: int, chunks: tuple[int, ...]
    ) -> dict[int, SwarmError | None]:
        """How each chunk ended that was told of."""
        ended: dict[int, SwarmError | None] = {}

        def note(chunk: ChunkIndex, error: SwarmError | None) -> None:
            assert chunk not in ended, "told twice"
            ended[chunk] = error

        indices = [ChunkIndex(chunk) for chunk in chunks]
        await self.client.fetch_chunks(
            self.made.manifest,
            self.store,
            [(chunk, self.locations.place(self.made.manifest, chunk)) for chunk in indices],
            connections,
            progress=lambda _, count: self.received.append(count),
            ended=note,
        )
        return ended

    def assert_whole(self, chunks: tuple[int, ...] = (CHUNK,)) -> None:
        for chunk in chunks:
            assert chunk in self.store.have
            with self.store.open_span(ChunkIndex(chunk)) as span:
                stored = os.pread(span.fd, span.length, span.offset)
            assert stored == self.made.chunk_bytes_of(chunk)

    def gets(self) -> int:
        return self.served.proxy.count("GET", "/files/")


def published(directory: Path) -> tuple[MadeVersion, Locations]:
    """A version as a publisher leaves it below `directory`."""
    made = make_version({"model.bin": CONTENT}, chunk_bytes=CHUNK_BYTES)
    digest = made.manifest.file_digests[0]
    size = len(CONTENT)
    record = PublishRecord(
        made.manifest.version, "", "", "", 1, size, size, 3, CHUNK_BYTES, 0.0, "", True, False, ()
    )
    locations = Locations({digest: Location(file_key(digest), size, None)}, record)
    for key, content in (
        (file_key(digest), made.contents["model.bin"]),
        (manifest_key(made.manifest.version), made.manifest_bytes),
        (locations_key(made.manifest.version), encode_locations(locations)),
    ):
        (directory / key).parent.mkdir(parents=True, exist_ok=True)
        (directory / key).write_bytes(content)
    return made, locations


@pytest.fixture
async def bench(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Bench]:
    made, locations = published(tmp_path)
    served = await serve_directory(tmp_path, nursery)
    origin = open_origin(served.url, settings=SETTINGS)
    store = MemoryStore(1 << 30)
    version = store.open_version(made.manifest, made.manifest_bytes)
    opened = Bench(made, locations, served, OriginClient(origin, pause_s=0.02), version)
    yield opened
    await opened.client.aclose()
    store.close()


@pytest.mark.parametrize("connections", [1, 3, 64])
async def test_a_chunk_is_read_over_split_ranges(bench: Bench, connections: int) -> None:
    await bench.fetch(connections)
    bench.assert_whole()
    assert bench.gets() == min(connections, 4)
    assert bench.served.proxy.body_bytes_sent == sum(bench.received) == CHUNK_BYTES
    assert await bench.fetch_all(1, (CHUNK,)) == {CHUNK: None}, "held before, and no failure"


def test_ranges_cover_the_chunk_and_are_not_small() -> None:
    for length in (1, MIB - 1, MIB, 5 * MIB + 3):
        for connections in (1, 2, 3, 8):
            ranges = split(length, connections)
            assert len(ranges) <= connections
            assert [start for start, _ in ranges] == [
                sum(size for _, size in ranges[:index]) for index in range(len(ranges))
            ]
            assert sum(size for _, size in ranges) == length
            assert len(ranges) == 1 or min(size for _, size in ranges) >= MIB


@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_cut_range_goes_on_where_it_was_cut(bench: Bench, is_reset: bool) -> None:
    """No byte is fetched twice, and no short chunk is ever held."""
    cut = Fault(every=2, for_requests=2, body_cut=MIB, is_reset=is_reset)
    bench.served.proxy.faults.append(cut)
    await bench.fetch(1)
    bench.assert_whole()
    assert bench.gets() in (2, 3)
    # After a reset the last bytes sent may not have been received.
    assert bench.served.proxy.body_bytes_sent <= CHUNK_BYTES + (MIB if is_reset else 0)


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (Fault(ignores_range=True), OriginError, "status 200 instead of 206"),
        (Fault(body_cut=1000), OriginError, "cut after"),
        (Fault(gzips=True), IntegrityError, "Content-Encoding: gzip"),
        (Fault(flip_bit=77), IntegrityError, "has digest"),
    ],
)
async def test_wrong_answers_end_after_four_attempts_with_a_name(
    bench: Bench, fault: Fault, kind: type[SwarmError], said: str
) -> None:
    bench.served.proxy.faults.append(fault)
    with trio.fail_after(10), pytest.raises(kind) as caught:
        await bench.fetch()
    assert bench.gets() == 4
    assert not caught.value.is_retryable
    assert CHUNK not in bench.store.have
    version = bench.made.manifest.version.hex()[:12]
    for part in (said, f"version {version}, file 'model.bin', chunk 1", bench.served.url):
        assert part in caught.value.message
    if fault.flip_bit is not None:
        assert bench.made.manifest.chunks[CHUNK].digest.hex() in caught.value.message


async def test_one_flipped_bit_costs_one_more_read(bench: Bench) -> None:
    bench.served.proxy.faults.append(Fault(flip_bit=77, for_requests=1))
    await bench.fetch()
    bench.assert_whole()
    assert bench.gets() == 2


async def test_a_content_encoding_is_named_when_the_digest_is_wrong(bench: Bench) -> None:
    """Right length, right range, and still other bytes."""
    bench.served.proxy.faults.append(Fault(flip_bit=0, headers={"content-encoding": "br"}))
    with pytest.raises(IntegrityError, match="Content-Encoding: br"):
        await bench.fetch()


@pytest.mark.parametrize(
    ("fault", "kind", "is_retryable"),
    [
        (Fault(status=503, headers={"retry-after": "7"}), OriginThrottledError, True),
        (Fault(status=500), OriginError, True),
        (Fault(stall_after=1000), OriginError, True),
        (Fault(status=403), AuthError, False),
        (Fault(status=404), NotFoundError, False),
    ],
)
async def test_what_is_not_a_wrong_answer_is_raised_at_once(
    bench: Bench, fault: Fault, kind: type[SwarmError], is_retryable: bool
) -> None:
    bench.served.proxy.faults.append(fault)
    with pytest.raises(kind, match=r"file 'model\.bin', chunk 1") as caught:
        await bench.fetch()
    assert bench.gets() == 1
    assert caught.value.is_retryable is is_retryable
    if isinstance(caught.value, OriginThrottledError):
        assert caught.value.retry_after_s == 7.0
    bench.served.proxy.faults.clear()
    with trio.fail_after(10):
        while not bench.store.have:  # A refusal is believed for a while.
            await trio.sleep(0.1)
            await bench.fetch_all(1, (CHUNK,))
    bench.assert_whole()


async def test_a_cancelled_fetch_leaves_the_chunk_free(bench: Bench) -> None:
    bench.served.proxy.faults.append(Fault(stall_after=MIB + 5, for_requests=4))
    with trio.move_on_after(0.15) as scope:
        await bench.fetch(2)
    assert scope.cancelled_caught
    assert CHUNK not in bench.store.have
    bench.served.proxy.faults.clear()
    await bench.fetch(2)
    bench.assert_whole()


async def test_a_failing_store_is_the_stores_fault(bench: Bench) -> None:
    """It ends the read, for the next chunk would meet it too."""

    class FullWriter:
        length = CHUNK_BYTES

        def write(self, offset: int, payload: memoryview) -> None:
            raise NoSpaceError("the disk is full")

        def commit(self) -> CommitResult:
            raise AssertionError("a failed write is never committed")

        def abort(self) -> None:
            pass

    class FullStore(MemoryStore):
        def writer(self, chunk: ChunkIndex) -> FullWriter:
            return FullWriter()

    bench.store = cast("VersionStore", FullStore(1 << 20))
    with pytest.raises(NoSpaceError, match="the disk is full"):
        await bench.fetch(3)
    (error,) = (await bench.fetch_all(1, ALL)).values()
    assert isinstance(error, NoSpaceError)


async def test_chunks_in_a_row_come_with_one_request(bench: Bench) -> None:
    assert await bench.fetch_all(1, ALL) == dict.fromkeys(ALL)
    bench.assert_whole(ALL)
    assert bench.gets() == 1
    assert bench.served.proxy.body_bytes_sent == sum(bench.received) == len(CONTENT)


async def test_a_run_that_is_cut_goes_on_where_it_was_cut(bench: Bench) -> None:
    """Four cuts are more than a chunk may have, but each has attempts of its own."""
    bench.served.proxy.faults.append(Fault(body_cut=CHUNK_BYTES // 2 + 1))
    await bench.fetch(1, ALL)
    bench.assert_whole(ALL)
    assert bench.gets() == 5
    assert bench.served.proxy.body_bytes_sent == len(CONTENT)


@pytest.mark.parametrize("chunks", [(CHUNK,), ALL])
async def test_an_answer_that_breaks_behind_its_last_byte_is_whole(
    bench: Bench, chunks: tuple[int, ...]
) -> None:
    length = CHUNK_BYTES if len(chunks) == 1 else len(CONTENT)
    bench.served.proxy.faults.append(Fault(body_cut=length, is_chunked=True))
    assert await bench.fetch_all(1, chunks) == dict.fromkeys(chunks)
    bench.assert_whole(chunks)
    assert bench.gets() == 1


async def test_what_came_before_a_break_is_kept_and_the_rest_is_not_told(bench: Bench) -> None:
    """The chunk that was being read has failed; nobody has tried the one after it."""
    bench.served.proxy.faults.append(Fault(stall_after=CHUNK_BYTES + 1000))
    ended = await bench.fetch_all(1, ALL)
    assert list(ended) == [0, 1]
    assert ended[0] is None
    error = ended[1]
    assert error is not None
    assert error.is_retryable
    assert "chunk 1" in error.message
    bench.assert_whole((0,))
    assert bench.gets() == 1


async def test_a_wrong_chunk_of_a_run_is_read_again_alone(bench: Bench) -> None:
    bench.served.proxy.faults.append(Fault(flip_bit=CHUNK_BYTES + 77, for_requests=1))
    await bench.fetch(1, ALL)
    bench.assert_whole(ALL)
    assert bench.gets() == 2
    assert bench.served.proxy.body_bytes_sent == len(CONTENT) + CHUNK_BYTES


async def test_a_chunk_that_stays_wrong_harms_no_other(bench: Bench) -> None:
    made = bench.made
    stored = bench.served.directory / file_key(made.manifest.file_digests[0])
    rotten = bytearray(stored.read_bytes())
    rotten[CHUNK_BYTES + 5] ^= 1
    stored.write_bytes(rotten)
    ended = await bench.fetch_all(1, ALL)
    assert ended[0] is None
    assert ended[2] is None
    assert isinstance(ended[1], IntegrityError)
    assert "chunk 1 from the origin" in ended[1].message
    assert CHUNK not in bench.store.have
    bench.assert_whole((0, 2))
    assert bench.gets() == 4


async def test_a_cancelled_run_leaves_every_chunk_free(bench: Bench) -> None:
    bench.served.proxy.faults.append(Fault(stall_after=CHUNK_BYTES + MIB, for_requests=1))
    with trio.move_on_after(0.15) as scope:
        await bench.fetch(1, ALL)
    assert scope.cancelled_caught
    assert CHUNK not in bench.store.have
    await bench.fetch(1, ALL)
    bench.assert_whole(ALL)


async def test_the_limiter_holds_every_byte(bench: Bench) -> None:
    """All connections share it: 4 MiB at 16 MiB/s, less a burst of 50 ms."""
    rate = 16 * MIB
    await bench.client.aclose()
    origin = open_origin(bench.served.url, settings=SETTINGS)
    bench.client = OriginClient(origin, limiter=RateLimit(rate))
    started_at = trio.current_time()
    await bench.fetch(2)
    assert trio.current_time() - started_at >= CHUNK_BYTES / rate - BURST_S - 0.01
    bench.assert_whole()


async def test_documents_are_found_and_checked(bench: Bench) -> None:
    version = bench.made.manifest.version
    assert await bench.client.fetch_manifest(version) == bench.made.manifest_bytes
    assert (await bench.client.fetch_locations(version)) == encode_locations(bench.locations)
    bench.served.proxy.faults.append(Fault(flip_bit=20, for_requests=1))
    assert await bench.client.fetch_manifest(version) == bench.made.manifest_bytes
    bench.served.proxy.faults[:] = [Fault(flip_bit=20)]
    with pytest.raises(IntegrityError, match="has digest"):
        await bench.client.fetch_manifest(version)
    bench.served.proxy.faults[:] = [Fault(gzips=True)]
    with pytest.raises(IntegrityError, match="Content-Encoding: gzip"):
        await bench.client.fetch_manifest(version)
    bench.served.proxy.faults[:] = [Fault(status=404)]
    with pytest.raises(NotFoundError, match=version.hex()):
        await bench.client.fetch_locations(version)


async def test_more_reads_than_room_wait_for_each_other_and_end(bench: Bench) -> None:
    """80 ranges, three segments each, for 64 segments of memory."""
    origin = open_origin(bench.served.url, settings=OriginSettings(uses_proxy_environment=False))
    await bench.client.aclose()
    bench.client = OriginClient(origin)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(partial(bench.fetch, 4))
    bench.assert_whole()
