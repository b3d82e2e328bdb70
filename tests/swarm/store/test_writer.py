"""Two transfers of one chunk, one of which may be corrupt, in every order of their steps."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.errors import IntegrityError, StoreError, SwarmError
from swarm.protocol.ids import ChunkIndex
from swarm.store.chunk_store import ChunkWriter, CommitResult
from swarm.store.disk import DiskStore
from swarm.store.memory import MemoryStore
from swarm.store.stored_version import StoredVersion
from tests.support.caches import part, rot
from tests.support.versions import MadeVersion, make_version

CHUNK = ChunkIndex(0)
CONTENT = bytes(range(256)) * 4
PIECES = 3


@pytest.fixture(scope="module")
def made() -> MadeVersion:
    """One chunk at two positions."""
    return make_version({"a.bin": CONTENT, "b.bin": CONTENT})


class Race:
    """Two transfers driven step by step, with the invariant checked after each."""

    def __init__(self, made: MadeVersion, corrupt: int | None) -> None:
        self.store = MemoryStore(1 << 20)
        self.version = self.store.open_version(made.manifest, made.manifest_bytes)
        self.corrupt = corrupt
        self.writers: dict[int, ChunkWriter] = {}
        self.outcomes: dict[int, str] = {}

    def step(self, transfer: int, action: str, piece: int) -> None:
        writer = self.writers.get(transfer) or self.writers.setdefault(
            transfer, self.version.writer(CHUNK)
        )
        if action == "write":
            length = len(CONTENT) // PIECES + 1
            payload = bytearray(CONTENT[piece * length : (piece + 1) * length])
            if transfer == self.corrupt:
                payload[0] ^= 1
            writer.write(piece * length, memoryview(payload))
        elif action == "commit":
            self.outcomes[transfer] = _commit(writer)
        else:
            writer.abort()
            self.outcomes[transfer] = "ABORTED"
        self.check()

    def check(self) -> None:
        """Held means right at every position, and it stays so whatever comes later."""
        is_won = "WRITTEN" in self.outcomes.values()
        assert (CHUNK in self.version.have) == is_won
        if is_won:
            assert self.contents() == [CONTENT, CONTENT]

    def contents(self) -> list[bytes]:
        found = []
        for index in range(2):
            with os.fdopen(self.version.open_file(index), "rb") as file:
                found.append(file.read())
        return found

    def close(self) -> None:
        for writer in self.writers.values():
            writer.abort()
        self.store.close()


def _commit(writer: ChunkWriter) -> str:
    try:
        return writer.commit().name
    except IntegrityError:
        return "CORRUPT"


def interleavings(first: list[str], second: list[str]) -> Iterator[list[tuple[int, str]]]:
    """Every merge of two step lists."""
    total = len(first) + len(second)
    for places in itertools.combinations(range(total), len(first)):
        steps = (iter(first), iter(second))
        yield [(who, next(steps[who])) for who in (0 if i in places else 1 for i in range(total))]


@pytest.mark.parametrize("corrupt", [None, 0, 1])
@pytest.mark.parametrize("ending", ["commit", "abort"])
def test_every_interleaving_keeps_the_chunk_right(
    made: MadeVersion, corrupt: int | None, ending: str
) -> None:
    whole = ["write"] * PIECES + ["commit"]
    other = ["write"] * PIECES + [ending]
    for order in interleavings(whole, other):
        race = Race(made, corrupt)
        pieces = [iter(range(PIECES)), iter(range(PIECES))]
        for who, action in order:
            race.step(who, action, next(pieces[who], 0))
        expected = corrupt != 0 or (ending == "commit" and corrupt != 1)
        assert ("WRITTEN" in race.outcomes.values()) == expected, order
        assert list(race.outcomes.values()).count("WRITTEN") <= 1
        race.close()


@given(
    order=st.permutations([0] * PIECES + [1] * PIECES),
    pieces=st.tuples(st.permutations(range(PIECES)), st.permutations(range(PIECES))),
    endings=st.permutations([0, 1]),
    corrupt=st.sampled_from([None, 0, 1]),
)
@settings(deadline=None, max_examples=60)
def test_writes_out_of_order_keep_the_chunk_right(
    made: MadeVersion,
    order: list[int],
    pieces: tuple[list[int], list[int]],
    endings: list[int],
    corrupt: int | None,
) -> None:
    race = Race(made, corrupt)
    remaining = [iter(pieces[0]), iter(pieces[1])]
    for who in order:
        race.step(who, "write", next(remaining[who]))
    for who in endings:
        race.step(who, "commit", 0)
    assert "WRITTEN" in race.outcomes.values()
    race.close()


def test_stripes_in_parallel_threads(tmp_path: Path) -> None:
    """Four threads write interleaved pieces of one transfer; each byte is hashed once."""
    content = os.urandom(4 << 20)
    made = make_version({"w.bin": content}, chunk_bytes=4 << 20)
    with DiskStore.open_cache(str(tmp_path / "cache")) as store:
        version = store.open_version(made.manifest, made.manifest_bytes)
        writer = version.writer(CHUNK)
        _write_striped(writer, content, stripes=4)
        assert writer.commit() is CommitResult.WRITTEN
        assert Path(version.directory, "w.bin").read_bytes() == content
        version.close()


def test_corrupt_and_sound_transfers_in_threads(tmp_path: Path) -> None:
    """The corrupt holder writes as fast as it can while the sound one commits: its late writes
    must not land on verified bytes."""
    content = os.urandom(1 << 20)
    made = make_version({"w.bin": content}, chunk_bytes=1 << 20)
    with DiskStore.open_cache(str(tmp_path / "cache")) as store:
        for _ in range(10):
            version = store.open_version(made.manifest, made.manifest_bytes)
            _race_in_threads(version, content)
            assert Path(version.directory, "w.bin").read_bytes() == content
            version.close()
            store.evict(made.manifest.version)


def _race_in_threads(version: StoredVersion, content: bytes) -> None:
    corrupt, sound = version.writer(CHUNK), version.writer(CHUNK)
    thread = threading.Thread(
        target=_write_striped, args=(corrupt, bytes(len(content))), kwargs={"stripes": 1}
    )
    thread.start()
    sound.write(0, memoryview(content))
    result = sound.commit()
    thread.join(10)
    assert result is CommitResult.WRITTEN
    assert corrupt.commit() is CommitResult.ALREADY_HELD


def _write_striped(writer: ChunkWriter, content: bytes, *, stripes: int) -> None:
    unit = 64 << 10
    view = memoryview(content)

    def write(stripe: int) -> None:
        for offset in range(stripe * unit, len(content), unit * stripes):
            writer.write(offset, view[offset : offset + unit])

    threads = [threading.Thread(target=write, args=(stripe,)) for stripe in range(stripes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


@pytest.mark.parametrize(("is_restored", "expected"), [(True, StoreError), (False, IntegrityError)])
def test_when_two_reads_differ_nobody_is_blamed(
    tmp_path: Path, is_restored: bool, expected: type[SwarmError]
) -> None:
    """A piece ahead of the prefix is damaged on disk before it is read back. If the second read
    tells another story, it is the disk; if both agree, the source sent it so."""
    made = make_version({"w.bin": CONTENT})
    with DiskStore.open_cache(str(tmp_path / "cache")) as store:
        version = store.open_version(made.manifest, made.manifest_bytes)
        path = part(version.directory, "w.bin")
        writer = version.writer(CHUNK)
        writer.write(512, memoryview(CONTENT)[512:])
        rot(path, 600)
        writer.write(0, memoryview(CONTENT)[:512])
        if is_restored:
            rot(path, 600)
        with pytest.raises(expected):
            writer.commit()
        assert CHUNK not in version.have
        version.close()
