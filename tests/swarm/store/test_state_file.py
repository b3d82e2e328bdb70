"""One byte per chunk, in a file and in a sealed memfd."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm.protocol.ids import ChunkIndex, VersionId
from swarm.store.state_file import (
    HELD,
    MISSING,
    STATE_HEADER_BYTES,
    StateHeader,
    StateTable,
    read_state,
)

VERSION = VersionId(bytes(range(32)))
BOOT = bytes(range(16))
HEADER = StateHeader(BOOT, VERSION, 7, 64769, 5, is_clean=False, is_published=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def table(path: Path) -> Iterator[StateTable]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    made = StateTable(HEADER, [ChunkIndex(1)], fd)
    yield made
    made.close(is_clean=False)


def read(path: Path, version: VersionId = VERSION, count: int = 5) -> tuple[StateHeader, list[int]]:
    fd = os.open(path, os.O_RDONLY)
    try:
        saved = read_state(fd, version, count)
    finally:
        os.close(fd)
    assert saved is not None
    return saved.header, list(saved.held)


def test_file_and_memory_say_the_same(table: StateTable, path: Path) -> None:
    table.set_state(ChunkIndex(3), HELD)
    table.set_state(ChunkIndex(1), MISSING)
    with mmap.mmap(table.shared_fd, 0, prot=mmap.PROT_READ) as states:
        assert bytes(states) == path.read_bytes()
        assert states[STATE_HEADER_BYTES:] == bytes([0, 0, 0, HELD, 0])
        table.set_state(ChunkIndex(4), HELD)
        assert states[STATE_HEADER_BYTES + 4] == HELD
    assert read(path) == (HEADER, [3, 4])


def test_header_changes_are_seen(table: StateTable, path: Path) -> None:
    table.mark_published()
    table.next_generation()
    header, _ = read(path)
    assert (header.generation, header.is_published, header.is_clean) == (8, True, False)


def test_only_an_orderly_close_is_clean(path: Path) -> None:
    for is_clean in (True, False):
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        StateTable(HEADER, (), fd).close(is_clean=is_clean)
        assert read(path)[0].is_clean == is_clean


def test_a_foreign_or_damaged_file_says_nothing(table: StateTable, path: Path) -> None:
    whole = path.read_bytes()
    fd = os.open(path, os.O_RDWR)
    assert read_state(fd, VersionId(bytes(32)), 5) is None
    assert read_state(fd, VERSION, 4) is None
    for content in (b"", whole[:-1], whole + b"\1", b"\0" * len(whole), b"x" + whole[1:]):
        path.write_bytes(content)
        assert read_state(fd, VERSION, 5) is None
    os.close(fd)


def test_a_longer_former_file_is_cut(path: Path) -> None:
    path.write_bytes(b"\1" * 500)
    fd = os.open(path, os.O_RDWR)
    StateTable(HEADER, [ChunkIndex(0)], fd).close(is_clean=False)
    assert read(path) == (HEADER, [0])
