"""A file as an upload reads it: part by part, hashed again on the way.

The manifest was made from a first reading. Between that and the upload the file may change, and an
object whose bytes are not the manifest's would fail on every node. Therefore the bytes of each part
go through BLAKE3 once more, chunk by chunk, and the part whose bytes complete a wrong chunk raises
ChangedError. Every part is read before an object is completed, so a mix is never completed.

Parts and chunks have different bounds and several parts are read at the same time, so a hasher
follows the contiguous prefix; a part that is ahead of it waits in memory, which is bounded by the
parts in flight. A part that is asked for again (a retry) must have the bytes it had.
"""

from __future__ import annotations

import os
import threading

import trio
from blake3 import blake3

from swarm.origin.origin import part_bytes_for
from swarm.protocol.manifest import FileEntry, cut
from swarm.publish.hashing import check_stamp
from swarm.publish.scan import SourceFile
from swarm.publish.source_reader import DiskReader, changed, open_scanned


class FileParts:
    """A `PartSource` over one scanned and hashed file."""

    def __init__(self, file: SourceFile, entry: FileEntry, chunk_bytes: int) -> None:
        self.size = file.size
        self.part_bytes = part_bytes_for(file.size)
        self._file = file
        self._verifier = _PrefixVerifier(entry, chunk_bytes)

    async def read_part(self, index: int) -> bytes:
        """Raises ChangedError, PermissionDeniedError, StoreError."""
        return await trio.to_thread.run_sync(self._read_part, index)

    def _read_part(self, index: int) -> bytes:
        offset = index * self.part_bytes
        length = min(self.part_bytes, self.size - offset)
        fd = open_scanned(self._file)
        try:
            check_stamp(self._file, fd)
            part = DiskReader(self._file, fd).read(offset, length)
            check_stamp(self._file, fd)
        finally:
            os.close(fd)
        if len(part) != length or not self._verifier.feed(offset, part):
            raise changed(self._file.path, "its bytes are not those that were hashed")
        return part


class _PrefixVerifier:
    """Compares a file's bytes with its chunk digests; fed from several threads."""

    def __init__(self, entry: FileEntry, chunk_bytes: int) -> None:
        self._digests = entry.digests
        self._ends = [
            offset + length for offset, length in cut(entry.size, entry.data_start, chunk_bytes)
        ]
        self._lock = threading.Lock()
        self._seen: dict[int, bytes] = {}
        self._ahead: dict[int, bytes] = {}
        self._reached = 0
        self._chunk = 0
        self._hasher = blake3()

    def feed(self, offset: int, part: bytes) -> bool:
        """False: the part completes a chunk with another digest, or differs from what was read
        there before."""
        digest = blake3(part).digest()
        with self._lock:
            if offset in self._seen:
                return self._seen[offset] == digest
            self._seen[offset] = digest
            self._ahead[offset] = part
            while self._reached in self._ahead:
                if not self._advance(self._ahead.pop(self._reached)):
                    return False
        return True

    def _advance(self, part: bytes) -> bool:
        """Hash what continues the prefix."""
        view = memoryview(part)
        while view:
            end = self._ends[self._chunk]
            piece = view[: end - self._reached]
            self._hasher.update(piece)
            self._reached += len(piece)
            view = view[len(piece) :]
            if self._reached == end:
                if self._hasher.digest() != self._digests[self._chunk]:
                    return False
                self._chunk += 1
                self._hasher = blake3()
        return True
