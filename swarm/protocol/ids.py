"""Names of things. Every id is a distinct type, so that a chunk index never passes for a session
id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from swarm.errors import UsageError

NodeId = NewType("NodeId", bytes)
"""16 random bytes that name a machine; made once and kept in the cache directory."""
VersionId = NewType("VersionId", bytes)
"""32 bytes: the BLAKE3 digest of a manifest. Written as 64 hex digits."""
ChunkDigest = NewType("ChunkDigest", bytes)
"""32 bytes: the BLAKE3 digest of a chunk."""
FileDigest = NewType("FileDigest", bytes)
"""32 bytes: BLAKE3 over a file's size, data_start, chunk_bytes and chunk digests."""
ChunkIndex = NewType("ChunkIndex", int)
"""Position in a manifest's list of unique chunks, 0 … chunk_count-1."""
LeaseId = NewType("LeaseId", int)
"""Names one grant; unique within a tracker epoch."""
SessionId = NewType("SessionId", int)
"""Names one session; unique within the fetching agent's generation."""

NODE_ID_BYTES = 16
DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Identity:
    """Which boot of which machine: the pair that tells an agent from its predecessor at the same
    address."""

    node_id: NodeId
    # Which boot of the agent this is; grows by one at each start.
    generation: int


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where an agent listens. IPv6 hosts are kept without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def version_id_from_hex(text: str) -> VersionId:
    """Read 64 hex digits; raises UsageError."""
    if len(text) != 2 * DIGEST_BYTES:
        raise UsageError(f"a version id has 64 hex digits, this has {len(text)}: {text[:80]!r}")
    try:
        return VersionId(bytes.fromhex(text))
    except ValueError:
        raise UsageError(f"not a version id: {text!r}") from None


def parse_address(text: str) -> Address:
    """Read ``host:port`` or ``[v6]:port``; raises UsageError."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise UsageError(
            f"not an address (host:port): {text!r}", hint="write 10.0.0.7:7000 or [fd00::7]:7000"
        )
    return Address(host, int(port))
