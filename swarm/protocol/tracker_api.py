"""What agents and operators say to the tracker: the records of `report`, `listen` and the operator
calls.

Two calls serve an agent. `POST /v1/report` is answered at once and carries what changed here; `POST
/v1/listen` is held up to 15 s and answered as soon as something newer than `seen` exists. Delivery
is at least once and idempotent: a listen reply is *state*, a report has a (generation, sequence)
that makes a repeat harmless. Bodies are msgpack maps with the field names below; unknown keys are
ignored.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from swarm.protocol.ids import Address, ChunkIndex, LeaseId, NodeId, VersionId
from swarm.protocol.messages import PeerInfo

LISTEN_HOLD_S = 15.0
"""How long a listen is held with nothing to say; below every common idle time-out of proxies (60
s)."""
REPORT_INTERVAL_S = 5.0
"""Between two reports of an agent that holds no lease; the tracker may stretch it."""
LEASE_REPORT_INTERVAL_S = 1.0
"""Between two reports of an agent that holds a lease."""


class Mode(enum.Enum):
    """Where a version's chunks may come from; set per version by an operator."""

    AUTO = "auto"
    ORIGIN = "origin"
    PEERS_ONLY = "peers-only"
    STOP = "stop"


class LeaseOutcome(enum.Enum):
    """How a lease ended at its holder."""

    VERIFIED = "verified"
    # Not needed: held already or on its way; `owner` says who has it.
    DECLINED = "declined"
    FAILED = "failed"
    THROTTLED = "throttled"
    # The origin has no such object: a fault of the version, not of the holder.
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to read one chunk from the origin, or the charge to bring one into a zone."""

    lease: LeaseId
    chunk: ChunkIndex
    # Connections to read it over, each on its own range.
    connections: int
    # A zone lease: the agent's zone lacks the chunk and others hold it, so that agents of other
    # zones announce it is no reason to decline. An agent that does not know this key reads the
    # origin, which is dearer and as good.
    is_for_zone: bool = False
    # Of a zone lease: the agent of another zone to fetch it from. None: read the origin.
    source: PeerInfo | None = None


@dataclass(frozen=True, slots=True)
class LeaseProgress:
    """How far a live lease has come."""

    lease: LeaseId
    received_bytes: int
    # What the lease is for: a tracker that restarted goes on with it instead of granting the chunk
    # twice.
    version: VersionId | None = None
    chunk: ChunkIndex | None = None


@dataclass(frozen=True, slots=True)
class LeaseEnd:
    """A lease that is over; sent at once and repeated until a report is answered."""

    lease: LeaseId
    version: VersionId
    chunk: ChunkIndex
    outcome: LeaseOutcome
    # With DECLINED: a node that holds the chunk, if one is known.
    owner: NodeId | None
    # With THROTTLED: seconds that the origin asked for, if it said.
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class VersionReport:
    """What an agent holds of one version."""

    version: VersionId
    # Little-endian bit set of everything held (first report, after `resync`), or None when
    # `added`/`removed` say it all.
    bits: bytes | None
    added: tuple[ChunkIndex, ...]
    removed: tuple[ChunkIndex, ...]
    # READY exists here.
    is_ready: bool
    # Unique chunks and chunk size, from the manifest; 0 while it is not known here. They let the
    # tracker lead a version that nobody registered.
    chunk_count: int = 0
    chunk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """POST /v1/report."""

    # Grows by one with each new report of a generation; a repeat has the same number.
    sequence: int
    address: Address
    zone: str
    rack: str
    # Announced or learned NIC rate in bytes/s; 0 means unknown.
    nic_bytes_per_s: int
    # Every version that this agent fetches or serves; one that is missing has been dropped.
    versions: tuple[VersionReport, ...]
    # All leases held, with progress.
    leases: tuple[LeaseProgress, ...]
    ended: tuple[LeaseEnd, ...]
    # Agents that do not answer at their address.
    unreachable: tuple[NodeId, ...]
    # Channels followed, with the revision that is served here (0: none yet).
    channels: tuple[tuple[str, int], ...]
    # Why this agent is not well, in words an operator can act on; "" means well.
    problem: str
    # Bye: forget this agent now.
    is_leaving: bool


@dataclass(frozen=True, slots=True)
class ReportReply:
    """The answer to a report."""

    # The tracker does not know this agent's whole state (it restarted): send full bit sets next.
    needs_resync: bool
    # Seconds until the next regular report.
    interval_s: float


@dataclass(frozen=True, slots=True)
class Listen:
    """POST /v1/listen."""

    # (tracker epoch, revision) of the last answer; (0, 0) at first.
    seen: tuple[int, int]
    # Versions and channels to hear about. Versions are also joined by a report; both calls may come
    # first.
    versions: tuple[VersionId, ...]
    channels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VersionState:
    """What the tracker has to say to one agent about one version: always whole, never a delta."""

    version: VersionId
    # Agents to connect to; grows when the agent has too few.
    handout: tuple[PeerInfo, ...]
    # All live leases of this agent.
    leases: tuple[Lease, ...]
    mode: Mode
    # Agents lie in several zones, and zone leases bring each chunk into this agent's: what has no
    # lease is to be fetched within the zone.
    is_zoned: bool = False


@dataclass(frozen=True, slots=True)
class ChannelTarget:
    """Which version a channel names."""

    channel: str
    # None: the channel is not set.
    version: VersionId | None
    # Grows with each change; an agent refuses an older one.
    revision: int


@dataclass(frozen=True, slots=True)
class ListenReply:
    """The answer to a listen."""

    seen: tuple[int, int]
    versions: tuple[VersionState, ...]
    channels: tuple[ChannelTarget, ...]


@dataclass(frozen=True, slots=True)
class PublishRecord:
    """A version as registered: what it is called and where it lies. POST /v1/versions, GET
    /v1/versions/<id or name@tag>."""

    version: VersionId
    # "" when published without a name.
    name: str
    tag: str
    # Origin URL without credentials, such as s3://models/w.
    origin: str
    files: int
    # Bytes over all files, and over unique chunks.
    bytes: int
    unique_bytes: int
    chunks: int
    chunk_bytes: int
    # Wall-clock seconds since 1970, by the publisher's clock.
    published_at: float
    published_by: str
    is_validated: bool
    contains_code: bool
    # (stable id, message) pairs.
    warnings: tuple[tuple[str, str], ...]
    # Every NAME@TAG that stands for this version, in order; the tracker's to fill in, as names are
    # added after a version was published.
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChannelChange:
    """One entry of a channel's history."""

    channel: str
    revision: int
    version: VersionId | None
    # Wall-clock seconds since 1970, by the tracker's clock.
    changed_at: float
    changed_by: str
    reason: str
