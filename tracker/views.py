"""What the tracker shows of the fleet, read from its policy objects."""

from __future__ import annotations

from swarm.protocol.ids import VersionId
from swarm.protocol.operator_api import PeerStatus, SwarmStatus
from swarm.protocol.tracker_api import PublishRecord
from tracker.policy.membership import Peer
from tracker.policy.tracker import Tracker
from tracker.policy.version_swarm import VersionSwarm


def peer_statuses(
    tracker: Tracker, version: VersionId | None, *, now: float
) -> tuple[PeerStatus, ...]:
    """All agents, or those of one version, in the order of their node ids."""
    peers = sorted(tracker.membership.peers.values(), key=lambda peer: peer.node_id)
    return tuple(
        _peer_status(tracker, peer, version, now)
        for peer in peers
        if version is None or version in peer.joined
    )


def _peer_status(tracker: Tracker, peer: Peer, version: VersionId | None, now: float) -> PeerStatus:
    shown = [
        (swarm, member)
        for swarm, member in tracker.swarms.of(peer)
        if version is None or swarm.version == version
    ]
    return PeerStatus(
        node_id=peer.node_id,
        generation=peer.info.generation,
        address=peer.info.address,
        zone=peer.info.zone,
        rack=peer.info.rack,
        nic_bytes_per_s=peer.nic_bytes_per_s,
        age_s=max(now - peer.reported_at, 0.0),
        chunks_held=sum(member.count for _, member in shown),
        chunks=sum(swarm.chunk_count for swarm, _ in shown),
        is_ready=bool(shown) and all(member.is_ready for _, member in shown),
        leases=sum(len(member.leases) for _, member in shown),
        problem=peer.problem,
    )


def swarm_status(tracker: Tracker, record: PublishRecord, *, now: float) -> SwarmStatus:
    """One version across the fleet; zeros when nobody takes part."""
    swarm = tracker.swarms.by_version.get(record.version)
    if swarm is None:
        return _nobody(tracker, record)
    members = swarm.members.values()
    counts = swarm.leases.counts
    held = swarm.availability.held
    return SwarmStatus(
        version=record.version,
        mode=swarm.mode,
        chunks=swarm.chunk_count,
        chunk_bytes=swarm.chunk_bytes,
        peers=len(members),
        peers_complete=complete_count(swarm),
        peers_ready=sum(member.is_ready for member in members),
        chunks_without_holder=swarm.chunk_count - held.bit_count(),
        chunks_with_one_holder=swarm.availability.held_once().bit_count(),
        leases_live=len(swarm.leases.live),
        leases_granted=counts.granted,
        leases_verified=counts.verified,
        leases_expired=counts.revoked_overtaken + counts.revoked_tail,
        leases_failed=counts.failed + counts.throttled + counts.unavailable,
        origin_bytes=swarm.origin_bytes,
        origin_bytes_per_s=swarm.controller.rate(now=now),
        connections_live=swarm.leases.connections,
        connections_limit=swarm.controller.limit,
        is_throttled=swarm.throttle.is_on,
    )


def complete_count(swarm: VersionSwarm) -> int:
    """Agents that hold every chunk."""
    return sum(
        member.has_reported and member.count == swarm.chunk_count
        for member in swarm.members.values()
    )


def _nobody(tracker: Tracker, record: PublishRecord) -> SwarmStatus:
    return SwarmStatus(
        version=record.version,
        mode=tracker.swarms.mode(record.version),
        chunks=record.chunks,
        chunk_bytes=record.chunk_bytes,
        peers=0,
        peers_complete=0,
        peers_ready=0,
        chunks_without_holder=record.chunks,
        chunks_with_one_holder=0,
        leases_live=0,
        leases_granted=0,
        leases_verified=0,
        leases_expired=0,
        leases_failed=0,
        origin_bytes=0,
        origin_bytes_per_s=0.0,
        connections_live=0,
        connections_limit=0,
        is_throttled=False,
    )
