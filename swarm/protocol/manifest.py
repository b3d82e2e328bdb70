"""What a version is: its files, cut into chunks, and the digest of each.

**Document.** Canonical msgpack, so that the same files give the same bytes and the same id::

    {"format": 1, "chunk_bytes": int, "files": [[path, size, is_executable, data_start, digests]]}

Keys stand in this order, integers in their shortest form, files sorted by the bytes of their paths;
`digests` is one byte string, 32 bytes a chunk. The version id is the BLAKE3 digest of these bytes.

**Cut.** A safetensors file has a header in front of its tensors; `data_start` is where they begin,
and 0 for every other file. ``[0, data_start)`` and ``[data_start, size)`` are cut on a grid of
`chunk_bytes` each, so a header that grew by a byte does not shift every chunk behind it. Offsets
and lengths follow from the cut; the document does not state them, so it cannot lie about them.

**Chunk index.** One number for each different (digest, length), in the order of first positions.
A chunk that occurs twice is moved once.

A reader trusts nothing: every rule is checked before any structure of a claimed size is built, and
a document whose re-encoding differs from it is refused, so no two documents mean the same version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgpack
from blake3 import blake3

from swarm.errors import ManifestError
from swarm.protocol.ids import DIGEST_BYTES, ChunkDigest, ChunkIndex, FileDigest, VersionId
from swarm.protocol.paths import PATH_BYTES_MAX, directory_conflict, path_problem
from swarm.protocol.strict_reader import StrictReader, show

KIB = 1 << 10
MIB = 1 << 20

FORMAT = 1
MANIFEST_BYTES_MAX = 16 * MIB
"""Twice the digests of `CHUNKS_MAX` chunks, or 100,000 files with paths of 110 bytes."""
CHUNKS_MAX = 1 << 18
"""Positions in one version. 64 MiB chunks reach 16 TiB; control cost grows with the number."""
FILES_MAX = 1 << 17
"""A model with its kernel caches has some thousands; so many cost a reader 40 MiB."""
CHUNK_BYTES_MIN = 64 * KIB
CHUNK_BYTES_MAX = 256 * MIB
FILE_BYTES_MAX = CHUNKS_MAX * CHUNK_BYTES_MAX
"""More than all chunks can hold together; keeps the sums of a hostile document small."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file as the document states it."""

    path: str
    size: int
    is_executable: bool
    # Where the second grid begins; 0 unless the file is a valid safetensors file.
    data_start: int
    # One digest for each chunk, in the order of `cut`.
    digests: tuple[ChunkDigest, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """One place where a chunk lies."""

    file_index: int
    offset: int


@dataclass(frozen=True, slots=True)
class UniqueChunk:
    """One chunk and every place where it lies, in order; the first is `positions[0]`."""

    digest: ChunkDigest
    length: int
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A version that has been checked; only `decode_manifest` makes one."""

    version: VersionId
    chunk_bytes: int
    # Sorted by the bytes of their paths.
    files: tuple[FileEntry, ...]
    # Indexed by ChunkIndex.
    chunks: tuple[UniqueChunk, ...]
    # Bytes of each chunk, indexed by ChunkIndex.
    lengths: tuple[int, ...]
    # For each file the chunks of its cut, in order; a chunk may occur more than once.
    file_chunks: tuple[tuple[ChunkIndex, ...], ...]
    # For each file.
    file_digests: tuple[FileDigest, ...]
    # Bytes over unique chunks, and over all files.
    unique_bytes: int
    total_bytes: int


def cut(size: int, data_start: int, chunk_bytes: int) -> list[tuple[int, int]]:
    """(offset, length) of each chunk of a file, in order; an empty file has none."""
    return [
        (offset, min(chunk_bytes, stop - offset))
        for start, stop in ((0, data_start), (data_start, size))
        for offset in range(start, stop, chunk_bytes)
    ]


def cut_count(size: int, data_start: int, chunk_bytes: int) -> int:
    """How many chunks `cut` gives, without cutting."""
    return -(-data_start // chunk_bytes) - (-(size - data_start) // chunk_bytes)


def choose_chunk_bytes(total_bytes: int) -> int:
    """The chunk size of a version with `total_bytes` over all files.

    The largest power of two that gives 2,000 chunks, within 1 MiB and 64 MiB: the time over the
    bound is about 16 chunk times, so more chunks finish sooner, and control cost grows with their
    number, so no more than that. Below 2 GB 400 chunks are enough, down to 256 KiB: there the
    overhead per chunk weighs more than the end game.
    """
    if total_bytes >= 2_000_000_000:
        return _power_of_two(total_bytes // 2000, MIB, 64 * MIB)
    return _power_of_two(total_bytes // 400, 256 * KIB, 64 * MIB)


def file_digest(entry: FileEntry, chunk_bytes: int) -> FileDigest:
    """Names a file's content and its cut; derived from the chunk digests, never from the bytes."""
    hasher = blake3(struct.pack("<QQQ", entry.size, entry.data_start, chunk_bytes))
    hasher.update(b"".join(entry.digests))
    return FileDigest(hasher.digest())


def encode_manifest(files: Iterable[FileEntry], chunk_bytes: int) -> bytes:
    """The document of a version, files in any order; raises ManifestError if a rule is broken."""
    ordered = sorted(files, key=lambda entry: entry.path)
    _check(ordered, chunk_bytes)
    raw = _encode(ordered, chunk_bytes)
    if len(raw) > MANIFEST_BYTES_MAX:
        raise _broken(f"{len(raw)} bytes, at most {MANIFEST_BYTES_MAX} are allowed")
    return raw


def decode_manifest(raw: bytes, expected: VersionId | None = None) -> Manifest:
    """Check a document from anywhere; raises ManifestError. `expected` is the id it must have."""
    if len(raw) > MANIFEST_BYTES_MAX:
        raise _broken(f"{len(raw)} bytes, at most {MANIFEST_BYTES_MAX} are allowed")
    version = VersionId(blake3(raw).digest())
    if expected is not None and version != expected:
        raise _broken(f"has the id {version.hex()}, {expected.hex()} was asked for")
    chunk_bytes, files = _decode(raw)
    _check(files, chunk_bytes)
    if _encode(files, chunk_bytes) != raw:
        raise _broken("is not in canonical form")
    return _index(version, chunk_bytes, files)


def _encode(files: Sequence[FileEntry], chunk_bytes: int) -> bytes:
    packer = msgpack.Packer(autoreset=False)
    packer.pack_map_header(3)
    for value in ("format", FORMAT, "chunk_bytes", chunk_bytes, "files"):
        packer.pack(value)
    packer.pack_array_header(len(files))
    for entry in files:
        digests = b"".join(entry.digests)
        packer.pack((entry.path, entry.size, entry.is_executable, entry.data_start, digests))
    return packer.bytes()


def _decode(raw: bytes) -> tuple[int, list[FileEntry]]:
    """Read the document's fields within their own limits; their relations are `_check`'s."""
    reader = StrictReader(raw, "manifest")
    reader.enter_map(3)
    reader.key("format")
    if reader.integer("format", 0, 1 << 32) != FORMAT:
        raise reader.error(f"its format is not {FORMAT}, the only one known here; upgrade")
    reader.key("chunk_bytes")
    chunk_bytes = reader.integer("chunk_bytes", CHUNK_BYTES_MIN, CHUNK_BYTES_MAX)
    reader.key("files")
    files = []
    chunks_left = CHUNKS_MAX
    for _ in range(reader.array_length(FILES_MAX)):
        entry = _decode_file(reader, chunks_left)
        chunks_left -= len(entry.digests)
        files.append(entry)
    reader.end()
    return chunk_bytes, files


def _decode_file(reader: StrictReader, chunks_max: int) -> FileEntry:
    reader.enter_array(5)
    path = reader.text("path", PATH_BYTES_MAX)
    size = reader.integer("size", 0, FILE_BYTES_MAX)
    is_executable = reader.flag("is_executable")
    data_start = reader.integer("data_start", 0, size)
    joined = reader.blob("digests")
    if len(joined) % DIGEST_BYTES or len(joined) // DIGEST_BYTES > chunks_max:
        raise reader.error(f"file {show(path)}: {len(joined)} bytes of digests")
    digests = tuple(
        ChunkDigest(joined[start : start + DIGEST_BYTES])
        for start in range(0, len(joined), DIGEST_BYTES)
    )
    return FileEntry(path, size, is_executable, data_start, digests)


def _check(files: Sequence[FileEntry], chunk_bytes: int) -> None:
    """Everything that must hold between fields, and between files."""
    if not CHUNK_BYTES_MIN <= chunk_bytes <= CHUNK_BYTES_MAX:
        raise _broken(f"chunk_bytes {chunk_bytes} is not in {CHUNK_BYTES_MIN}…{CHUNK_BYTES_MAX}")
    if not 0 < len(files) <= FILES_MAX:
        raise _broken(f"has {len(files)} files, 1 to {FILES_MAX} are allowed")
    for entry in files:
        _check_file(entry, chunk_bytes)
    if sum(len(entry.digests) for entry in files) > CHUNKS_MAX:
        raise _broken(f"more than {CHUNKS_MAX} chunks; choose a larger chunk size")
    # Strings compare by code points, which is the order of their UTF-8 bytes.
    if any(entry.path > after.path for entry, after in pairwise(files)):
        raise _broken("files are not sorted by path")
    conflict = directory_conflict(entry.path for entry in files)
    if conflict:
        raise _broken(f"paths {show(conflict[0])} and {show(conflict[1])} exclude each other")
    _check_lengths(files, chunk_bytes)


def _check_lengths(files: Sequence[FileEntry], chunk_bytes: int) -> None:
    """One digest has one length. A pass of its own, before an index of any size is built."""
    lengths: dict[ChunkDigest, int] = {}
    for entry in files:
        spans = cut(entry.size, entry.data_start, chunk_bytes)
        for (_, length), digest in zip(spans, entry.digests, strict=True):
            if lengths.setdefault(digest, length) != length:
                raise _broken(f"chunk {digest.hex()} is listed with two lengths")


def _check_file(entry: FileEntry, chunk_bytes: int) -> None:
    problem = path_problem(entry.path)
    if problem:
        raise _broken(f"path {show(entry.path)} {problem}")
    if not 0 <= entry.data_start <= entry.size <= FILE_BYTES_MAX:
        raise _broken(f"file {show(entry.path)}: size {entry.size}, data at {entry.data_start}")
    count = cut_count(entry.size, entry.data_start, chunk_bytes)
    if count != len(entry.digests):
        raise _broken(
            f"file {show(entry.path)}: {entry.size} bytes make {count} chunks,"
            f" {len(entry.digests)} are listed"
        )
    if any(len(digest) != DIGEST_BYTES for digest in entry.digests):
        raise _broken(f"file {show(entry.path)}: a digest is not {DIGEST_BYTES} bytes long")


def _index(version: VersionId, chunk_bytes: int, files: Sequence[FileEntry]) -> Manifest:
    """Number the unique chunks of files that passed every check."""
    indices: dict[ChunkDigest, ChunkIndex] = {}
    lengths: list[int] = []
    positions: list[list[Position]] = []
    file_chunks = []
    for file_index, entry in enumerate(files):
        spans = cut(entry.size, entry.data_start, chunk_bytes)
        mine = []
        for (offset, length), digest in zip(spans, entry.digests, strict=True):
            chunk = indices.setdefault(digest, ChunkIndex(len(lengths)))
            if chunk == len(lengths):
                lengths.append(length)
                positions.append([])
            positions[chunk].append(Position(file_index, offset))
            mine.append(chunk)
        file_chunks.append(tuple(mine))
    return Manifest(
        version=version,
        chunk_bytes=chunk_bytes,
        files=tuple(files),
        chunks=tuple(
            UniqueChunk(digest, length, tuple(places))
            for digest, length, places in zip(indices, lengths, positions, strict=True)
        ),
        lengths=tuple(lengths),
        file_chunks=tuple(file_chunks),
        file_digests=tuple(file_digest(entry, chunk_bytes) for entry in files),
        unique_bytes=sum(lengths),
        total_bytes=sum(entry.size for entry in files),
    )


def _power_of_two(limit: int, minimum: int, maximum: int) -> int:
    """The largest power of two that is ≤ `limit`, within the bounds."""
    return max(minimum, min(maximum, 1 << max(limit, 1).bit_length() - 1))


def _broken(problem: str) -> ManifestError:
    return ManifestError(
        f"manifest: {problem}", object_name="manifest", hint="publish the version again"
    )
