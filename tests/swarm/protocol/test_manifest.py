"""The manifest: its cut, its canonical form, and what a reader refuses.

Hostile documents are packed by hand, field by field, so that each breaks one rule and no other.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import msgpack
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.errors import ManifestError
from swarm.protocol.ids import ChunkDigest, VersionId
from swarm.protocol.manifest import (
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    CHUNKS_MAX,
    KIB,
    MANIFEST_BYTES_MAX,
    MIB,
    FileEntry,
    Manifest,
    Position,
    choose_chunk_bytes,
    cut,
    cut_count,
    decode_manifest,
    encode_manifest,
    file_digest,
)

CB = 64 * KIB

Field = str | int | bool | bytes | float | None | Sequence["Field"]


def digest(number: int) -> ChunkDigest:
    return ChunkDigest(blake3(number.to_bytes(8, "little")).digest())


def entry(
    path: str, size: int, first: int = 0, *, data_start: int = 0, is_executable: bool = False
) -> FileEntry:
    """A file whose chunks have the digests of `first`, `first` + 1, …"""
    numbers = range(first, first + cut_count(size, data_start, CB))
    return FileEntry(path, size, is_executable, data_start, tuple(map(digest, numbers)))


def pack(files: Sequence[Field], *, chunk_bytes: Field = CB, number: Field = 1) -> bytes:
    return msgpack.packb({"format": number, "chunk_bytes": chunk_bytes, "files": files})


def row(
    path: Field = "a", size: Field = 10, mode: Field = False, start: Field = 0, blob: Field = None
) -> list[Field]:
    return [path, size, mode, start, bytes(digest(1)) if blob is None else blob]


# Cut.


@pytest.mark.parametrize(
    ("size", "data_start", "spans"),
    [
        (0, 0, []),
        (1, 0, [(0, 1)]),
        (4, 0, [(0, 4)]),
        (9, 0, [(0, 4), (4, 4), (8, 1)]),
        (9, 2, [(0, 2), (2, 4), (6, 3)]),
        (9, 5, [(0, 4), (4, 1), (5, 4)]),
        (5, 5, [(0, 4), (4, 1)]),
    ],
)
def test_two_grids_meet_at_the_start_of_the_data(
    size: int, data_start: int, spans: list[tuple[int, int]]
) -> None:
    assert cut(size, data_start, 4) == spans


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(1, 300))
def test_a_cut_covers_a_file_once(size: int, data_start: int, chunk_bytes: int) -> None:
    data_start = min(data_start, size)
    spans = cut(size, data_start, chunk_bytes)
    reached = 0
    for offset, length in spans:
        assert offset == reached
        assert 0 < length <= chunk_bytes
        reached += length
    assert reached == size
    assert len(spans) == cut_count(size, data_start, chunk_bytes)
    assert data_start in {offset for offset, _ in spans} | {0, size}


@pytest.mark.parametrize(
    ("total_bytes", "chunk_bytes"),
    [
        (0, 256 * KIB),
        (90_000_000, 256 * KIB),
        (96 * MIB, 256 * KIB),
        (400 * MIB, MIB),
        (1_999_999_999, 4 * MIB),
        (2_000_000_000, MIB),
        (16_000_000_000, 4 * MIB),
        (140_000_000_000, 64 * MIB),
        (10**12, 64 * MIB),
    ],
)
def test_chunk_size_follows_the_size_of_the_version(total_bytes: int, chunk_bytes: int) -> None:
    assert choose_chunk_bytes(total_bytes) == chunk_bytes


# Document.


def test_equal_files_give_equal_bytes_whatever_their_order() -> None:
    files = [entry("b", 70_000, 10), entry("a/b", 5), entry("a-b", 5, 3), entry("é", 1, 4)]
    raw = encode_manifest(files, CB)
    assert raw == encode_manifest(reversed(files), CB)
    manifest = decode_manifest(raw)
    assert [file.path for file in manifest.files] == ["a-b", "a/b", "b", "é"]
    assert manifest.version == blake3(raw).digest()


def test_the_document_is_what_the_specification_shows() -> None:
    raw = encode_manifest([entry("x", 70_000, data_start=2)], CB)
    joined = digest(0) + digest(1) + digest(2)
    expected = {"format": 1, "chunk_bytes": CB, "files": [["x", 70_000, False, 2, joined]]}
    assert msgpack.unpackb(raw) == expected
    assert raw == pack([row("x", 70_000, False, 2, joined)])


def test_chunks_are_numbered_by_first_position_and_shared() -> None:
    shared = entry("a", CB + 10, 0)
    again = FileEntry("c", CB + 10, True, 0, shared.digests)
    manifest = decode_manifest(encode_manifest([again, entry("b", CB, 7), shared], CB))
    assert [chunk.digest for chunk in manifest.chunks] == [digest(0), digest(1), digest(7)]
    assert manifest.chunks[1].positions == (Position(0, CB), Position(2, CB))
    assert manifest.lengths == (CB, 10, CB)
    assert manifest.file_chunks == ((0, 1), (2,), (0, 1))
    assert manifest.unique_bytes == 2 * CB + 10
    assert manifest.total_bytes == 3 * CB + 20
    # The same content, whether executable or not.
    assert manifest.file_digests[0] == manifest.file_digests[2]


def test_a_version_of_only_empty_files_has_no_chunk() -> None:
    manifest = decode_manifest(encode_manifest([entry("sub/.keep", 0), entry("b", 0)], CB))
    assert manifest.chunks == ()
    assert manifest.file_chunks == ((), ())
    assert manifest.total_bytes == 0


def test_a_file_digest_depends_on_size_start_and_grid() -> None:
    base = FileEntry("a", 10, False, 0, (digest(0),))
    others = [
        FileEntry("a", 11, False, 0, (digest(0),)),
        FileEntry("a", 10, False, 10, (digest(0),)),
        FileEntry("a", 10, False, 0, (digest(1),)),
    ]
    assert len({file_digest(base, CB), *(file_digest(other, CB) for other in others)}) == 4
    assert file_digest(base, CB) != file_digest(base, 2 * CB)
    assert file_digest(base, CB) == file_digest(entry("b", 10), CB)


def test_an_expected_id_is_held_against_the_bytes() -> None:
    raw = encode_manifest([entry("a", 1)], CB)
    version = VersionId(blake3(raw).digest())
    assert decode_manifest(raw, version).version == version
    with pytest.raises(ManifestError, match="was asked for"):
        decode_manifest(raw, VersionId(bytes(32)))


PATHS = st.text("ab/.-é", min_size=1, max_size=6)


@given(st.lists(st.tuples(PATHS, st.integers(0, 5 * CB), st.integers(0, CB), st.booleans())))
def test_what_encodes_decodes_to_the_same_files(rows: list[tuple[str, int, int, bool]]) -> None:
    files = [
        entry(path, size, index * 100, data_start=min(start, size), is_executable=mode)
        for index, (path, size, start, mode) in enumerate(rows)
    ]
    try:
        raw = encode_manifest(files, CB)
    except ManifestError:
        return
    manifest = decode_manifest(raw)
    assert list(manifest.files) == sorted(files, key=lambda file: file.path.encode())
    assert sum(len(chunk.positions) * chunk.length for chunk in manifest.chunks) == (
        manifest.total_bytes
    )


# Refusals.


@pytest.mark.parametrize(
    "path",
    ["../../passwd", "/etc/passwd", "a/../../x", "a//b", ".", "", "a\0b", "x" * 4097, ".Swarm/x"],
)
def test_a_path_that_leaves_the_directory_is_refused_though_the_id_fits(path: str) -> None:
    raw = pack([row(path)])
    with pytest.raises(ManifestError) as caught:
        decode_manifest(raw, VersionId(blake3(raw).digest()))
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ([], "has 0 files"),
        ([row("b"), row("a")], "not sorted"),
        ([row("a"), row("a")], "exclude each other"),
        ([row("a"), row("a-b"), row("a/b")], "exclude each other"),
        ([row(size=1 << 62)], "size"),
        ([row(size=-1)], "size"),
        ([row(size=True)], "size"),
        ([row(size=1.0)], "size"),
        ([row(size=CB + 1)], "2 chunks, 1 are listed"),
        ([row(size=0)], "0 chunks, 1 are listed"),
        ([row(blob=b"")], "1 chunks, 0 are listed"),
        ([row(blob=bytes(33))], "33 bytes of digests"),
        ([row(blob="x" * 32)], "not a byte string"),
        ([row(start=11)], "data_start"),
        ([row(start=5)], "2 chunks, 1 are listed"),
        ([row(mode=1)], "true or false"),
        ([row(b"a")], "path is not a text"),
        ([row("a"), row("b", size=11)], "two lengths"),
        ([row("a")[:4]], "should have 5 members"),
        ([[*row("a"), 0]], "6 members"),
        ([{"path": "d", "link": "/"}], "an array expected"),
        (["a"], "an array expected"),
        ("a", "an array expected"),
    ],
)
def test_a_document_that_lies_is_refused(files: Sequence[Field], why: str) -> None:
    with pytest.raises(ManifestError, match=why):
        decode_manifest(pack(files))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "a map expected"),
        (b"\x80", "map of 0 pairs"),
        (b"\xdf\xff\xff\xff\xff", "map of 4294967295"),
        (b"\x93\x01\x02\x03", "a map expected"),
        (pack([row()], number=2), "upgrade"),
        (pack([row()], number="1"), "format is not an integer"),
        (pack([row()], chunk_bytes=CHUNK_BYTES_MIN - 1), "chunk_bytes"),
        (pack([row()], chunk_bytes=CHUNK_BYTES_MAX + 1), "chunk_bytes"),
        (pack([row()]) + b"\0", "1 bytes follow"),
        (pack([row()])[:-1], "a value expected"),
        (msgpack.packb({"format": 1, "files": [row()], "chunk_bytes": CB}), "out of order"),
        (msgpack.packb({"format": 1, "chunk_bytes": CB}), "map of 2 pairs"),
        # 10 as u16 is the same number and another document.
        (pack([row()]).replace(b"\xa1a\x0a", b"\xa1a\xcd\x00\x0a"), "canonical"),
        (pack([row()]).replace(b"\xa1a", b"\xa1\xff"), "a value expected"),
        (pack([row()]).replace(b"\xa1a\x0a", b"\xa1a\xd6\xff\0\0\0\0"), "a value expected"),
        (bytes(MANIFEST_BYTES_MAX + 1), "at most"),
    ],
)
def test_a_malformed_document_is_refused(raw: bytes, why: str) -> None:
    with pytest.raises(ManifestError, match=why):
        decode_manifest(raw)


def _hostile_documents() -> list[bytes]:
    head = pack([])[:-1]
    million = (1_000_000).to_bytes(4, "big")
    return [
        head + b"\xdd\xff\xff\xff\xff",
        head + b"\xdd" + (10_000_000).to_bytes(4, "big") + bytes(10_000_000),
        head + b"\xdd" + million + b"\x80" * 1_000_000,
        head + b"\x91" * 1_000_000,
        head + b"\x91\x95" + b"\xdd" + million + b"\x90" * 1_000_000,
        pack([row(blob=bytes(32 * (CHUNKS_MAX + 1)))]),
        # True until its last file, whose chunk has another length.
        pack([row(f"{i:05}", 10 + i // 19_999, blob=bytes(32)) for i in range(20_000)]),
        pack([row(size=CHUNKS_MAX * CB, blob=bytes(32 * CHUNKS_MAX)), row("a")]),
    ]


@pytest.mark.parametrize("raw", _hostile_documents())
def test_a_hostile_document_costs_less_than_64_mib(raw: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ManifestError):
            decode_manifest(raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * MIB


@pytest.mark.parametrize(
    ("files", "chunk_bytes"),
    [
        ([FileEntry("..", 1, False, 0, (digest(0),))], CB),
        ([FileEntry("bad\udcff", 1, False, 0, (digest(0),))], CB),
        ([FileEntry("a", 1, False, 0, (ChunkDigest(b"short"),))], CB),
        ([FileEntry("a", 1, False, 2, (digest(0),))], CB),
        ([entry("a", 1)], CB - 1),
        ([FileEntry("a", (CHUNKS_MAX + 1) * CB, False, 0, (digest(0),) * (CHUNKS_MAX + 1))], CB),
        ([entry(f"{'d' * 250}/" * 16 + f"{i:05}", 0) for i in range(4200)], CB),
    ],
)
def test_a_broken_version_is_never_written(files: list[FileEntry], chunk_bytes: int) -> None:
    with pytest.raises(ManifestError):
        encode_manifest(files, chunk_bytes)


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else_happens(raw: bytes) -> None:
    with pytest.raises(ManifestError):
        decode_manifest(raw)


WHOLE = encode_manifest([entry("a", 3 * CB, data_start=100), entry("b", 9, 7)], CB)


@settings(max_examples=300)
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_a_damaged_document_is_refused_or_another_version(at: int, byte: int) -> None:
    damaged = WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :]
    if damaged == WHOLE:
        return
    try:
        manifest: Manifest = decode_manifest(damaged)
    except ManifestError:
        return
    assert manifest.version != decode_manifest(WHOLE).version
