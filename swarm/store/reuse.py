"""Take from versions that are ready on this node what a new one shares with them.

A file with the same file digest is hard-linked: no bytes move, and neither version ever writes to
it. Where that is impossible (another executable bit, another owner, a file system without links)
or only part of a file is the same, chunks are copied through the ordinary writer, which hashes
them; a source chunk that fails is damage in the version it came from.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from swarm.errors import IntegrityError
from swarm.protocol.ids import ChunkIndex, FileDigest
from swarm.protocol.manifest import FileEntry, Manifest, Position
from swarm.store.byte_ranges import SEGMENT_BYTES
from swarm.store.chunk_store import ChunkWriter
from swarm.store.disk_files import DiskFiles
from swarm.store.readiness import ready_at_ns
from swarm.store.stored_version import StoredVersion
from swarm.store.tree import Tree


@dataclass(frozen=True, slots=True)
class ReadyVersion:
    """A version of this cache that is ready."""

    directory: str
    manifest: Manifest


def link_equal_files(
    manifest: Manifest, files: DiskFiles, sources: Sequence[ReadyVersion]
) -> frozenset[int]:
    """Hard-link every file that is not there yet and that a source has; the file indices."""
    wanted: dict[tuple[FileDigest, bool], list[int]] = {}
    for index, entry in enumerate(manifest.files):
        if entry.size and files.size(index) is None and files.part_size(index) is None:
            key = (manifest.file_digests[index], entry.is_executable)
            wanted.setdefault(key, []).append(index)
    linked: set[int] = set()
    for source in sources:
        if wanted:
            linked |= _link_from(source, files, wanted)
    return frozenset(linked)


def copy_known_chunks(
    version: StoredVersion, sources: Sequence[ReadyVersion]
) -> tuple[ReadyVersion, ...]:
    """Copy every missing chunk that a source has; the sources that turned out damaged. Raises
    StoreError, NoSpaceError."""
    manifest = version.manifest
    damaged = []
    for source in sources:
        wanted = {
            (entry.digest, entry.length): ChunkIndex(chunk)
            for chunk, entry in enumerate(manifest.chunks)
            if chunk not in version.have
        }
        shared = [
            (wanted[entry.digest, entry.length], entry.positions[0])
            for entry in source.manifest.chunks
            if (entry.digest, entry.length) in wanted
        ]
        results = [_copy_chunk(version, chunk, source, place) for chunk, place in shared]
        if not all(results):
            damaged.append(source)
    return tuple(damaged)


def _link_from(
    source: ReadyVersion, files: DiskFiles, wanted: dict[tuple[FileDigest, bool], list[int]]
) -> set[int]:
    linked = set()
    tree = Tree(source.directory)
    try:
        for entry, digest in zip(source.manifest.files, source.manifest.file_digests, strict=True):
            key = (digest, entry.is_executable)
            if key not in wanted or not _is_untouched(tree, entry):
                continue
            try:
                for index in wanted[key]:
                    files.link_from(tree, entry.path, index)
                    linked.add(index)
            except OSError:
                continue  # Links are a saving, not a need: the chunks are copied instead.
            del wanted[key]
    finally:
        tree.close()
    return linked


def _is_untouched(tree: Tree, entry: FileEntry) -> bool:
    """Whether a file of a ready version looks as it did when that became ready."""
    status = tree.regular_status(entry.path)
    return (
        status is not None
        and status.st_size == entry.size
        and status.st_mtime_ns <= ready_at_ns(tree)
    )


def _copy_chunk(
    version: StoredVersion, chunk: ChunkIndex, source: ReadyVersion, place: Position
) -> bool:
    """False if the source's bytes are not what its manifest says."""
    writer = version.writer(chunk)
    try:
        tree = Tree(source.directory)
        try:
            fd = tree.open(source.manifest.files[place.file_index].path, os.O_RDONLY)
        finally:
            tree.close()
        try:
            if not _feed(writer, fd, place.offset):
                return False
        finally:
            os.close(fd)
        writer.commit()
    except (IntegrityError, OSError):
        return False
    finally:
        writer.abort()
    return True


def _feed(writer: ChunkWriter, fd: int, offset: int) -> bool:
    """False if the source ends early; raises OSError if it cannot be read."""
    buffer = memoryview(bytearray(min(writer.length, SEGMENT_BYTES)))
    done = 0
    while done < writer.length:
        segment = buffer[: writer.length - done]
        count = os.preadv(fd, [segment], offset + done)
        if count == 0:
            return False
        writer.write(done, segment[:count])
        done += count
    return True
