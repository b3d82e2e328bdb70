"""How leases go, from the first word of their holder to their end, and what each end means.

A lease ends once: verified, declined, failed, revoked, taken back because its holder does not list
it, or returned because an agent is gone. Whoever ends it, its holder hears of it. Of an origin
lease the controller learns rate and time; of a zone lease (`zones.py`) the zones learn them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from swarm.protocol.ids import LeaseId, NodeId
from swarm.protocol.tracker_api import LeaseEnd, LeaseOutcome, LeaseProgress
from tracker.policy.controller import ConnectionController, OriginThrottle
from tracker.policy.leases import LeaseBook, LiveLease
from tracker.policy.members import Member
from tracker.policy.membership import Peer
from tracker.policy.settings import TrackerSettings
from tracker.policy.zones import Zones


class LeaseEnds:
    """Owned by a `VersionSwarm`, which gives the leases that end here."""

    def __init__(
        self,
        settings: TrackerSettings,
        members: Mapping[NodeId, Member],
        leases: LeaseBook,
        zones: Zones,
        controller: ConnectionController,
        throttle: OriginThrottle,
        *,
        chunk_bytes: int,
        change_bits: Callable[[Member, int, int, float], None],
        change: Callable[[Iterable[NodeId]], None],
    ) -> None:
        """`change_bits` takes in chunks that a member has gained and lost, `change` the agents that
        must hear of something."""
        # Read from the origin under leases.
        self.origin_bytes = 0
        self._settings = settings
        self._members = members
        self._leases = leases
        self._zones = zones
        self._controller = controller
        self._throttle = throttle
        self._chunk_bytes = chunk_bytes
        self._change_bits = change_bits
        self._change = change

    def progress(self, member: Member, progress: LeaseProgress, *, now: float) -> None:
        lease = member.leases.get(progress.lease)
        if lease is not None:
            lease.take_back_at = None
            lease.received_at = now
            self._received(lease, min(progress.received_bytes, self._chunk_bytes), now)

    def end(self, member: Member, end: LeaseEnd, owner: Member | None, *, now: float) -> None:
        """A holder says how a lease ended. Under an unknown id only ownership counts: it was
        revoked, or belongs to a former life of this tracker."""
        bit = 1 << end.chunk
        lease = member.leases.get(end.lease)
        if lease is not None:
            self.over(member, lease)
        if lease is not None and lease.is_for_zone:
            self._crossed(member, lease, end, owner, now)
            return
        match end.outcome:
            case LeaseOutcome.VERIFIED:
                self._change_bits(member, bit, 0, now)
                if lease is not None:
                    self._verified(member, lease, now)
            case LeaseOutcome.DECLINED:
                self._declined(member, lease, owner, bit, now)
            case LeaseOutcome.FAILED if lease is not None:
                self._leases.counts.failed += 1
                self._blame(member.peer, now)
            case LeaseOutcome.THROTTLED:
                self._leases.counts.throttled += 1
                self._throttle.throttled(end.retry_after_s, now=now)
                self._controller.throttled(now=now)
            case LeaseOutcome.UNAVAILABLE if lease is not None:
                self._leases.counts.unavailable += 1
                self._leases.waiting.add(bit, until=now + self._settings.leases.unavailable_s)
            case _:
                pass

    def _crossed(
        self, member: Member, lease: LiveLease, end: LeaseEnd, owner: Member | None, now: float
    ) -> None:
        """A zone lease is over."""
        bit, counts = 1 << end.chunk, self._leases.counts
        is_read = lease.source is None
        if end.outcome is LeaseOutcome.VERIFIED or owner is member:
            self._change_bits(member, bit, 0, now)
        if end.outcome is LeaseOutcome.VERIFIED:
            counts.zone_verified += not is_read
            counts.verified += is_read
            member.peer.failures = 0
            self._received(lease, self._chunk_bytes, now)
            self._zones.verified(lease, now=now)
            if is_read:
                self._throttle.succeeded(started_at=lease.granted_at)
        elif end.outcome is LeaseOutcome.DECLINED:
            counts.zone_declined += 1
            if owner is not member:
                until = now + self._settings.membership.report_interval_s
                self._zones.set_aside(member, bit, until=until)
        else:
            counts.zone_failed += 1
            self._zones.failed(lease, now=now)
            if is_read and end.outcome is LeaseOutcome.THROTTLED:
                self._throttle.throttled(end.retry_after_s, now=now)
            elif member.peer.failing_until <= now:
                # Its own disk may be at fault. Several that fail together count once.
                self._blame(member.peer, now)

    def _verified(self, member: Member, lease: LiveLease, now: float) -> None:
        member.peer.failures = 0
        self._leases.counts.verified += 1
        self._received(lease, self._chunk_bytes, now)
        self._controller.completed(now - lease.granted_at)
        self._throttle.succeeded(started_at=lease.granted_at)
        for overdue in self._leases.completed(lease, self._controller.mean_lease_s, now=now):
            self._leases.counts.revoked_overtaken += 1
            self._revoke(overdue, now)

    def _declined(
        self, member: Member, lease: LiveLease | None, owner: Member | None, bit: int, now: float
    ) -> None:
        """Its own holding counts. What it says of another may be past (the other has lost the chunk
        since) and no report would ever correct it, so the chunk waits for that other's own word, as
        one does that is on its way."""
        if owner is member:
            self._change_bits(member, bit, 0, now)
        if lease is not None:
            self._leases.counts.declined += 1
            if owner is not member:
                wait_s = self._settings.membership.report_interval_s
                self._leases.waiting.add(bit, until=now + wait_s)

    def _blame(self, peer: Peer, now: float) -> None:
        """A read failed here: others first, for twice as long after each failure in a row."""
        settings = self._settings.leases
        wait_s = min(settings.failed_s * 2.0 ** min(peer.failures, 10), settings.slow_s)
        peer.failures += 1
        peer.failing_until = now + wait_s

    def _revoke(self, lease: LiveLease, now: float) -> None:
        member = self._members[lease.holder]
        member.peer.slow_until = now + self._settings.leases.slow_s
        self.over(member, lease)

    def over(self, member: Member, lease: LiveLease) -> None:
        """Live no longer; its holder hears it, whoever ended it."""
        if lease.is_for_zone:
            self._zones.end(lease)
        else:
            self._leases.end(lease.lease)
        if member.leases.pop(lease.lease, None) is not None:
            member.peer.lease_count -= 1
            self._change((member.peer.node_id,))

    def _received(self, lease: LiveLease, received_bytes: int, now: float) -> None:
        new_bytes = received_bytes - lease.received_bytes
        if new_bytes > 0:
            lease.received_bytes = received_bytes
            if lease.source is None:
                self.origin_bytes += new_bytes
            if not lease.is_for_zone:
                self._controller.received(new_bytes, now=now)

    def listed(self, member: Member, listed: set[LeaseId], *, now: float) -> None:
        """A report came: a lease that was delivered and is not in it is sent again, then taken
        back."""
        for lease in list(member.leases.values()):
            if lease.lease in listed or lease.delivered_at is None:
                continue
            if lease.take_back_at is None:
                lease.take_back_at = now + self._settings.leases.unlisted_s
                self._change((member.peer.node_id,))
            elif now >= lease.take_back_at:
                self._take_back(member, lease)

    def _take_back(self, member: Member, lease: LiveLease) -> None:
        self._leases.counts.returned_unlisted += 1
        self.over(member, lease)

    def expire(self, held: int, now: float) -> None:
        """Revoke what goes too slowly, and take back what nobody knows of; `held` is what anybody
        holds."""
        for lease in self._leases.overdue_in_tail(held, self._controller.mean_lease_s, now=now):
            self._leases.counts.revoked_tail += 1
            self._revoke(lease, now)
        for lease in self._zones.slow(now=now):
            self._leases.counts.zone_revoked += 1
            self.over(self._members[lease.holder], lease)
        unlisted_s = self._settings.leases.unlisted_s
        for lease in [*self._leases.live.values(), *self._zones.live()]:
            is_unheard = lease.delivered_at is None and now - lease.granted_at > unlisted_s
            is_overdue = lease.take_back_at is not None and now >= lease.take_back_at
            if is_unheard or is_overdue:
                member = self._members[lease.holder]
                if is_unheard:
                    # It does not listen; ask others until it does.
                    member.peer.listened_at = float("-inf")
                self._take_back(member, lease)
