"""Facts that reach a node: what happened, in the past tense. `Node.handle` is the only reader."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NewType

from swarm.protocol.ids import ChunkIndex, NodeId, SessionId, VersionId
from swarm.protocol.messages import PeerInfo, RefuseReason
from swarm.protocol.tracker_api import Lease, Mode

TransferId = NewType("TransferId", int)
"""Names one attempt to get one chunk from one source; chosen by the node, unique within a run."""


class FailureReason(enum.Enum):
    """Why a transfer ended without a verified chunk."""

    # The peer refused; `refusal` and `load` say more.
    REFUSED = enum.auto()
    # We asked for it (slow source, end game, version removed).
    CANCELLED = enum.auto()
    # The link broke or nothing arrived for too long.
    LOST = enum.auto()
    # The bytes arrived and had the wrong digest.
    CORRUPT = enum.auto()
    # The origin said slow down.
    THROTTLED = enum.auto()
    # The origin does not have it, or refuses us for good.
    UNAVAILABLE = enum.auto()
    # Our own disk failed; nobody is to blame.
    LOCAL = enum.auto()


@dataclass(frozen=True, slots=True)
class VersionAdded:
    """Fetch (or, if whole, serve) this version from now on."""

    version: VersionId
    # Bytes of each unique chunk, by chunk index.
    lengths: tuple[int, ...]
    # Bit set of the chunks already verified in the store.
    have_bits: int


@dataclass(frozen=True, slots=True)
class VersionRemoved:
    """The version is evicted or no longer wanted: cancel its transfers, serve it no more."""

    version: VersionId


@dataclass(frozen=True, slots=True)
class HandoutReceived:
    """The tracker (or a `--peer` list, or a neighbour's exchange) names agents that take part in
    a version."""

    version: VersionId
    peers: tuple[PeerInfo, ...]


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """A control link is up; bit fields follow from both sides."""

    peer: PeerInfo
    # Announced NIC rate in bytes/s; 0 means unknown.
    nic_bytes_per_s: int
    # We opened it.
    is_outgoing: bool
    # Round trip of the handshake, in seconds.
    rtt_s: float


@dataclass(frozen=True, slots=True)
class ConnectFailed:
    """A `ConnectPeer` did not lead to a link."""

    peer: NodeId
    # The address did not answer at all (so the tracker should hear of it), as against a refusal by
    # the agent there.
    is_unreachable: bool


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A control link is gone, with all that it promised. Transfers on its data links end with
    events of their own."""

    peer: NodeId
    # The peer said Bye, or we closed the link: nothing for the tracker to hear of.
    is_clean: bool


@dataclass(frozen=True, slots=True)
class BitfieldReceived:
    """All that a neighbour holds of a version."""

    peer: NodeId
    version: VersionId
    bits: int
    load: int


@dataclass(frozen=True, slots=True)
class HavesReceived:
    """What a neighbour verified since its last batch."""

    peer: NodeId
    version: VersionId
    bits: int
    load: int


@dataclass(frozen=True, slots=True)
class ChunksRetracted:
    """What a neighbour no longer holds."""

    peer: NodeId
    version: VersionId
    bits: int


@dataclass(frozen=True, slots=True)
class ClaimReceived:
    """A neighbour fetches a chunk from outside for all of its rack."""

    peer: NodeId
    version: VersionId
    chunk: ChunkIndex


@dataclass(frozen=True, slots=True)
class TransferNearEnd:
    """A peer transfer passed its pre-send point: now is the time to ask the same peer for the
    next chunk of the session."""

    transfer: TransferId


@dataclass(frozen=True, slots=True)
class ChunkVerified:
    """A chunk has the manifest's digest and its state byte is set; it may be announced and
    served."""

    version: VersionId
    chunk: ChunkIndex
    # None for a chunk found on the local disk.
    transfer: TransferId | None


@dataclass(frozen=True, slots=True)
class ChunkDamaged:
    """A chunk that was verified has lost its digest on our disk; it is to be fetched again and
    retracted."""

    version: VersionId
    chunk: ChunkIndex


@dataclass(frozen=True, slots=True)
class TransferFailed:
    """A transfer ended without a verified chunk."""

    transfer: TransferId
    reason: FailureReason
    # With REFUSED only.
    refusal: RefuseReason = RefuseReason.OTHER
    load: int = 0
    # With THROTTLED: seconds that the origin asked us to wait, if it said.
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProgressSampled:
    """Bytes seen so far, every 0.1–0.25 s while transfers run. Taken from the kernel, not from
    wake-ups."""

    # (transfer, payload bytes received so far) for each live transfer, peers and origin alike.
    received: tuple[tuple[TransferId, int], ...]
    # Payload bytes since the agent's start, all links together.
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class ChunkRequested:
    """A peer asks for a chunk over a data link. One slot per (peer, session), however many links
    stripe it."""

    peer: NodeId
    session: SessionId
    version: VersionId
    chunk: ChunkIndex
    # Of the peer, as it introduced itself on the data link; None: not known.
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class UploadFinished:
    """The last payload byte of a `StartUpload` was handed to the kernel."""

    peer: NodeId
    session: SessionId
    chunk: ChunkIndex
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class RequestCancelled:
    """A peer took back a request that had not begun."""

    peer: NodeId
    session: SessionId
    chunk: ChunkIndex


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """A peer's data links of this session are gone: its slot, queue place and upload are free."""

    peer: NodeId
    session: SessionId


@dataclass(frozen=True, slots=True)
class LeasesReceived:
    """All live leases of this node for a version, as the tracker has them: a lease not named
    here is revoked."""

    version: VersionId
    leases: tuple[Lease, ...]
    # The tracker brings each chunk into our zone by such a lease, so sessions stay within it.
    is_zoned: bool = False


@dataclass(frozen=True, slots=True)
class ModeReceived:
    """An operator's mode for a version."""

    version: VersionId
    mode: Mode


@dataclass(frozen=True, slots=True)
class TrackerLost:
    """No tracker has answered for too long (or none is configured): neighbours and rendezvous
    hashing must do."""


@dataclass(frozen=True, slots=True)
class TrackerRegained:
    """A tracker answers again."""


@dataclass(frozen=True, slots=True)
class BadChunkReported:
    """A peer got bytes from us that had the wrong digest."""

    peer: NodeId
    version: VersionId
    chunk: ChunkIndex


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """SIGTERM: finish what is in flight, start nothing new, serve nothing new."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """`next_deadline()` has come."""


TransferEvent = TransferNearEnd | ChunkVerified | TransferFailed | ProgressSampled | ChunkDamaged
UploadEvent = (
    ChunkRequested | UploadFinished | RequestCancelled | SessionClosed | BadChunkReported
)  # fmt: skip
PeerEvent = (
    HandoutReceived | PeerConnected | ConnectFailed | PeerLost | BitfieldReceived | HavesReceived
    | ChunksRetracted | ClaimReceived
)  # fmt: skip
ControlEvent = (
    VersionAdded | VersionRemoved | LeasesReceived | ModeReceived | TrackerLost | TrackerRegained
    | LeaveRequested | TimerFired
)  # fmt: skip
Event = TransferEvent | UploadEvent | PeerEvent | ControlEvent
