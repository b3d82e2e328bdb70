"""Chunks hashed on several threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from blake3 import blake3

from swarm.errors import ChangedError, PermissionDeniedError, StoreError
from swarm.protocol.manifest import KIB, cut
from swarm.publish.hashing import (
    SLICE_BYTES,
    _hash_span,
    _Span,
    check_unchanged,
    core_count,
    hash_files,
)
from swarm.publish.scan import SourceFile, scan
from swarm.publish.skip_rules import SkipRules
from swarm.publish.source_reader import read_failure

CB = 64 * KIB


def ignore(_: int) -> None:
    pass


def find(directory: Path) -> list[SourceFile]:
    return list(scan(str(directory), SkipRules(), lambda: None).files)


def fill(directory: Path, sizes: dict[str, int]) -> list[SourceFile]:
    for name, size in sizes.items():
        (directory / name).write_bytes(os.urandom(size))
    return find(directory)


@pytest.mark.parametrize("threads", [1, 3, None])
async def test_each_chunk_has_the_digest_of_its_bytes(tmp_path: Path, threads: int | None) -> None:
    sizes = {"a": 5 * CB + 7, "b": 0, "c": 1, "d": 2 * SLICE_BYTES + 3, "e": CB}
    files = fill(tmp_path, sizes)
    starts = {"a": 100, "b": 0, "c": 1, "d": 0, "e": 0}
    chunk_bytes = 3 * SLICE_BYTES // 2
    counted: list[int] = []
    entries = await hash_files(files, starts, chunk_bytes, counted.append, threads=threads)
    assert [entry.path for entry in entries] == list(sizes)
    for entry in entries:
        whole = (tmp_path / entry.path).read_bytes()
        spans = cut(len(whole), starts[entry.path], chunk_bytes)
        assert list(entry.digests) == [
            blake3(whole[offset : offset + length]).digest() for offset, length in spans
        ]
    assert sum(counted) == sum(sizes.values())


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(4096))


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(os.urandom(path.stat().st_size))
    other.replace(path)


def truncate(path: Path) -> None:
    os.truncate(path, 10)


Change = Callable[[Path], None]
CHANGES = [
    pytest.param(append, "bytes became", id="append"),
    pytest.param(overwrite, "it was written to", id="overwrite"),
    pytest.param(truncate, "bytes became", id="truncate"),
    pytest.param(replace, "it was replaced or removed", id="replace"),
    pytest.param(Path.unlink, "it is gone|replaced or removed", id="remove"),
]


@pytest.mark.parametrize(("change", "text"), CHANGES)
async def test_a_change_before_hashing_is_named(tmp_path: Path, change: Change, text: str) -> None:
    files = fill(tmp_path, {"a.bin": 3 * CB, "b.bin": 3 * CB})
    change(tmp_path / "b.bin")
    with pytest.raises(ChangedError, match=rf"b\.bin changed .*({text})"):
        await hash_files(files, {"a.bin": 0, "b.bin": 0}, CB, ignore)
    with pytest.raises(ChangedError, match=text):
        check_unchanged(files)


@pytest.mark.parametrize(("change", "text"), CHANGES)
async def test_a_change_amid_hashing_never_gives_a_mix(
    tmp_path: Path, change: Change, text: str
) -> None:
    path = tmp_path / "a.bin"
    files = fill(tmp_path, {"a.bin": 10 * CB})
    hashed = 0

    def progress(size: int) -> None:
        nonlocal hashed
        hashed += size
        if hashed == 5 * CB:
            change(path)

    with pytest.raises(ChangedError, match=text):
        await hash_files(files, {"a.bin": 0}, CB, progress, threads=1)
    assert hashed == 5 * CB


async def test_a_file_shorter_than_its_stamp_says_is_noticed(tmp_path: Path) -> None:
    fill(tmp_path, {"a.bin": SLICE_BYTES + 1})
    file = find(tmp_path)[0]
    # As if it had been cut between the look at it and the read.
    span = _Span(0, 0, 0, 3 * SLICE_BYTES)
    buffer = memoryview(bytearray(SLICE_BYTES))
    with (tmp_path / "a.bin").open("rb") as opened, pytest.raises(ChangedError, match="shorter"):
        await trio.to_thread.run_sync(_hash_span, file, opened.fileno(), span, buffer)


async def test_cancelling_stops_the_threads(tmp_path: Path) -> None:
    files = fill(tmp_path, {f"{i:03}": 4 * CB for i in range(40)})
    starts = dict.fromkeys((file.path for file in files), 0)
    hashed = 0

    def progress(size: int) -> None:
        nonlocal hashed
        hashed += size
        if hashed == 3 * CB:
            trio.from_thread.run_sync(scope.cancel)

    with trio.CancelScope() as scope:
        await hash_files(files, starts, CB, progress, threads=1)
    assert scope.cancelled_caught
    assert hashed == 3 * CB


def test_failures_of_the_disk_and_of_rights_differ() -> None:
    denied = read_failure("a", PermissionError(13, "denied"))
    assert isinstance(denied, PermissionDeniedError)
    broken = read_failure("a", OSError(5, "Input/output error"))
    assert isinstance(broken, StoreError)
    assert "Input/output error" in broken.message


def test_threads_are_bounded() -> None:
    assert 1 <= core_count() <= 32
