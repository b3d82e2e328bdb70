"""Orders that a node gives: what to do, in the imperative. The agent and the simulator are the two
interpreters.

Each command that takes time ends in exactly one event, failure and cancellation included; it is
named beside the command.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarm.policy.events import TransferId
from swarm.protocol.ids import ChunkIndex, LeaseId, NodeId, SessionId, VersionId
from swarm.protocol.messages import PeerInfo, RefuseReason
from swarm.protocol.tracker_api import LeaseOutcome


@dataclass(frozen=True, slots=True)
class ConnectPeer:
    """Open a control link. Ends in PeerConnected or ConnectFailed."""

    peer: PeerInfo


@dataclass(frozen=True, slots=True)
class DisconnectPeer:
    """Close a control link (useless, surplus, or at fault). Ends in PeerLost."""

    peer: NodeId
    detail: str


@dataclass(frozen=True, slots=True)
class SendBitfield:
    """Tell a neighbour all that we hold. Immediate."""

    peer: NodeId
    version: VersionId
    bits: int
    load: int


@dataclass(frozen=True, slots=True)
class SendHave:
    """Tell a neighbour what is new. Immediate."""

    peer: NodeId
    version: VersionId
    bits: int
    load: int


@dataclass(frozen=True, slots=True)
class SendRetract:
    """Tell a neighbour what is gone. Immediate."""

    peer: NodeId
    version: VersionId
    bits: int


@dataclass(frozen=True, slots=True)
class SendClaim:
    """Tell a rack mate that we fetch a chunk from outside the rack, so that it need not.
    Immediate."""

    peer: NodeId
    version: VersionId
    chunk: ChunkIndex


@dataclass(frozen=True, slots=True)
class SendBadChunk:
    """Tell a peer that bytes it sent had the wrong digest. Immediate."""

    peer: NodeId
    version: VersionId
    chunk: ChunkIndex


@dataclass(frozen=True, slots=True)
class RequestChunk:
    """Ask a peer for a chunk, on the data link(s) of this session. Ends in ChunkVerified or
    TransferFailed.

    TransferNearEnd comes at most once in between. A session has at most two live transfers: the
    current and the pre-sent one.
    """

    transfer: TransferId
    peer: NodeId
    session: SessionId
    version: VersionId
    chunk: ChunkIndex
    # Data links to spread the chunk over; 1 unless a flow cap makes one flow too slow.
    stripes: int
    # Who `peer` is, where it need not be a neighbour: the source of a zone lease.
    source: PeerInfo | None = None


@dataclass(frozen=True, slots=True)
class EndSession:
    """No more requests on this session: its data links may go back to the idle pool once its
    transfers are over. Immediate."""

    peer: NodeId
    session: SessionId


@dataclass(frozen=True, slots=True)
class FetchFromOrigin:
    """Read a chunk from the origin over `connections` split ranges. Ends in ChunkVerified or
    TransferFailed."""

    transfer: TransferId
    version: VersionId
    chunk: ChunkIndex
    connections: int
    # A read that was ordered just before, whose request should go on with this chunk if its bytes
    # follow in the same object; None: a request of its own. If the request ends early, what it did
    # not reach ends in TransferFailed(CANCELLED).
    after: TransferId | None = None


@dataclass(frozen=True, slots=True)
class CancelTransfer:
    """Give a transfer up. It still ends in its one event: TransferFailed(CANCELLED), or
    ChunkVerified if that came first."""

    transfer: TransferId


@dataclass(frozen=True, slots=True)
class StartUpload:
    """Send a requested chunk. Ends in UploadFinished or SessionClosed."""

    peer: NodeId
    session: SessionId
    version: VersionId
    chunk: ChunkIndex
    # Bytes/s that it may take at most, whatever the congestion control makes of the path; 0: no
    # limit.
    pace_bytes_per_s: int = 0


@dataclass(frozen=True, slots=True)
class RefuseRequest:
    """Say no to a requested chunk. Immediate."""

    peer: NodeId
    session: SessionId
    version: VersionId
    chunk: ChunkIndex
    reason: RefuseReason
    load: int


@dataclass(frozen=True, slots=True)
class ReportLease:
    """Tell the tracker at once how a lease ended. Immediate; the shell repeats it until the
    tracker has heard."""

    version: VersionId
    lease: LeaseId
    chunk: ChunkIndex
    outcome: LeaseOutcome
    # With DECLINED: a node that holds the chunk, if one is known.
    owner: NodeId | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class ReportUnreachable:
    """Tell the tracker that an agent does not answer at its address. Immediate."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class HashAgain:
    """Re-read and hash a chunk of ours that a peer found wrong. Ends in ChunkDamaged, or in
    nothing if it is sound."""

    version: VersionId
    chunk: ChunkIndex


Command = (
    ConnectPeer | DisconnectPeer | SendBitfield | SendHave | SendRetract | SendClaim |
    SendBadChunk | RequestChunk | EndSession | FetchFromOrigin | CancelTransfer | StartUpload |
    RefuseRequest | ReportLease | ReportUnreachable | HashAgain
)  # fmt: skip
