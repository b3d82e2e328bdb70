"""What a version directory really holds when it is opened.

Trust is narrow. A chunk needs no new hash if the version is ready, or if the state file says so and
was closed in order within this boot on this device (the page cache outlives a process, so what was
verified before an orderly close is still there); and in either case only if the chunk's files stand
at full size and nobody wrote to them since. After anything else - a kill, a power failure, a copied
directory, a lost state file - every chunk that has any bytes is hashed again.

Then names are made to fit: a file that has its final name but a bad chunk loses it, and a chunk
that is right in one place and wrong in another is copied (and hashed on the way).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swarm.protocol.ids import ChunkIndex
from swarm.protocol.manifest import Manifest, Position
from swarm.store.byte_ranges import copy_range, has_data, range_digest
from swarm.store.disk_files import DiskFiles
from swarm.store.hash_pool import map_parallel

Places = tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Recovered:
    """The outcome: chunks right at all positions, and whether files moved to new inodes."""

    held: frozenset[ChunkIndex]
    has_moved: bool


class Recovery:
    """One opening of one version. Methods raise OSError."""

    def __init__(
        self,
        manifest: Manifest,
        files: DiskFiles,
        *,
        trusted: Iterable[ChunkIndex],
        trusted_at_ns: int,
        linked: frozenset[int],
        keeps_inode: bool,
    ) -> None:
        """All chunks of `linked` files need no new hash, nor do `trusted` ones in files that did
        not change after `trusted_at_ns`."""
        self._manifest = manifest
        self._files = files
        self._linked = linked
        self._keeps_inode = keeps_inode
        self._has_moved = False
        standing = range(len(manifest.files))
        # Files that exist, at whatever size, under either name.
        self._present = {index for index in standing if self._size(index) is not None}
        sound = {
            index
            for index in self._present
            if self._size(index) == manifest.files[index].size
            and files.changed_at_ns(index) <= trusted_at_ns
        }
        self._trusted = frozenset(
            chunk
            for chunk in trusted
            if all(place.file_index in sound for place in manifest.chunks[chunk].positions)
        )

    def run(self) -> Recovered:
        for index in self._present:
            size = self._files.size(index)
            if size is not None and size != self._manifest.files[index].size:
                self._reopen(index)
        chunks = [ChunkIndex(chunk) for chunk in range(len(self._manifest.chunks))]
        good = dict(zip(chunks, map_parallel(self._good_positions, chunks), strict=True))
        bad = {chunk: self._others(chunk, good[chunk]) for chunk in chunks}
        for chunk in chunks:
            self._take_names_away(bad[chunk])
        held = {chunk for chunk in chunks if self._is_placed(chunk, good[chunk], bad[chunk])}
        return Recovered(frozenset(held), self._has_moved)

    def _size(self, file_index: int) -> int | None:
        size = self._files.size(file_index)
        return self._files.part_size(file_index) if size is None else size

    def _good_positions(self, chunk: ChunkIndex) -> Places:
        positions = self._manifest.chunks[chunk].positions
        if chunk in self._trusted:
            return positions
        return tuple(position for position in positions if self._is_good(chunk, position))

    def _is_good(self, chunk: ChunkIndex, position: Position) -> bool:
        if position.file_index in self._linked:
            return True
        if position.file_index not in self._present:
            return False
        entry = self._manifest.chunks[chunk]
        descriptor = self._files.acquire(position.file_index)
        try:
            if not has_data(descriptor.fd, position.offset, entry.length):
                return False
            return range_digest(descriptor.fd, position.offset, entry.length) == entry.digest
        finally:
            self._files.release(descriptor)

    def _others(self, chunk: ChunkIndex, good: Places) -> Places:
        positions = self._manifest.chunks[chunk].positions
        if len(good) == len(positions):
            return ()
        return tuple(position for position in positions if position not in good)

    def _is_placed(self, chunk: ChunkIndex, good: Places, bad: Places) -> bool:
        """Whether the chunk is right at all its positions, after copying it where it is not."""
        if not bad:
            return True
        if good and self._copy(chunk, good[0], bad):
            return True
        self._take_names_away(good)
        return False

    def _take_names_away(self, places: Places) -> None:
        """No file keeps its final name in which a chunk is to be written."""
        for place in places:
            if self._files.is_whole(place.file_index):
                self._reopen(place.file_index)

    def _reopen(self, file_index: int) -> None:
        self._has_moved |= self._files.reopen(file_index, keeps_inode=self._keeps_inode)

    def _copy(self, chunk: ChunkIndex, good: Position, bad: Places) -> bool:
        """False if the source is not good after all (linked files were not hashed)."""
        entry = self._manifest.chunks[chunk]
        source = self._files.acquire(good.file_index)
        try:
            for place in bad:
                target = self._files.acquire(place.file_index)
                try:
                    digest = copy_range(
                        source.fd, good.offset, target.fd, place.offset, entry.length
                    )
                finally:
                    self._files.release(target)
                if digest != entry.digest:
                    return False
        finally:
            self._files.release(source)
        return True
