"""Every frame between two agents, as frozen records. The codec (`codec.py`) turns them into bytes
and back.

Two kinds of link share one port. The **control link**, one per neighbour pair, carries Hello,
Proof, Reject, Bitfield, Have, Retract, Claim, Peers, BadChunk, Ping and Bye. A **data link** is
opened by the fetching side and carries Hello, Proof and Reject, then Request → Chunk + raw payload
or Refuse, Cancel, and DocumentRequest → Document.

On the wire a frame is a u32 big-endian length and a msgpack array ``[type, field, …]`` in the order
of the fields below. A decoder ignores unknown types and surplus trailing fields, so a field may be
appended within one protocol number and never removed or moved.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from swarm.protocol.ids import Address, ChunkIndex, NodeId, SessionId, VersionId

PROTOCOL_VERSION = 1
"""Bumped when an old agent would misread a new one; both numbers are named when a handshake is
refused."""


class LinkKind(enum.IntEnum):
    """What a connection is for; covered by the handshake's MAC."""

    CONTROL = 1
    DATA = 2


class RejectReason(enum.IntEnum):
    """Why a handshake ends. The number travels; unknown numbers read as OTHER."""

    OTHER = 0
    PROTOCOL_VERSION = 1
    WRONG_KEY = 2
    SELF = 3
    DUPLICATE = 4
    WRONG_NODE = 5
    STALE_GENERATION = 6
    TOO_MANY_LINKS = 7
    LEAVING = 8


class RefuseReason(enum.IntEnum):
    """Why a request is not served."""

    OTHER = 0
    # Slots and queue are taken; `load` says how much.
    BUSY = 1
    # The session was ended at a chunk end because another peer waits.
    YIELDED = 2
    # Not held, not known or not allowed: one reply for all three, so that nobody learns what exists
    # here.
    NOT_HELD = 3
    LEAVING = 4


class DocumentKind(enum.IntEnum):
    """Which of a version's two documents is asked for."""

    MANIFEST = 1
    LOCATIONS = 2


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """How to reach an agent, and where it stands."""

    node_id: NodeId
    generation: int
    address: Address
    zone: str = ""
    rack: str = ""


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame of both sides."""

    protocol: int
    kind: LinkKind
    node_id: NodeId
    generation: int
    # 16 random bytes, fresh for each connection.
    nonce: bytes
    # Where this agent listens, for the peer's later data links and peer exchange; port 0 means not
    # reachable.
    address: Address
    zone: str
    rack: str
    # Announced NIC rate in bytes/s; 0 means not known yet.
    nic_bytes_per_s: int


@dataclass(frozen=True, slots=True)
class Proof:
    """Keyed BLAKE3 over both Hellos and the sender's role; shows knowledge of the cluster key
    without sending it."""

    mac: bytes


@dataclass(frozen=True, slots=True)
class Reject:
    """Last frame before the sender closes."""

    reason: RejectReason
    # Human-readable, ≤ 200 characters.
    detail: str


@dataclass(frozen=True, slots=True)
class Bitfield:
    """All chunks of a version that the sender holds; replaces what was known."""

    version: VersionId
    chunk_count: int
    # Little-endian bit set of ceil(chunk_count / 8) bytes.
    bits: bytes
    # Uploads active and queued at the sender.
    load: int


@dataclass(frozen=True, slots=True)
class Have:
    """Chunks that the sender verified since its last batch."""

    version: VersionId
    chunks: tuple[ChunkIndex, ...]
    load: int


@dataclass(frozen=True, slots=True)
class Retract:
    """Chunks that the sender no longer holds (evicted, damaged); an empty tuple means the whole
    version."""

    version: VersionId
    chunks: tuple[ChunkIndex, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """The sender imports this chunk into its rack; rack mates leave it alone until the claim
    expires."""

    version: VersionId
    chunk: ChunkIndex


@dataclass(frozen=True, slots=True)
class Peers:
    """Peer exchange, ≤ 64 entries."""

    peers: tuple[PeerInfo, ...]


@dataclass(frozen=True, slots=True)
class BadChunk:
    """The receiver's copy of this chunk, sent earlier, did not have the manifest's digest: hash
    it again."""

    version: VersionId
    chunk: ChunkIndex


@dataclass(frozen=True, slots=True)
class Ping:
    """Keeps a link alive and shows that the other side is; answered with the same token and
    `is_reply`."""

    token: int
    is_reply: bool


@dataclass(frozen=True, slots=True)
class Bye:
    """The sender leaves; nothing more will be served."""

    detail: str


@dataclass(frozen=True, slots=True)
class Request:
    """Ask for `length` bytes at `offset` of a chunk. A whole chunk unless the session is striped
    over several links."""

    session: SessionId
    # Which stripe of how many this link carries.
    stripe: int
    stripes: int
    version: VersionId
    chunk: ChunkIndex
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Header of a payload: exactly `length` raw bytes follow this frame."""

    session: SessionId
    version: VersionId
    chunk: ChunkIndex
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """The answer to a Request that will not be served."""

    session: SessionId
    version: VersionId
    chunk: ChunkIndex
    reason: RefuseReason
    load: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Takes back a Request whose payload has not begun; once it has begun, the fetching side
    closes the link instead."""

    session: SessionId
    version: VersionId
    chunk: ChunkIndex


@dataclass(frozen=True, slots=True)
class DocumentRequest:
    """Ask for a page of a manifest or of its locations."""

    version: VersionId
    kind: DocumentKind
    offset: int


@dataclass(frozen=True, slots=True)
class Document:
    """A page of a document; `total_bytes` 0 means not held here."""

    version: VersionId
    kind: DocumentKind
    offset: int
    total_bytes: int
    page: bytes


Message = (
    Hello | Proof | Reject | Bitfield | Have | Retract | Claim | Peers | BadChunk | Ping | Bye
    | Request | Chunk | Refuse | Cancel | DocumentRequest | Document
)  # fmt: skip
