"""Bytes are hashed a second time on their way to the origin."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import trio

from swarm.errors import ChangedError
from swarm.origin.origin import PART_BYTES_DEFAULT
from swarm.protocol.ids import ChunkDigest
from swarm.protocol.manifest import KIB, FileEntry
from swarm.publish.file_parts import FileParts
from swarm.publish.hashing import hash_files
from swarm.publish.scan import SourceFile, scan
from swarm.publish.skip_rules import SkipRules

CB = 64 * KIB
SIZE = 2 * PART_BYTES_DEFAULT + 1000


async def prepare(directory: Path, *, size: int = SIZE) -> tuple[SourceFile, FileEntry]:
    (directory / "a.bin").write_bytes(random.Random(1).randbytes(size))
    files = scan(str(directory), SkipRules(), lambda: None).files
    # A start that puts no chunk end on a part's end.
    entries = await hash_files(files, {"a.bin": 77}, 3 * CB, lambda _: None)
    return files[0], entries[0]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2, 1, 2]])
async def test_parts_in_any_order_are_the_file(tmp_path: Path, order: list[int]) -> None:
    file, entry = await prepare(tmp_path)
    parts = FileParts(file, entry, 3 * CB)
    read = {index: await parts.read_part(index) for index in order}
    assert b"".join(read[index] for index in range(3)) == (tmp_path / "a.bin").read_bytes()


async def test_parts_are_read_at_the_same_time(tmp_path: Path) -> None:
    file, entry = await prepare(tmp_path)
    parts = FileParts(file, entry, 3 * CB)
    async with trio.open_nursery() as nursery:
        for index in range(3):
            nursery.start_soon(parts.read_part, index)


@pytest.mark.parametrize("wrong", [0, 80, -1])
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
async def test_bytes_that_were_not_hashed_never_complete_a_file(
    tmp_path: Path, wrong: int, order: list[int]
) -> None:
    file, entry = await prepare(tmp_path)
    digests = list(entry.digests)
    digests[wrong] = ChunkDigest(bytes(32))
    other = FileEntry(entry.path, entry.size, False, entry.data_start, tuple(digests))
    parts = FileParts(file, other, 3 * CB)

    async def read_all() -> None:
        for index in order:
            await parts.read_part(index)

    with pytest.raises(ChangedError, match=r"a\.bin changed"):
        await read_all()


async def test_a_repeated_part_must_have_the_bytes_it_had(tmp_path: Path) -> None:
    file, entry = await prepare(tmp_path)
    parts = FileParts(file, entry, 3 * CB)
    await parts.read_part(1)
    path = tmp_path / "a.bin"
    with path.open("r+b") as changed:
        changed.seek(PART_BYTES_DEFAULT + 5)
        changed.write(b"\0" * 9)
    again = scan(str(tmp_path), SkipRules(), lambda: None).files[0]
    # As if times had a coarse grain and did not tell.
    parts._file = SourceFile(again.path, again.source, again.stamp, False)
    with pytest.raises(ChangedError, match="not those that were hashed"):
        await parts.read_part(1)


async def test_a_changed_stamp_is_enough(tmp_path: Path) -> None:
    file, entry = await prepare(tmp_path, size=100)
    os.utime(tmp_path / "a.bin", ns=(1, 1))
    with pytest.raises(ChangedError, match="it was written to"):
        await FileParts(file, entry, 3 * CB).read_part(0)


async def test_small_files_are_one_part(tmp_path: Path) -> None:
    file, entry = await prepare(tmp_path, size=1000)
    parts = FileParts(file, entry, 3 * CB)
    assert len(await parts.read_part(0)) == parts.size == 1000
