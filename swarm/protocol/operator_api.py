"""What operators say to the tracker, and what it says about the fleet.

The records of `tracker_api` serve agents; these serve people and their tools. Every call names who
asks by its MAC (`request_auth`), so no record repeats it.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.ids import Address, NodeId, VersionId
from swarm.protocol.tracker_api import ChannelChange, ChannelTarget, Mode, PublishRecord


@dataclass(frozen=True, slots=True)
class RegisterVersion:
    """POST /v1/versions."""

    record: PublishRecord
    # The document itself, so that agents can start without the origin.
    manifest: bytes


@dataclass(frozen=True, slots=True)
class VersionList:
    """GET /v1/versions; newest first."""

    versions: tuple[PublishRecord, ...]


@dataclass(frozen=True, slots=True)
class SetChannel:
    """POST /v1/channels/<name>."""

    # Any reference; resolved once, by the tracker. None unsets the channel.
    version: str | None
    reason: str
    # The revision that the caller has seen, or None to set whatever is there.
    expected_revision: int | None
    # Who asks, in the operator's own words (a user or a job); kept in the history.
    changed_by: str


@dataclass(frozen=True, slots=True)
class ChannelList:
    """GET /v1/channels."""

    channels: tuple[ChannelTarget, ...]


@dataclass(frozen=True, slots=True)
class ChannelHistory:
    """GET /v1/channels/<name>/history; newest first."""

    changes: tuple[ChannelChange, ...]


@dataclass(frozen=True, slots=True)
class SetMode:
    """POST /v1/modes/<reference>."""

    mode: Mode
    reason: str
    changed_by: str


@dataclass(frozen=True, slots=True)
class ModeChange:
    """A version's mode, with the reason an operator gave."""

    version: VersionId
    mode: Mode
    reason: str
    # Wall-clock seconds since 1970, by the tracker's clock.
    changed_at: float
    changed_by: str


@dataclass(frozen=True, slots=True)
class ModeList:
    """GET /v1/modes: versions that are not in mode auto by default."""

    modes: tuple[ModeChange, ...]


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """One agent as the tracker sees it; about one version when one was asked for."""

    node_id: NodeId
    generation: int
    address: Address
    zone: str
    rack: str
    nic_bytes_per_s: int
    # Seconds since its last report.
    age_s: float
    # Chunks held, of the chunks of all versions it takes part in (or of the version asked for).
    chunks_held: int
    chunks: int
    is_ready: bool
    leases: int
    problem: str


@dataclass(frozen=True, slots=True)
class PeerList:
    """GET /v1/peers."""

    peers: tuple[PeerStatus, ...]


@dataclass(frozen=True, slots=True)
class SwarmStatus:
    """GET /v1/swarm/<reference>: one version across the fleet."""

    version: VersionId
    mode: Mode
    chunks: int
    chunk_bytes: int
    peers: int
    peers_complete: int
    peers_ready: int
    # Chunks that no live peer holds, and chunks that exactly one holds.
    chunks_without_holder: int
    chunks_with_one_holder: int
    leases_live: int
    leases_granted: int
    leases_verified: int
    leases_expired: int
    leases_failed: int
    # Origin bytes that lease holders reported, and the controller's present limit.
    origin_bytes: int
    origin_bytes_per_s: float
    connections_live: int
    connections_limit: int
    is_throttled: bool
