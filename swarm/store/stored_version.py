"""One open version: which chunks it holds, who writes which, and when it becomes visible.

The same object serves disk and memory; what differs comes in as parts: where file bytes lie
(`VersionFiles`) and what being visible means (`Visibility`).

Two locks. The condition guards the tokens, `have` and the counts, and is never held over IO. The
file lock orders everything that gives or takes a final name: a name must fit the counts, whoever
changed them last. Where both are taken, the file lock comes first.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from swarm.errors import NotFoundError, SwarmError
from swarm.protocol.chunk_set import ChunkSet
from swarm.protocol.ids import ChunkIndex
from swarm.protocol.manifest import Manifest
from swarm.store.byte_ranges import range_digest
from swarm.store.chunk_store import Span
from swarm.store.faults import faults_of
from swarm.store.state_file import HELD, MISSING, StateTable
from swarm.store.tokens import WriteTokens
from swarm.store.version_files import VersionFiles
from swarm.store.writer import ChunkPlace, Transfer


class Visibility(Protocol):
    """Whether others may see the version. Methods raise OSError."""

    @property
    def is_ready(self) -> bool: ...

    def publish(self) -> None: ...

    def withdraw(self) -> None: ...

    def mark_durable(self) -> None:
        """Everything is flushed."""

    @property
    def is_durable(self) -> bool: ...


class StoredVersion:
    """A `VersionStore`. Takes over its parts and closes them."""

    def __init__(
        self,
        manifest: Manifest,
        directory: str,
        files: VersionFiles,
        states: StateTable,
        visibility: Visibility,
        held: Iterable[ChunkIndex],
    ) -> None:
        """`held` are verified at all their positions, and `states` says so."""
        self.manifest = manifest
        self.directory = directory
        self.have = ChunkSet.of(len(manifest.chunks), held)
        self._files = files
        self._states = states
        self._visibility = visibility
        self._file_lock = threading.Lock()
        self._condition = threading.Condition()
        self._tokens = WriteTokens(self._condition)
        # Bytes of all positions of chunks that are not held: what the disk must still take.
        self.missing_bytes = 0
        # For each file, positions whose chunk is not held.
        self._missing = [0] * len(manifest.files)
        # A flush failed: what the page cache holds may not be what the disk has.
        self._is_suspect = False
        # Threads in `make_durable`; they use the parts until they return.
        self._flush_count = 0
        # How often READY was taken back: what was flushed before that is not all there is.
        self._withdrawn_count = 0
        self.is_closed = False
        for chunk in range(len(manifest.chunks)):
            if chunk not in self.have:
                self._count_positions(ChunkIndex(chunk), 1)
        with faults_of(directory):
            self._settle(range(len(manifest.files)))

    @property
    def is_ready(self) -> bool:
        return self._visibility.is_ready

    @property
    def state_fd(self) -> int:
        """The sealed memfd of chunk states, to hand to a reader; open until `close`."""
        return self._states.shared_fd

    @property
    def state_generation(self) -> int:
        return self._states.header.generation

    def open_file(self, file_index: int) -> int:
        """A read-only descriptor of a file, whole or not, for a reader; the caller closes it."""
        with faults_of(self._files.path):
            return self._files.open_read_only(file_index)

    def writer(self, chunk: ChunkIndex) -> Transfer:
        assert not self.is_closed
        with self._condition:
            turn = self._tokens.enter(chunk, is_held=chunk in self.have)
        place = ChunkPlace(chunk, self.manifest.chunks[chunk], self._files, self._tokens)
        return Transfer(place, turn, self)

    @contextmanager
    def open_span(self, chunk: ChunkIndex) -> Iterator[Span]:
        entry = self.manifest.chunks[chunk]
        position = entry.positions[0]
        self._require_held(chunk)
        with faults_of(self._files.path):
            descriptor = self._files.acquire(position.file_index)
        try:
            # Again after the open: a chunk that is held now has its bytes in this inode.
            self._require_held(chunk)
            yield Span(descriptor.fd, position.offset, entry.length)
        finally:
            self._files.release(descriptor)

    def verify_chunk(self, chunk: ChunkIndex) -> bool:
        if self.is_closed or chunk not in self.have:
            return False
        with faults_of(self._files.path):
            if self._is_sound(chunk):
                return True
            self._unhold(chunk)
        return False

    def publish_ready(self) -> None:
        assert self.have.is_full, f"{len(self.have)} of {self.have.count} chunks are held"
        with faults_of(self._files.path):
            self._settle(range(len(self.manifest.files)))
            with self._file_lock:
                if self.is_ready:
                    return
                # First: after READY a name is never taken away with its inode.
                self._states.mark_published()
                self._files.clear_parts()
                self._visibility.publish()

    def make_durable(self) -> None:
        with self._condition:
            if self.is_closed or self._visibility.is_durable:
                return
            self._flush_count += 1
        try:
            self._flush()
        finally:
            with self._condition:
                self._flush_count -= 1
                is_left_to_us = self.is_closed and not self._flush_count
            if is_left_to_us:
                self._close_parts()

    def _flush(self) -> None:
        withdrawn_count = self._withdrawn_count
        try:
            with faults_of(self._files.path):
                self._files.sync()
                self._states.sync()
                with self._file_lock:
                    # Damage may have been found and repaired meanwhile, or another agent have come.
                    is_same = self._withdrawn_count == withdrawn_count
                    if self.is_ready and is_same and not self.is_closed:
                        self._visibility.mark_durable()
        except SwarmError:
            self._is_suspect = True
            with faults_of(self._files.path):
                self._visibility.withdraw()
            raise

    def close(self) -> None:
        """A flush that is under way goes on, and closes the parts when it ends: it may wait for a
        slow disk, and nobody who leaves should."""
        assert self._tokens.live_count == 0, "a transfer is live"
        with self._condition:
            assert not self.is_closed
            self.is_closed = True
            if self._flush_count:
                return
        self._close_parts()

    def _close_parts(self) -> None:
        with faults_of(self._files.path):
            self._states.close(is_clean=not self._is_suspect)
            self._files.close()

    def mark_held(self, chunk: ChunkIndex) -> None:
        """Every position is written: set the state byte. Called by the winning transfer."""
        self._states.set_state(chunk, HELD)
        with self._condition:
            self.have.add(chunk)
            self._count_positions(chunk, -1)

    def settle_files(self, chunk: ChunkIndex) -> None:
        """Name the files that this chunk made whole."""
        touched = {position.file_index for position in self.manifest.chunks[chunk].positions}
        if any(self._missing[file_index] == 0 for file_index in touched):
            self._settle(touched)

    def _require_held(self, chunk: ChunkIndex) -> None:
        if self.is_closed or chunk not in self.have:
            raise NotFoundError(
                f"{self._files.path}: chunk {chunk} is not held", object_name=str(chunk)
            )

    def _settle(self, file_indices: Iterable[int]) -> None:
        """Give final names to files of which no chunk is missing."""
        with self._file_lock:
            for file_index in file_indices:
                if self._missing[file_index] == 0 and not self._files.is_whole(file_index):
                    self._files.complete(file_index)

    def _is_sound(self, chunk: ChunkIndex) -> bool:
        entry = self.manifest.chunks[chunk]
        for position in entry.positions:
            # What was removed from its directory may still be open here, for us alone.
            if self._files.is_gone(position.file_index):
                return False
            descriptor = self._files.acquire(position.file_index)
            try:
                digest = range_digest(descriptor.fd, position.offset, entry.length)
            finally:
                self._files.release(descriptor)
            if digest != entry.digest:
                return False
        return True

    def _unhold(self, chunk: ChunkIndex) -> None:
        """A held chunk is damaged: nobody may see it, and it can be written again. The names go
        before the chunk does, so that no writer meets a file that is read-only. With a file that
        somebody removed go all its chunks at once, before a new file of that name can be read."""
        with self._file_lock:
            if chunk not in self.have:
                return
            self._withdrawn_count += 1
            self._visibility.withdraw()
            self._states.set_state(chunk, MISSING)
            lost = self._held_in_gone_files(chunk)
            self._discard(lost)
            self._take_names_away([chunk, *lost])
            if chunk not in lost:
                self._discard([chunk])

    def _held_in_gone_files(self, chunk: ChunkIndex) -> list[ChunkIndex]:
        files = {position.file_index for position in self.manifest.chunks[chunk].positions}
        gone = {file_index for file_index in files if self._files.is_gone(file_index)}
        return [
            held
            for held in list(self.have)
            if any(place.file_index in gone for place in self.manifest.chunks[held].positions)
        ]

    def _discard(self, chunks: Iterable[ChunkIndex]) -> None:
        for chunk in chunks:
            self._states.set_state(chunk, MISSING)
            with self._condition:
                self.have.discard(chunk)
                self._count_positions(chunk, 1)
                self._tokens.unhold(chunk)

    def _take_names_away(self, chunks: Iterable[ChunkIndex]) -> None:
        keeps_inode = not self._states.header.is_published
        has_moved = False
        for chunk in chunks:
            for position in self.manifest.chunks[chunk].positions:
                if self._files.is_whole(position.file_index):
                    has_moved |= self._files.reopen(position.file_index, keeps_inode=keeps_inode)
        if has_moved:
            self._states.next_generation()

    def _count_positions(self, chunk: ChunkIndex, change: int) -> None:
        entry = self.manifest.chunks[chunk]
        self.missing_bytes += change * entry.length * len(entry.positions)
        for position in entry.positions:
            self._missing[position.file_index] += change
