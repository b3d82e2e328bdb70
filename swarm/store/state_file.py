"""One byte per chunk, the only truth about what is verified; readable by other processes.

A hole reads as zeros and a sparse safetensors file with its header opens cleanly, so neither size
nor content tells whether a chunk is there. The byte does: it is set after the chunk's last
position is written. The same bytes live in two places, set by one function: a sealed memfd that is
handed to the serving process over the local socket, and `.swarm/state` for readers in other
containers that share the volume but not the socket. Both start with the same 64-byte header.

The file is written with `pwrite`, not through a map: on a full disk that is an error code and not
a SIGBUS. Readers map it.

Header, little-endian: magic (8), boot id (16), first half of the version id (16), state
generation (u64), device number of the directory (u64), chunk count (u32), flags (u32).
A reader that sees another generation than the one it began with opens all files again: bytes may
have moved to new inodes.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace

from swarm.protocol.ids import ChunkIndex, VersionId
from swarm.store.byte_ranges import write_all

STATE_HEADER_BYTES = 64
MISSING = 0
HELD = 1

_HEADER = struct.Struct("<8s16s16sQQII")
assert _HEADER.size == STATE_HEADER_BYTES
_MAGIC = b"SWARMST1"
# Closed in order: the bytes may be trusted within this boot.
_CLEAN = 1
# READY was written once: files may be mapped by somebody, so a renamed one is never written again.
_PUBLISHED = 2
# Not in Python's fcntl module: writes and new writable maps fail, maps made before go on.
_F_SEAL_FUTURE_WRITE = 0x10


@dataclass(frozen=True, slots=True)
class StateHeader:
    """What the 64 bytes say."""

    boot_id: bytes
    version: VersionId
    generation: int
    device: int
    chunk_count: int
    is_clean: bool
    is_published: bool

    def pack(self) -> bytes:
        flags = _CLEAN * self.is_clean | _PUBLISHED * self.is_published
        return _HEADER.pack(
            _MAGIC,
            self.boot_id,
            self.version[:16],
            self.generation,
            self.device,
            self.chunk_count,
            flags,
        )


@dataclass(frozen=True, slots=True)
class SavedState:
    """What an earlier run left: its header and its bytes."""

    header: StateHeader
    held: tuple[ChunkIndex, ...]


def read_state(fd: int, version: VersionId, chunk_count: int) -> SavedState | None:
    """What the state file says about this version, or None if it is not a state of it."""
    raw = os.pread(fd, STATE_HEADER_BYTES + chunk_count + 1, 0)
    if len(raw) != STATE_HEADER_BYTES + chunk_count:
        return None
    magic, boot_id, half, generation, device, count, flags = _HEADER.unpack_from(raw)
    if (magic, half, count) != (_MAGIC, version[:16], chunk_count):
        return None
    header = StateHeader(
        boot_id, version, generation, device, count, bool(flags & _CLEAN), bool(flags & _PUBLISHED)
    )
    states = raw[STATE_HEADER_BYTES:]
    return SavedState(header, tuple(ChunkIndex(i) for i, byte in enumerate(states) if byte == HELD))


class StateTable:
    """The live bytes of one open version. The store's lock orders its callers."""

    def __init__(self, header: StateHeader, held: Iterable[ChunkIndex], fd: int | None) -> None:
        """Takes over `fd`, an open `.swarm/state` (None in memory); raises OSError."""
        self.header = header
        self._fd = fd
        states = bytearray(header.chunk_count)
        for chunk in held:
            states[chunk] = HELD
        content = header.pack() + bytes(states)
        self.shared_fd = os.memfd_create("swarm-state", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        write_all(self.shared_fd, memoryview(content), 0)
        self._map = mmap.mmap(self.shared_fd, len(content))
        fcntl.fcntl(
            self.shared_fd,
            fcntl.F_ADD_SEALS,
            fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _F_SEAL_FUTURE_WRITE,
        )
        if fd is not None:
            # In full, so that later single bytes need no new block.
            write_all(fd, memoryview(content), 0)
            os.ftruncate(fd, len(content))

    def set_state(self, chunk: ChunkIndex, state: int) -> None:
        """The one function that changes a chunk's byte, in both places."""
        self._write(STATE_HEADER_BYTES + chunk, bytes((state,)))

    def mark_published(self) -> None:
        self._write_header(replace(self.header, is_published=True))

    def next_generation(self) -> None:
        """Files moved to new inodes: readers open them again."""
        self._write_header(replace(self.header, generation=self.header.generation + 1))

    def sync(self) -> None:
        if self._fd is not None:
            os.fdatasync(self._fd)

    def close(self, *, is_clean: bool) -> None:
        if is_clean:
            self._write_header(replace(self.header, is_clean=True))
        self._map.close()
        os.close(self.shared_fd)
        if self._fd is not None:
            os.close(self._fd)

    def _write_header(self, header: StateHeader) -> None:
        self.header = header
        self._write(0, header.pack())

    def _write(self, offset: int, content: bytes) -> None:
        if self._fd is not None:
            write_all(self._fd, memoryview(content), offset)
        self._map[offset : offset + len(content)] = content
