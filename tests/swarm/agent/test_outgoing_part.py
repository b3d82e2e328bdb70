"""Serving from a real disk: pages that are not in memory are noticed before a send would wait."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

import pytest

from swarm.agent.outgoing_part import SLICE_BYTES, OutgoingPart
from swarm.errors import NotFoundError, StoreError
from swarm.policy.events import ChunkVerified
from swarm.protocol.codec import FrameDecoder
from swarm.protocol.ids import ChunkIndex, SessionId
from swarm.protocol.messages import Chunk, Request
from swarm.store.chunk_store import VersionStore
from swarm.store.disk import DiskStore
from tests.support.peers import connect, peer
from tests.support.versions import MadeVersion, fill, make_version

MIB = 1 << 20


def version_of(mib: int) -> MadeVersion:
    return make_version({"a": random.Random(4).randbytes(mib * MIB)}, chunk_bytes=mib * MIB)


def request_of(version: MadeVersion, *, stripe: int = 0, stripes: int = 1) -> Request:
    length = version.manifest.lengths[0]
    return Request(
        SessionId(1), stripe, stripes, version.manifest.version, ChunkIndex(0), 0, length
    )


def forget_pages(store: VersionStore) -> bool:
    """Drop a file's pages from memory; False where the file system keeps them."""
    with store.open_span(ChunkIndex(0)) as span:
        os.fsync(span.fd)
        os.posix_fadvise(span.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            os.preadv(span.fd, [bytearray(1)], span.offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False


def send_whole(part: OutgoingPart) -> bytes:
    """Everything it sends, received on the other end."""
    ours, theirs = socket.socketpair()
    received = bytearray()
    with ours, theirs:
        ours.setblocking(False)
        while not part.is_whole:
            if not part.is_warm():
                part.warm_up()
                assert part.is_warm()
            try:
                part.send(ours.fileno(), SLICE_BYTES)
            except BlockingIOError:
                received += theirs.recv(SLICE_BYTES)
        ours.close()
        while got := theirs.recv(SLICE_BYTES):
            received += got
    part.close()
    return bytes(received)


@pytest.fixture
def disk(tmp_path: Path) -> DiskStore:
    return DiskStore.open_cache(str(tmp_path / "cache"))


def test_cold_pages_are_read_before_they_are_sent(disk: DiskStore) -> None:
    version = version_of(3)
    store = disk.open_version(version.manifest, version.manifest_bytes)
    fill(store, version)
    is_cold = forget_pages(store)
    part = OutgoingPart(store, request_of(version))
    assert part.is_warm() is not is_cold
    assert send_whole(part) == version.chunk_bytes_of(0)
    store.close()
    disk.close()


def test_stripes_carry_what_their_headers_promise(disk: DiskStore) -> None:
    version = version_of(3)
    store = disk.open_version(version.manifest, version.manifest_bytes)
    fill(store, version)
    whole = version.chunk_bytes_of(0)
    first = OutgoingPart(store, request_of(version, stripe=0, stripes=2))
    (header,) = FrameDecoder().feed(first.header)
    assert isinstance(header, Chunk)
    assert header.length == 2 * MIB
    assert send_whole(first) == whole[:MIB] + whole[2 * MIB :]
    second = OutgoingPart(store, request_of(version, stripe=1, stripes=2))
    assert send_whole(second) == whole[MIB : 2 * MIB]
    store.close()
    disk.close()


def test_file_that_lost_its_end_is_a_store_error(disk: DiskStore) -> None:
    version = version_of(1)
    store = disk.open_version(version.manifest, version.manifest_bytes)
    fill(store, version)
    os.truncate(Path(store.directory) / "a", 1000)
    with pytest.raises(StoreError):
        send_whole(OutgoingPart(store, request_of(version)))
    store.close()
    disk.close()


def test_chunk_that_is_not_held_is_not_found(disk: DiskStore) -> None:
    version = version_of(1)
    store = disk.open_version(version.manifest, version.manifest_bytes)
    with pytest.raises(NotFoundError):
        OutgoingPart(store, request_of(version))
    with pytest.raises(NotFoundError):
        OutgoingPart(None, request_of(version))
    store.close()
    disk.close()


async def test_seed_with_cold_pages_serves_from_its_disk(tmp_path: Path) -> None:
    version = version_of(3)
    async with (
        peer("seed", version, holds=None, cache=tmp_path / "seed") as seed,
        peer("fetcher", version, cache=tmp_path / "fetcher") as fetcher,
    ):
        forget_pages(seed.stores[version.manifest.version])
        await connect(fetcher, seed)
        fetcher.request(seed, version.manifest.version, 0, transfer=1)
        await fetcher.wait_for(ChunkVerified)
        with fetcher.stores[version.manifest.version].open_span(ChunkIndex(0)) as span:
            assert os.pread(span.fd, span.length, span.offset) == version.chunk_bytes_of(0)
