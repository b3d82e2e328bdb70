"""One verdict for one transfer, after its last write, whatever the stripes did."""

from __future__ import annotations

from swarm.agent.incoming_chunk import IncomingChunk, Verdict
from swarm.errors import StoreError
from swarm.policy.events import FailureReason
from swarm.protocol.ids import ChunkIndex
from swarm.store.chunk_store import CommitResult, VersionStore
from swarm.store.memory import MemoryStore
from tests.support.versions import MadeVersion, small_version

CHUNK = 1


class BrokenDisk:
    """A writer that fails after its first bytes."""

    length = 65536

    def __init__(self) -> None:
        self.aborted_count = 0

    def write(self, offset: int, payload: memoryview) -> None:
        if offset:
            raise StoreError("input/output error")

    def commit(self) -> CommitResult:
        raise AssertionError("nothing to commit")

    def abort(self) -> None:
        self.aborted_count += 1


def opened(version: MadeVersion) -> VersionStore:
    return MemoryStore(1 << 24).open_version(version.manifest, version.manifest_bytes)


def incoming(store: VersionStore, stripes: int = 1) -> tuple[IncomingChunk, list[Verdict]]:
    verdicts: list[Verdict] = []
    return IncomingChunk(store, ChunkIndex(CHUNK), stripes, verdicts.append), verdicts


def test_whole_chunk_is_verified() -> None:
    version = small_version()
    store = opened(version)
    chunk, verdicts = incoming(store)
    chunk.write(0, memoryview(version.chunk_bytes_of(CHUNK)))
    chunk.end_stripe(is_whole=True)
    assert verdicts == [Verdict(None)]
    assert CHUNK in store.have
    store.close()


def test_stripes_in_any_order_make_one_verdict() -> None:
    version = small_version()
    store = opened(version)
    chunk, verdicts = incoming(store, stripes=2)
    payload = memoryview(version.chunk_bytes_of(CHUNK))
    half = len(payload) // 2
    chunk.write(half, payload[half:])
    chunk.end_stripe(is_whole=True)
    assert verdicts == []
    chunk.write(0, payload[:half])
    chunk.end_stripe(is_whole=True)
    assert verdicts == [Verdict(None)]
    store.close()


def test_one_broken_stripe_loses_the_chunk() -> None:
    version = small_version()
    store = opened(version)
    chunk, verdicts = incoming(store, stripes=2)
    chunk.write(0, memoryview(version.chunk_bytes_of(CHUNK)))
    chunk.end_stripe(is_whole=False)
    chunk.end_stripe(is_whole=True)
    assert verdicts == [Verdict(FailureReason.LOST)]
    assert CHUNK not in store.have
    # Its write token is free again.
    again, later = incoming(store)
    again.write(0, memoryview(version.chunk_bytes_of(CHUNK)))
    again.end_stripe(is_whole=True)
    assert later == [Verdict(None)]
    store.close()


def test_wrong_bytes_are_corrupt() -> None:
    version = small_version()
    store = opened(version)
    chunk, verdicts = incoming(store)
    chunk.write(0, memoryview(bytes(version.manifest.lengths[CHUNK])))
    chunk.end_stripe(is_whole=True)
    assert [verdict.failure for verdict in verdicts] == [FailureReason.CORRUPT]
    store.close()


def test_failed_write_is_local_and_carries_its_error() -> None:
    disk = BrokenDisk()
    version = small_version()
    store = opened(version)
    chunk, verdicts = incoming(store)
    chunk._writer = disk
    payload = memoryview(version.chunk_bytes_of(CHUNK))
    chunk.write(0, payload[:1000])
    chunk.write(1000, payload[1000:])
    chunk.end_stripe(is_whole=True)
    assert verdicts[0].failure is FailureReason.LOCAL
    assert isinstance(verdicts[0].error, StoreError)
    assert disk.aborted_count == 1
    store.close()
