"""What a store of chunks offers, whatever holds the bytes. Disk and memory implement it; one
conformance suite runs over both.

All methods block (they do file IO) and are called from worker threads, except where "immediate" is
said. A version handle may be used from several threads at once; one `ChunkWriter` from one thread
at a time per stripe, several stripes in parallel.
"""

from __future__ import annotations

import enum
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from swarm.protocol.chunk_set import ChunkSet
from swarm.protocol.ids import ChunkIndex, Identity, VersionId
from swarm.protocol.manifest import Manifest


class CommitResult(enum.Enum):
    """What became of a transfer whose bytes all arrived with the right digest."""

    # This transfer's bytes are the chunk's bytes now.
    WRITTEN = enum.auto()
    # Another transfer of the same chunk was verified first; these bytes are dropped.
    ALREADY_HELD = enum.auto()


@dataclass(frozen=True, slots=True)
class Span:
    """Where a verified chunk can be read: `length` bytes at `offset` of `fd`."""

    fd: int
    offset: int
    length: int


class ChunkWriter(Protocol):
    """Receives one chunk of one transfer. Hashes the contiguous prefix as it grows; bytes ahead
    of it are written and read back."""

    # Bytes of the chunk.
    length: int

    def write(self, offset: int, payload: memoryview) -> None:
        """Take bytes at `offset` within the chunk; raises StoreError, NoSpaceError. No byte may
        be given twice."""

    def commit(self) -> CommitResult:
        """All bytes are here: check the digest, copy to further positions, set the state byte,
        rename files that became whole.

        Raises IntegrityError on a wrong digest (the bytes stay invisible and the chunk can be
        fetched again), StoreError, NoSpaceError. The writer is closed either way.
        """

    def abort(self) -> None:
        """Give the chunk up; idempotent, also after commit."""


class VersionStore(Protocol):
    """One version in one store."""

    manifest: Manifest
    # Verified chunks. Read by anybody, written by the store alone.
    have: ChunkSet
    # Where an engine finds the files, or "" where there is no directory (memory).
    directory: str
    # Bytes of all positions of chunks that are not held: what the place must still take.
    missing_bytes: int

    def writer(self, chunk: ChunkIndex) -> ChunkWriter:
        """A writer for one transfer of `chunk`. The first holds the write token; others receive
        aside and win by `commit`."""

    def open_span(self, chunk: ChunkIndex) -> AbstractContextManager[Span]:
        """A readable place of a verified chunk, open as long as the context; raises
        NotFoundError if not held."""

    def verify_chunk(self, chunk: ChunkIndex) -> bool:
        """Read and hash every position of a held chunk. If one is wrong, un-hold the chunk (and
        un-ready the version): False."""

    def publish_ready(self) -> None:
        """Every chunk is verified: make the version visible (READY)."""

    def make_durable(self) -> None:
        """Flush everything, then write DURABLE; may take long. A failed flush withdraws READY
        and raises StoreError."""

    @property
    def is_ready(self) -> bool:
        """The version is visible. Immediate."""

    def open_file(self, file_index: int) -> int:
        """A read-only descriptor of a file, whole or not, for a reader; the caller closes it."""

    @property
    def state_fd(self) -> int:
        """The memfd of chunk states (`swarm.store.state_file`), sealed, for a reader to map; open
        until `close`. Immediate."""

    @property
    def state_generation(self) -> int:
        """Grows when bytes may have moved to new inodes: readers open files again. Immediate."""

    def close(self) -> None:
        """Release descriptors and maps; no writer may be live."""


class ChunkStore(Protocol):
    """All versions of one node."""

    # Which boot of which node this is.
    identity: Identity

    def open_version(self, manifest: Manifest, manifest_bytes: bytes) -> VersionStore:
        """Open or create a version: resume what an earlier run verified, reuse equal files and
        chunks of ready versions. May hash or copy for long.

        Raises StoreError, NoSpaceError (also if what is missing does not fit beside what other
        open versions miss), ConflictError if the directory holds something else.
        """

    def versions(self) -> tuple[VersionId, ...]:
        """Versions present, whole or not."""

    def manifest_bytes(self, version: VersionId) -> bytes | None:
        """The stored manifest of a version, or None."""

    def evict(self, version: VersionId) -> None:
        """Remove a closed version; nothing if it is not here. Raises LockedError while it is open
        or a reader holds it."""

    def close(self) -> None:
        """Close all and release the lock."""
