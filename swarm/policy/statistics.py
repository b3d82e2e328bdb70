"""What a node can say about itself, for `status`, metrics and progress lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swarm.policy.download import Download
from swarm.policy.nic import NicEstimate
from swarm.policy.origin import OriginReads, OriginTrouble, Right
from swarm.policy.peers import Neighbourhood
from swarm.policy.requests import Requests
from swarm.policy.uploads import Uploads
from swarm.protocol.ids import VersionId
from swarm.protocol.tracker_api import Mode


@dataclass(frozen=True, slots=True)
class VersionStatistics:
    """One version at one instant. Bytes count unique chunks."""

    version: VersionId
    mode: Mode
    chunk_count: int
    held_count: int
    total_bytes: int
    held_bytes: int
    # Verified bytes by where they came from, and bytes received in vain.
    origin_bytes: int
    peer_same_zone_bytes: int
    peer_other_zone_bytes: int
    local_bytes: int
    wasted_bytes: int
    # Chunks on their way, from peers and from the origin.
    in_flight_count: int
    lease_count: int
    # Missing chunks that no neighbour holds.
    unavailable_count: int
    # Last verified byte, on the clock of `now`; the start if there is none.
    progress_at: float
    # Why the origin is read without a lease; STUCK is worth a loud line.
    origin_right: Right
    # The chunk that the origin failed to give most often, if any.
    origin_trouble: OriginTrouble | None


@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """A node at one instant."""

    versions: tuple[VersionStatistics, ...]
    # Given or learned NIC rate; `is_nic_known` is False while it is a guess.
    nic_bytes_per_s: float
    is_nic_known: bool
    neighbour_count: int
    known_count: int
    # Open sessions and their limit (D), uploads running and their limit (U), active + queued.
    session_count: int
    session_limit: int
    upload_count: int
    upload_limit: int
    load: int
    # Since the start: uploads done, requests refused by and to us, sources cut, chunks asked twice.
    uploaded_count: int
    uploaded_bytes: int
    refused_count: int
    refusal_count: int
    cut_count: int
    duplicate_count: int
    avoided_count: int
    is_tracker_lost: bool
    is_leaving: bool


def node_statistics(
    downloads: Iterable[Download],
    nic: NicEstimate,
    neighbourhood: Neighbourhood,
    requests: Requests,
    uploads: Uploads,
    origin: OriginReads,
    now: float,
) -> NodeStatistics:
    """A snapshot of a node's parts."""
    return NodeStatistics(
        versions=tuple(_version_statistics(download, origin, now) for download in downloads),
        nic_bytes_per_s=nic.bytes_per_s,
        is_nic_known=nic.is_known,
        neighbour_count=len(neighbourhood.links),
        known_count=neighbourhood.known_count,
        session_count=requests.open_count,
        session_limit=requests.limit,
        upload_count=uploads.active_count,
        upload_limit=uploads.slot_count,
        load=uploads.load,
        uploaded_count=uploads.finished_count,
        uploaded_bytes=uploads.sent_bytes,
        refused_count=uploads.refused_count,
        refusal_count=requests.refused_count,
        cut_count=requests.cut_count,
        duplicate_count=requests.duplicate_count,
        avoided_count=sum(link.is_avoided for link in neighbourhood.links.values()),
        is_tracker_lost=origin.is_tracker_lost,
        is_leaving=uploads.is_leaving,
    )


def _version_statistics(download: Download, origin: OriginReads, now: float) -> VersionStatistics:
    """A snapshot of one version; costs a few operations on whole sets."""
    source = download.bytes
    from_peers = source.peer_same_zone + source.peer_other_zone
    return VersionStatistics(
        version=download.version,
        mode=download.mode,
        chunk_count=len(download.lengths),
        held_count=download.held.bit_count(),
        total_bytes=download.total_bytes,
        held_bytes=source.origin + from_peers + source.local - source.lost,
        origin_bytes=source.origin,
        peer_same_zone_bytes=source.peer_same_zone,
        peer_other_zone_bytes=source.peer_other_zone,
        local_bytes=source.local,
        wasted_bytes=source.wasted,
        in_flight_count=download.in_flight.bit_count(),
        lease_count=len(download.leases),
        unavailable_count=(download.missing & ~download.availability.held).bit_count(),
        progress_at=download.progress_at,
        origin_right=origin.right(download, now),
        origin_trouble=origin.trouble(download.version),
    )
