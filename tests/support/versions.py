"""Versions made in memory: files as bytes, cut and hashed by the shortest code, so that tests of
the store and the agent need no publisher."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from blake3 import blake3

from swarm.protocol.ids import ChunkDigest, ChunkIndex
from swarm.protocol.manifest import (
    CHUNK_BYTES_MIN,
    FileEntry,
    Manifest,
    cut,
    decode_manifest,
    encode_manifest,
)
from swarm.store.chunk_store import CommitResult, VersionStore


@dataclass(frozen=True, slots=True)
class MadeVersion:
    """A version, its document and the bytes of its files by path."""

    manifest: Manifest
    manifest_bytes: bytes
    contents: dict[str, bytes]

    def chunk_bytes_of(self, chunk: int) -> bytes:
        """The payload of one chunk."""
        entry = self.manifest.chunks[chunk]
        place = entry.positions[0]
        content = self.contents[self.manifest.files[place.file_index].path]
        return content[place.offset : place.offset + entry.length]

    @property
    def chunks(self) -> range:
        return range(len(self.manifest.chunks))


def make_version(
    contents: dict[str, bytes],
    *,
    chunk_bytes: int = CHUNK_BYTES_MIN,
    data_starts: dict[str, int] | None = None,
    executable: frozenset[str] = frozenset(),
) -> MadeVersion:
    """A version of these files; `data_starts` by path, 0 where absent."""
    starts = data_starts or {}
    entries = [
        _entry(path, content, starts.get(path, 0), chunk_bytes, is_executable=path in executable)
        for path, content in contents.items()
    ]
    raw = encode_manifest(entries, chunk_bytes)
    return MadeVersion(decode_manifest(raw), raw, dict(contents))


def small_version(seed: int = 0, *, chunks: int = 6) -> MadeVersion:
    """A config, an empty file, a nested file, and two shards of which one repeats chunks."""
    rng = random.Random(seed)
    shard = rng.randbytes(chunks * CHUNK_BYTES_MIN - 1000)
    contents = {
        "config.json": b'{"seed": %d}' % seed,
        "empty.txt": b"",
        "sub/dir/notes.txt": rng.randbytes(200),
        "model-1.safetensors": shard,
        # Its first two chunks are the other shard's: one chunk, several positions.
        "model-2.safetensors": shard[: 2 * CHUNK_BYTES_MIN] + rng.randbytes(CHUNK_BYTES_MIN),
    }
    return make_version(contents)


def fill(store: VersionStore, version: MadeVersion, chunks: Iterable[int] | None = None) -> None:
    """Write chunks (all that are missing, by default) through ordinary transfers."""
    wanted = [chunk for chunk in version.chunks if chunk not in store.have]
    for chunk in wanted if chunks is None else chunks:
        writer = store.writer(ChunkIndex(chunk))
        try:
            writer.write(0, memoryview(version.chunk_bytes_of(chunk)))
            assert writer.commit() is CommitResult.WRITTEN
        finally:
            writer.abort()


def chunk_list(version: MadeVersion) -> list[ChunkIndex]:
    return [ChunkIndex(chunk) for chunk in version.chunks]


def _entry(
    path: str, content: bytes, data_start: int, chunk_bytes: int, *, is_executable: bool
) -> FileEntry:
    digests = tuple(
        ChunkDigest(blake3(content[offset : offset + length]).digest())
        for offset, length in cut(len(content), data_start, chunk_bytes)
    )
    return FileEntry(path, len(content), is_executable, data_start, digests)
