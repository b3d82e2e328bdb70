"""Which agents are there, and when one is not.

An agent is there while it reports. It goes when it says Bye, when three of its reports are missing,
when a later boot of the same node reports, or when two others cannot reach it. Every deadline is by
the tracker's own monotonic clock, counted from the arrival of a report, so a wrong clock at an
agent neither shortens nor extends anything.

Two accusers make a fact, since one may have a broken link of its own. The accused may be alive
behind a firewall: then it comes back with its next report and is quarantined for a minute, neither
handed out nor counted as a holder, because nobody could fetch from it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from swarm.errors import ConflictError
from swarm.protocol.ids import Address, Identity, NodeId, VersionId
from swarm.protocol.messages import PeerInfo
from swarm.protocol.tracker_api import Report
from tracker.policy.settings import MembershipSettings


@dataclass(slots=True)
class Peer:
    """An agent that reports."""

    info: PeerInfo
    nic_bytes_per_s: int
    # Number of the last report taken in.
    sequence: int
    joined_at: float
    reported_at: float
    # What the last reply told: seconds until the next report.
    interval_s: float
    expires_at: float
    problem: str = ""
    channels: dict[str, int] = field(default_factory=dict)
    # Versions of the last report, and those it takes part in (listened for ones included); dicts
    # for their order.
    versions: dict[VersionId, None] = field(default_factory=dict)
    joined: dict[VersionId, None] = field(default_factory=dict)
    # Agents that this one cannot reach, until when that counts.
    accused: dict[NodeId, float] = field(default_factory=dict)
    quarantined_until: float = 0.0
    # Leases go to others until then, after one was revoked, or after a read failed.
    slow_until: float = 0.0
    failing_until: float = 0.0
    failures: int = 0
    # A listen was held here then; what nobody hears is not granted.
    listened_at: float = float("-inf")
    # Live leases over all versions.
    lease_count: int = 0
    # When the expiry heap looks at it; other entries of the heap are out of date.
    look_at: float = float("inf")

    @property
    def node_id(self) -> NodeId:
        return self.info.node_id

    def is_reachable(self, now: float) -> bool:
        """Others can fetch from it."""
        return self.quarantined_until <= now


class Membership:
    """All live agents; `Tracker` alone calls it."""

    def __init__(self, settings: MembershipSettings) -> None:
        self._settings = settings
        self.peers: dict[NodeId, Peer] = {}
        # (when to look, node): looked at lazily, as the deadline moves with each report.
        self._expiries: list[tuple[float, NodeId]] = []
        # Who says that a node cannot be reached, until when that counts.
        self._accusers: dict[NodeId, dict[NodeId, float]] = {}
        self._quarantines: dict[NodeId, float] = {}

    def check_generation(self, identity: Identity) -> None:
        """Raises ConflictError when a later boot of this node is known."""
        peer = self.peers.get(identity.node_id)
        if peer is not None and identity.generation < peer.info.generation:
            raise ConflictError(
                f"node {identity.node_id.hex()} reports as generation {peer.info.generation}; "
                f"this is generation {identity.generation}",
                object_name=identity.node_id.hex(),
                hint="another agent runs with a copy of this cache; give each its own",
            )

    def admit(self, identity: Identity, report: Report, *, now: float) -> Peer:
        """A node's first report of a generation."""
        peer = Peer(
            info=_info(identity, report),
            nic_bytes_per_s=report.nic_bytes_per_s,
            sequence=report.sequence,
            joined_at=now,
            reported_at=now,
            interval_s=self._settings.report_interval_s,
            expires_at=0.0,
            quarantined_until=self._quarantines.pop(identity.node_id, 0.0),
        )
        self.peers[peer.node_id] = peer
        self._extend(peer, now)
        return peer

    def renew(self, peer: Peer, report: Report, *, now: float) -> bool:
        """Take in what a later report says of the agent itself; True if others must hear of it (its
        address or place changed)."""
        info = _info(Identity(peer.node_id, peer.info.generation), report)
        has_moved = info != peer.info
        peer.info = info
        peer.nic_bytes_per_s = report.nic_bytes_per_s
        peer.sequence = report.sequence
        peer.reported_at = now
        self._extend(peer, now)
        return has_moved

    def touch(self, peer: Peer, *, now: float) -> None:
        """A repeated report: no news, but alive."""
        self._extend(peer, now)

    def set_interval(self, peer: Peer, *, now: float, lease_holders: int) -> None:
        """Decide when `peer` reports next: the whole fleet within the budget of requests."""
        settings = self._settings
        budget = max(settings.reports_per_s_max - lease_holders, settings.reports_per_s_max / 5)
        if peer.lease_count:
            peer.interval_s = max(
                settings.lease_report_interval_s, 2 * lease_holders / settings.reports_per_s_max
            )
        else:
            peer.interval_s = max(settings.report_interval_s, len(self.peers) / budget)
        self._extend(peer, now)

    def remove(self, peer: Peer) -> None:
        """Forget an agent; what it held is the caller's to clear."""
        del self.peers[peer.node_id]
        self._accusers.pop(peer.node_id, None)
        for accused in peer.accused:
            self._accusers.get(accused, {}).pop(peer.node_id, None)

    def accuse(self, accuser: Peer, target: NodeId, *, now: float) -> bool:
        """`accuser` cannot reach `target`; True if that makes enough of them: remove the target
        (it is quarantined if it comes back)."""
        if target not in self.peers or target == accuser.node_id:
            return False
        until = now + self._settings.accusation_kept_s
        accuser.accused[target] = until
        accusers = self._accusers.setdefault(target, {})
        accusers[accuser.node_id] = until
        standing = sum(1 for kept_until in accusers.values() if kept_until > now)
        if standing < self._settings.accusers_needed or not self.peers[target].is_reachable(now):
            return False
        self._quarantines[target] = now + self._settings.quarantine_s
        return True

    def take_expired(self, *, now: float) -> list[Peer]:
        """Agents whose reports stopped; the caller removes them. Forgets old accusations too."""
        expired = []
        while self._expiries and self._expiries[0][0] <= now:
            looked_at, node_id = heapq.heappop(self._expiries)
            peer = self.peers.get(node_id)
            if peer is None or looked_at != peer.look_at:
                continue
            if peer.expires_at <= now:
                expired.append(peer)
                continue
            self._look(peer)
            peer.accused = {node: until for node, until in peer.accused.items() if until > now}
        if len(self._quarantines) > len(self.peers):
            self._quarantines = {n: at for n, at in self._quarantines.items() if at > now}
        return expired

    def next_deadline(self) -> float | None:
        """When `take_expired` should be called next."""
        return self._expiries[0][0] if self._expiries else None

    def _extend(self, peer: Peer, now: float) -> None:
        silence_s = self._settings.missed_reports * peer.interval_s + self._settings.expiry_slack_s
        peer.expires_at = now + silence_s
        # A later deadline is found when the earlier one comes; an earlier one needs its own entry.
        if peer.expires_at < peer.look_at:
            self._look(peer)

    def _look(self, peer: Peer) -> None:
        peer.look_at = peer.expires_at
        heapq.heappush(self._expiries, (peer.look_at, peer.node_id))


def _info(identity: Identity, report: Report) -> PeerInfo:
    address = Address(report.address.host, report.address.port)
    return PeerInfo(identity.node_id, identity.generation, address, report.zone, report.rack)
