"""One suite over every store of chunks: a directory cache, a single directory, memory."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swarm.errors import IntegrityError, LockedError, NotFoundError
from swarm.protocol.chunk_set import ChunkSet
from swarm.protocol.ids import ChunkIndex
from swarm.store.chunk_store import ChunkStore, CommitResult, VersionStore
from swarm.store.disk import DiskStore
from swarm.store.memory import MemoryStore
from swarm.store.state_file import HELD, MISSING, STATE_HEADER_BYTES
from tests.support.versions import MadeVersion, chunk_list, fill, small_version

MakeStore = Callable[[Path], ChunkStore]
STORES: dict[str, MakeStore] = {
    "cache": lambda path: DiskStore.open_cache(str(path / "cache")),
    "directory": lambda path: DiskStore.open_directory(str(path / "model")),
    "memory": lambda path: MemoryStore(budget_bytes=1 << 30),
}
FIRST = ChunkIndex(0)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ChunkStore]:
    made = STORES[request.param](tmp_path)
    yield made
    made.close()


@pytest.fixture
def made() -> MadeVersion:
    return small_version()


@pytest.fixture
def version(store: ChunkStore, made: MadeVersion) -> VersionStore:
    return store.open_version(made.manifest, made.manifest_bytes)


def read(version: VersionStore, chunk: ChunkIndex) -> bytes:
    with version.open_span(chunk) as span:
        return os.pread(span.fd, span.length, span.offset)


def read_file(version: VersionStore, file_index: int) -> bytes:
    fd = version.open_file(file_index)
    with os.fdopen(fd, "rb") as file:
        return file.read()


def shared_chunk(made: MadeVersion) -> ChunkIndex:
    """A chunk with several positions."""
    return next(c for c in chunk_list(made) if len(made.manifest.chunks[c].positions) > 1)


def state_byte(version: VersionStore, chunk: int) -> int:
    with mmap.mmap(version.state_fd, 0, prot=mmap.PROT_READ) as states:
        return states[STATE_HEADER_BYTES + chunk]


def test_a_new_version_holds_nothing(version: VersionStore, made: MadeVersion) -> None:
    assert version.have == ChunkSet(len(made.chunks))
    assert version.missing_bytes == made.manifest.total_bytes
    assert not version.is_ready


def test_a_committed_chunk_is_held_and_readable(version: VersionStore, made: MadeVersion) -> None:
    for chunk in chunk_list(made):
        fill(version, made, [chunk])
        assert chunk in version.have
        assert state_byte(version, chunk) == HELD
        assert read(version, chunk) == made.chunk_bytes_of(chunk)
    assert version.have.is_full
    assert version.missing_bytes == 0


def test_every_file_has_its_bytes(version: VersionStore, made: MadeVersion) -> None:
    fill(version, made)
    for index, entry in enumerate(made.manifest.files):
        assert read_file(version, index) == made.contents[entry.path]


def test_a_chunk_not_held_cannot_be_read(version: VersionStore) -> None:
    with pytest.raises(NotFoundError), version.open_span(FIRST):
        pass
    assert state_byte(version, FIRST) == MISSING


def test_writes_may_come_in_any_order(version: VersionStore, made: MadeVersion) -> None:
    """Stripes and split ranges: what lies ahead is read back when the prefix reaches it."""
    for chunk in chunk_list(made):
        payload = memoryview(made.chunk_bytes_of(chunk))
        step = max(1, len(payload) // 5)
        offsets = list(range(0, len(payload), step))
        writer = version.writer(chunk)
        for offset in offsets[1::2] + offsets[::-2] if len(offsets) % 2 else offsets[::-1]:
            writer.write(offset, payload[offset : offset + step])
        assert writer.commit() is CommitResult.WRITTEN
        assert read(version, chunk) == payload


@pytest.mark.parametrize("is_backwards", [False, True])
def test_wrong_bytes_stay_invisible(
    version: VersionStore, made: MadeVersion, is_backwards: bool
) -> None:
    chunk = shared_chunk(made)
    wrong = bytearray(made.chunk_bytes_of(chunk))
    wrong[7] ^= 1
    half = len(wrong) // 2
    writer = version.writer(chunk)
    for offset in (half, 0) if is_backwards else (0, half):
        writer.write(offset, memoryview(wrong)[offset : offset + half])
    with pytest.raises(IntegrityError):
        writer.commit()
    assert chunk not in version.have
    assert state_byte(version, chunk) == MISSING
    fill(version, made)
    assert read(version, chunk) == made.chunk_bytes_of(chunk)


def test_abort_is_idempotent_and_frees_the_chunk(version: VersionStore, made: MadeVersion) -> None:
    writer = version.writer(FIRST)
    writer.write(0, memoryview(b"x"))
    writer.abort()
    writer.abort()
    fill(version, made, [FIRST])
    assert read(version, FIRST) == made.chunk_bytes_of(FIRST)


def test_of_two_good_transfers_the_first_to_commit_wins(
    version: VersionStore, made: MadeVersion
) -> None:
    payload = memoryview(made.chunk_bytes_of(FIRST))
    holder, aside = version.writer(FIRST), version.writer(FIRST)
    holder.write(0, payload)
    aside.write(0, payload)
    assert aside.commit() is CommitResult.WRITTEN
    assert holder.commit() is CommitResult.ALREADY_HELD
    assert read(version, FIRST) == payload


def test_late_bytes_of_a_loser_are_dropped(version: VersionStore, made: MadeVersion) -> None:
    payload = memoryview(made.chunk_bytes_of(FIRST))
    holder, aside = version.writer(FIRST), version.writer(FIRST)
    aside.write(0, payload)
    assert aside.commit() is CommitResult.WRITTEN
    holder.write(0, memoryview(bytes(len(payload))))
    assert read(version, FIRST) == payload
    assert holder.commit() is CommitResult.ALREADY_HELD


def test_a_transfer_of_a_held_chunk_changes_nothing(
    version: VersionStore, made: MadeVersion
) -> None:
    fill(version, made, [FIRST])
    late = version.writer(FIRST)
    late.write(0, memoryview(bytes(late.length)))
    assert late.commit() is CommitResult.ALREADY_HELD
    assert version.verify_chunk(FIRST)


def test_ready_follows_the_last_chunk(version: VersionStore, made: MadeVersion) -> None:
    *early, last = made.chunks
    fill(version, made, early)
    with pytest.raises(AssertionError):
        version.publish_ready()
    assert not version.is_ready
    fill(version, made, [last])
    version.publish_ready()
    version.publish_ready()
    assert version.is_ready
    version.make_durable()
    assert version.is_ready


def test_a_closed_version_resumes_where_it_was(
    store: ChunkStore, version: VersionStore, made: MadeVersion
) -> None:
    fill(version, made, made.chunks[::2])
    before = version.have.copy()
    version.close()
    again = store.open_version(made.manifest, made.manifest_bytes)
    assert again.have == before
    fill(again, made)
    again.publish_ready()
    again.close()
    whole = store.open_version(made.manifest, made.manifest_bytes)
    assert whole.is_ready
    assert whole.have.is_full


def test_the_store_keeps_manifests(
    store: ChunkStore, version: VersionStore, made: MadeVersion
) -> None:
    assert store.versions() == (made.manifest.version,)
    assert store.manifest_bytes(made.manifest.version) == made.manifest_bytes
    assert store.manifest_bytes(small_version(9).manifest.version) is None
    version.close()
    assert store.versions() == (made.manifest.version,)


# A pulled directory is the user's and is never evicted; see tests/swarm/store/test_disk.py.
@pytest.mark.parametrize("store", ["cache", "memory"], indirect=True)
def test_eviction_needs_a_closed_version_and_leaves_nothing(
    store: ChunkStore, version: VersionStore, made: MadeVersion
) -> None:
    fill(version, made)
    version.publish_ready()
    with pytest.raises(LockedError):
        store.evict(made.manifest.version)
    version.close()
    store.evict(made.manifest.version)
    store.evict(made.manifest.version)
    assert store.versions() == ()
    again = store.open_version(made.manifest, made.manifest_bytes)
    assert not again.have
    fill(again, made)
    again.publish_ready()


@pytest.mark.parametrize("store", ["cache", "memory"], indirect=True)
def test_an_upload_under_way_outlives_eviction(
    store: ChunkStore, version: VersionStore, made: MadeVersion
) -> None:
    """What is being sent stays readable; nobody else finds it."""
    fill(version, made)
    version.publish_ready()
    with version.open_span(FIRST) as span:
        version.close()
        store.evict(made.manifest.version)
        assert os.pread(span.fd, span.length, span.offset) == made.chunk_bytes_of(FIRST)
        fd = span.fd
        with pytest.raises(NotFoundError), version.open_span(FIRST):
            pass
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize("is_published", [False, True])
def test_a_damaged_chunk_is_unheld_and_can_be_fetched_again(
    version: VersionStore, made: MadeVersion, is_published: bool
) -> None:
    fill(version, made)
    if is_published:
        version.publish_ready()
    chunk = shared_chunk(made)
    generation = version.state_generation
    place = made.manifest.chunks[chunk].positions[-1]
    reader = version.open_file(place.file_index)
    damage(version, place.file_index, place.offset)
    assert not version.verify_chunk(chunk)
    assert chunk not in version.have
    assert state_byte(version, chunk) == MISSING
    assert not version.is_ready
    assert not version.verify_chunk(chunk)
    with pytest.raises(NotFoundError), version.open_span(chunk):
        pass
    old = os.pread(reader, 1 << 20, 0)
    fill(version, made, [chunk])
    version.publish_ready()
    assert all(version.verify_chunk(each) for each in chunk_list(made))
    assert read_file(version, place.file_index) == made.contents[path_of(made, place.file_index)]
    # What a reader of a published version has mapped is never written again.
    assert (os.pread(reader, 1 << 20, 0) == old) == is_published
    assert (version.state_generation > generation) == is_published
    os.close(reader)


def test_a_sound_chunk_passes(version: VersionStore, made: MadeVersion) -> None:
    fill(version, made, [FIRST])
    assert version.verify_chunk(FIRST)
    assert FIRST in version.have


def test_readers_cannot_write(version: VersionStore) -> None:
    fd = version.open_file(0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(fd, b"x", 0)
    os.close(fd)
    with pytest.raises(PermissionError):
        mmap.mmap(version.state_fd, 0)
    with pytest.raises(PermissionError):
        os.ftruncate(version.state_fd, 0)
    assert fcntl.fcntl(version.state_fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_GROW


def test_a_span_can_be_sent(version: VersionStore, made: MadeVersion) -> None:
    fill(version, made, [FIRST])
    left, right = socket.socketpair()
    with left, right, version.open_span(FIRST) as span:
        sent = os.sendfile(left.fileno(), span.fd, span.offset, min(span.length, 4096))
        assert right.recv(sent) == made.chunk_bytes_of(FIRST)[:sent]


def damage(version: VersionStore, file_index: int, offset: int) -> None:
    """Flip a byte behind the store's back."""
    reader = version.open_file(file_index)
    fd = os.open(f"/proc/self/fd/{reader}", os.O_RDWR)
    byte = os.pread(fd, 1, offset)
    os.pwrite(fd, bytes((byte[0] ^ 1,)), offset)
    os.close(fd)
    os.close(reader)


def path_of(made: MadeVersion, file_index: int) -> str:
    return made.manifest.files[file_index].path
