"""One transfer of one chunk: bytes in, digest checked, chunk held.

With the write token the bytes go straight to their final offsets in the file's part; without it
into an unnamed scratch file, to be copied over if this transfer wins. `swarm.store.tokens` decides
which, and who wins.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swarm.errors import IntegrityError, StoreError
from swarm.protocol.ids import ChunkIndex
from swarm.protocol.manifest import Position, UniqueChunk
from swarm.store.byte_ranges import copy_range, hash_range, range_digest, write_all
from swarm.store.chunk_store import CommitResult
from swarm.store.descriptors import Descriptor
from swarm.store.faults import store_fault
from swarm.store.hashed_prefix import HashedPrefix
from swarm.store.tokens import Turn, WriteTokens
from swarm.store.version_files import VersionFiles

if TYPE_CHECKING:
    from swarm.store.stored_version import StoredVersion


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """What a transfer needs to know of its version."""

    chunk: ChunkIndex
    entry: UniqueChunk
    files: VersionFiles
    tokens: WriteTokens


class Transfer:
    """A `ChunkWriter`; made by `StoredVersion.writer`."""

    def __init__(self, place: ChunkPlace, turn: Turn, version: StoredVersion) -> None:
        self.length = place.entry.length
        self._place = place
        self._turn = turn
        self._version = version
        self._prefix = HashedPrefix()
        self._is_aside = not turn.has_token
        self._descriptor: Descriptor | None = None
        self._scratch: int | None = None
        self._is_closed = False
        if not turn.is_over:
            try:
                self._open()
            except OSError as error:
                place.tokens.leave(turn)
                raise store_fault(error, place.files.path, needed_bytes=self.length) from error

    def write(self, offset: int, payload: memoryview) -> None:
        count = payload.nbytes
        assert 0 <= offset <= self.length - count, (offset, count, self.length)
        if not self._place.tokens.begin_write(self._turn):
            return  # Lost: the chunk is another transfer's by now.
        try:
            self._take(offset, payload)
        except OSError as error:
            raise store_fault(error, self._place.files.path, needed_bytes=count) from error
        finally:
            self._place.tokens.end_write(self._turn)

    def commit(self) -> CommitResult:
        assert not self._is_closed
        try:
            if not self._turn.is_over:
                self._check_digest()
            if not self._place.tokens.claim(self._turn):
                return CommitResult.ALREADY_HELD
            self._take_place()
            self._version.settle_files(self._turn.chunk)
            return CommitResult.WRITTEN
        except OSError as error:
            raise store_fault(error, self._place.files.path, needed_bytes=self.length) from error
        finally:
            self.abort()

    def abort(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        # Raises if a write hangs; then the descriptors stay open, for its thread still uses them.
        self._place.tokens.leave(self._turn)
        if self._descriptor is not None:
            self._place.files.release(self._descriptor)
        if self._scratch is not None:
            os.close(self._scratch)

    def _open(self) -> None:
        if self._is_aside:
            self._scratch = self._place.files.open_scratch()
        else:
            self._descriptor = self._place.files.acquire(self._first.file_index)

    def _take(self, offset: int, payload: memoryview) -> None:
        fd, base = self._target()
        prefix = self._prefix
        if prefix.begin(offset):
            prefix.hasher.update(payload)
            write_all(fd, payload, base + offset)
            prefix.advance(payload.nbytes)
        else:
            write_all(fd, payload, base + offset)
            prefix.put_ahead(offset, payload.nbytes)
        while (span := prefix.begin_read_back()) is not None:
            start, count = span
            if not hash_range(fd, base + start, count, prefix.hasher):
                raise self._flaky_disk()
            prefix.advance(count)

    def _check_digest(self) -> None:
        """Raises IntegrityError if the source sent wrong bytes, StoreError if the disk gave back
        others than it took."""
        assert self._turn.is_over or self._prefix.end == self.length, "commit before the last byte"
        digest = self._prefix.hasher.digest()
        if self._turn.is_over or digest == self._place.entry.digest:
            return
        if self._prefix.had_read_back:
            fd, base = self._target()
            if range_digest(fd, base, self.length) != digest:
                raise self._flaky_disk()
        raise IntegrityError(
            f"{self._place.files.path}: chunk {self._turn.chunk} has digest {digest.hex()},"
            f" the manifest says {self._place.entry.digest.hex()}",
            object_name=str(self._turn.chunk),
            hint="fetch it again, from another source",
        )

    def _take_place(self) -> None:
        """We won the claim: put the bytes where they belong and set the byte."""
        is_held = False
        try:
            if self._is_aside:
                self._copy_scratch_over()
            self._copy_to_further_positions()
            self._version.mark_held(self._turn.chunk)
            is_held = True
        finally:
            self._place.tokens.settle(self._turn, is_held=is_held)

    def _copy_scratch_over(self) -> None:
        assert self._scratch is not None
        self._descriptor = self._place.files.acquire(self._first.file_index)
        digest = copy_range(self._scratch, 0, self._descriptor.fd, self._first.offset, self.length)
        if digest != self._place.entry.digest:
            raise self._flaky_disk()

    def _copy_to_further_positions(self) -> None:
        assert self._descriptor is not None
        for position in self._place.entry.positions[1:]:
            further = self._place.files.acquire(position.file_index)
            try:
                copy_range(
                    self._descriptor.fd,
                    self._first.offset,
                    further.fd,
                    position.offset,
                    self.length,
                )
            finally:
                self._place.files.release(further)

    def _target(self) -> tuple[int, int]:
        """Where received bytes go: (fd, offset of the chunk's first byte there)."""
        if self._is_aside:
            assert self._scratch is not None
            return self._scratch, 0
        assert self._descriptor is not None
        return self._descriptor.fd, self._first.offset

    @property
    def _first(self) -> Position:
        return self._place.entry.positions[0]

    def _flaky_disk(self) -> StoreError:
        return StoreError(
            f"{self._place.files.path}: chunk {self._turn.chunk}: two reads of it differ",
            object_name=self._place.files.path,
            hint="look at the disk and the memory of this node (dmesg)",
            is_retryable=True,
        )
