"""One version across the fleet: who holds what, who is told of whom, who reads the origin.

Composes availability, handout, leases and their controller; `Tracker` calls it with facts about one
agent at a time and collects the agents that must hear of something from `changed`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from swarm.protocol.availability import Availability
from swarm.protocol.chunk_set import pick_bit
from swarm.protocol.ids import ChunkIndex, LeaseId, NodeId, VersionId
from swarm.protocol.tracker_api import Lease, LeaseEnd, LeaseOutcome, LeaseProgress, Mode
from tracker.policy.controller import JOINING_S, ConnectionController, OriginThrottle
from tracker.policy.handout import Handouts
from tracker.policy.leases import LeaseBook, LiveLease
from tracker.policy.members import Incomplete, Member
from tracker.policy.membership import Peer
from tracker.policy.settings import TrackerSettings

_SKIPPED_MAX = 8
"""Chunks of the pool that nobody looked at may take, before a grant round gives up until the
next."""


class VersionSwarm:
    """All that is soft about one version. `chunk_count` 0: nobody said how many chunks it has, so
    agents are introduced to each other and nothing else."""

    def __init__(
        self,
        version: VersionId,
        settings: TrackerSettings,
        rng: random.Random,
        *,
        chunk_count: int,
        chunk_bytes: int,
        throttle: OriginThrottle,
        new_lease_id: Callable[[], LeaseId],
    ) -> None:
        self.version = version
        self.chunk_count = chunk_count
        self.chunk_bytes = chunk_bytes
        self.mode = Mode.AUTO
        self.members: dict[NodeId, Member] = {}
        self.origin_bytes = 0
        # Agents that must hear of a change here; the tracker takes them.
        self.changed: dict[NodeId, None] = {}
        self.throttle = throttle
        self.availability = Availability()
        self.leases = LeaseBook(settings.leases, chunk_count=chunk_count, chunk_bytes=chunk_bytes)
        self.controller = ConnectionController(
            settings.controller, settings.leases, chunk_bytes=max(chunk_bytes, 1)
        )
        self.handouts = Handouts(settings.handout, rng)
        self._settings = settings
        self._rng = rng
        self._new_lease_id = new_lease_id
        self._incomplete = Incomplete(settings, rng)
        # Members that cannot reach some other member; a dict for its order.
        self._accusers: dict[NodeId, None] = {}
        self._step_at = 0.0

    # Who is here.

    def join(self, peer: Peer, *, now: float) -> Member:
        """Introduce an agent; it may not have said yet what it holds."""
        member = Member(peer, joined_at=now)
        self.members[peer.node_id] = member
        self._place(member, now)
        self._change((peer.node_id,))
        return member

    def _place(self, member: Member, now: float) -> None:
        """Hand an agent out, and count what it holds, as soon as others can reach it."""
        peer = member.peer
        if not peer.is_reachable(now):
            return
        if not self.handouts.is_member(peer.node_id):
            self._change(self.handouts.join(peer.node_id, peer.info.zone, peer.info.rack))
        if not member.is_counted:
            member.is_counted = True
            self.availability.add(member.bits)

    def leave(self, node_id: NodeId, *, now: float) -> None:
        """An agent is gone, or dropped the version: its leases return, its sole chunks wait one
        report interval, as others may have got them unreported."""
        member = self.members.pop(node_id)
        for lease in list(member.leases.values()):
            self._end_lease(member, lease.lease)
            self.leases.counts.returned_dead += 1
        self._uncount(member, now)
        self._incomplete.set(member, is_incomplete=False)
        self._accusers.pop(node_id, None)
        if self.handouts.is_member(node_id):
            self._change(self.handouts.leave(node_id))
        self.changed.pop(node_id, None)

    def moved(self, node_id: NodeId) -> None:
        """An agent has another address: those told of it must hear that."""
        if self.handouts.is_member(node_id):
            self._change(self.handouts.neighbours_told_of(node_id))

    def cannot_reach(self, node_id: NodeId, target: NodeId) -> None:
        self._accusers[node_id] = None
        self._change(self.handouts.replace(node_id, target))

    # What they hold.

    def set_bits(self, member: Member, bits: int, *, now: float) -> None:
        """The whole of what an agent holds."""
        if not member.has_reported:
            member.has_reported = True
            member.count_at_join = bits.bit_count()
            member.joined_at = now
        self.change_bits(member, bits & ~member.bits, member.bits & ~bits, now=now)

    def change_bits(self, member: Member, added: int, removed: int, *, now: float) -> None:
        """What is new and what is gone; both may repeat what is known."""
        self._place(member, now)
        added &= ~member.bits
        removed &= member.bits
        if member.is_counted and added:
            self.availability.add(added)
        if member.is_counted and removed:
            self.availability.remove(removed)
        member.bits = (member.bits | added) & ~removed
        member.count += added.bit_count() - removed.bit_count()
        member.counted_at = now
        if member.has_reported:
            self._incomplete.set(member, is_incomplete=member.count < self.chunk_count)

    def _uncount(self, member: Member, now: float) -> None:
        if not member.is_counted:
            return
        self.availability.remove(member.bits)
        member.is_counted = False
        orphans = member.bits & ~self.availability.held
        wait_s = self._settings.membership.report_interval_s
        self.leases.set_aside(orphans, until=now + wait_s)

    # How leases go.

    def progress(self, member: Member, progress: LeaseProgress, *, now: float) -> None:
        lease = member.leases.get(progress.lease)
        if lease is not None:
            lease.take_back_at = None
            self._received(lease, min(progress.received_bytes, self.chunk_bytes), now)

    def end(self, member: Member, end: LeaseEnd, owner: Member | None, *, now: float) -> None:
        """A holder says how a lease ended. Under an unknown id only ownership counts: it was
        revoked, or belongs to a former life of this tracker."""
        bit = 1 << end.chunk
        lease = member.leases.get(end.lease)
        if lease is not None:
            self._end_lease(member, end.lease)
        match end.outcome:
            case LeaseOutcome.VERIFIED:
                self.change_bits(member, bit, 0, now=now)
                if lease is not None:
                    self._verified(member, lease, now)
            case LeaseOutcome.DECLINED:
                self._declined(member, lease, owner, bit, now)
            case LeaseOutcome.FAILED if lease is not None:
                self.leases.counts.failed += 1
                self._blame(member.peer, now)
            case LeaseOutcome.THROTTLED:
                self.leases.counts.throttled += 1
                self.throttle.throttled(end.retry_after_s, now=now)
                self.controller.throttled(now=now)
            case LeaseOutcome.UNAVAILABLE if lease is not None:
                self.leases.counts.unavailable += 1
                self.leases.set_aside(bit, until=now + self._settings.leases.unavailable_s)
            case _:
                pass

    def _verified(self, member: Member, lease: LiveLease, now: float) -> None:
        member.peer.failures = 0
        self.leases.counts.verified += 1
        self._received(lease, self.chunk_bytes, now)
        self.controller.completed(now - lease.granted_at)
        self.throttle.succeeded(started_at=lease.granted_at)
        for overdue in self.leases.completed(lease, self.controller.mean_lease_s, now=now):
            self.leases.counts.revoked_overtaken += 1
            self._revoke(overdue, now)

    def _declined(
        self, member: Member, lease: LiveLease | None, owner: Member | None, bit: int, now: float
    ) -> None:
        """Its own holding counts. What it says of another may be past (the other has lost the chunk
        since) and no report would ever correct it, so the chunk waits for that other's own word, as
        one does that is on its way."""
        if owner is member:
            self.change_bits(member, bit, 0, now=now)
        if lease is not None:
            self.leases.counts.declined += 1
            if owner is not member:
                wait_s = self._settings.membership.report_interval_s
                self.leases.set_aside(bit, until=now + wait_s)

    def _blame(self, peer: Peer, now: float) -> None:
        """A read failed here: others first, for twice as long after each failure in a row."""
        settings = self._settings.leases
        wait_s = min(settings.failed_s * 2.0 ** min(peer.failures, 10), settings.slow_s)
        peer.failures += 1
        peer.failing_until = now + wait_s

    def _revoke(self, lease: LiveLease, now: float) -> None:
        member = self.members[lease.holder]
        member.peer.slow_until = now + self._settings.leases.slow_s
        self._end_lease(member, lease.lease)

    def _end_lease(self, member: Member, lease: LeaseId) -> None:
        """Live no longer; its holder hears it, whoever ended it."""
        self.leases.end(lease)
        if member.leases.pop(lease, None) is not None:
            member.peer.lease_count -= 1
            self._change((member.peer.node_id,))

    def _received(self, lease: LiveLease, received_bytes: int, now: float) -> None:
        new_bytes = received_bytes - lease.received_bytes
        if new_bytes > 0:
            lease.received_bytes = received_bytes
            self.origin_bytes += new_bytes
            self.controller.received(new_bytes, now=now)

    def adopt(self, member: Member, progress: LeaseProgress, *, now: float) -> None:
        """A lease of a former life of this tracker goes on, if its chunk is still free."""
        chunk = progress.chunk
        if chunk is None or chunk >= self.chunk_count or self.mode is not Mode.AUTO:
            return
        if self.leases.leased >> chunk & 1 or self.availability.held >> chunk & 1:
            return
        self._give(member, chunk, progress.lease, self.controller.connections_per_chunk, now)
        self.leases.counts.granted -= 1
        self.leases.counts.adopted += 1
        self.leases.live[progress.lease].received_bytes = progress.received_bytes

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
        self.leases.counts.returned_unlisted += 1
        self._end_lease(member, lease.lease)

    def set_mode(self, mode: Mode) -> None:
        """Leases exist in mode auto only; in mode origin every agent reads by its own cap."""
        self.mode = mode
        if mode is not Mode.AUTO:
            for member in self.members.values():
                for lease in list(member.leases):
                    self._end_lease(member, lease)
        self._change(self.members)

    # What time does.

    def step(self, *, now: float) -> None:
        """Everything that is due: call it at `next_deadline`."""
        self.leases.release_waiting(now=now)
        self._check_stalled(now)
        if now >= self._step_at:
            self._step_at = now + self._settings.controller.step_s
            self._incomplete.measure()
            demand = self._incomplete.demand()
            self.controller.step(demand, is_throttled=self.throttle.is_on, now=now)
            self._expire(now)

    def next_deadline(self) -> float | None:
        """When `step` has something to do; None while nothing is live and nothing waits."""
        deadlines = []
        waiting = self.leases.next_deadline()
        if waiting is not None:
            deadlines.append(waiting)
        is_waiting = len(self._incomplete) and self.leases.pool(self.availability.held)
        if self.leases.live or is_waiting:
            deadlines.append(self._step_at)
        if is_waiting and self.throttle.is_on:
            deadlines.append(self.throttle.next_start_at)
        return min(deadlines, default=None)

    def _expire(self, now: float) -> None:
        held = self.availability.held
        for lease in self.leases.overdue_in_tail(held, self.controller.mean_lease_s, now=now):
            self.leases.counts.revoked_tail += 1
            self._revoke(lease, now)
        unlisted_s = self._settings.leases.unlisted_s
        for lease in list(self.leases.live.values()):
            is_unheard = lease.delivered_at is None and now - lease.granted_at > unlisted_s
            is_overdue = lease.take_back_at is not None and now >= lease.take_back_at
            if is_unheard or is_overdue:
                member = self.members[lease.holder]
                if is_unheard:
                    # It does not listen; ask others until it does.
                    member.peer.listened_at = float("-inf")
                self._take_back(member, lease)

    def _check_stalled(self, now: float) -> None:
        for chunk, number in list(self.leases.due_stall_checks(now=now)):
            if self.availability.count(chunk) > self._settings.leases.stalled_owners:
                continue
            owners = [member for member in self.members.values() if member.bits >> chunk & 1]
            if owners and all(self._incomplete.is_lagging(owner, now) for owner in owners):
                self.leases.force(chunk)
            else:
                self.leases.check_stall_again(chunk, number, now=now)

    # Who reads the origin.

    def grant(self, *, now: float) -> None:
        """Give out as many leases as the controller and the throttle allow."""
        if self.mode is not Mode.AUTO or not len(self._incomplete):
            return
        if self.controller.is_fresh:
            self.controller.follow(self._incomplete.demand())
        if not self._may_start(now):
            return
        pool = self.leases.pool(self.availability.held)
        skipped = 0
        while pool and skipped < _SKIPPED_MAX and self._may_start(now):
            chunk = pick_bit(pool, self._rng)
            pool &= ~(1 << chunk)
            member = self._incomplete.pick_holder(chunk, self.controller.leases_max, now)
            if member is None:
                skipped += 1
                continue
            self._give(member, chunk, self._new_lease_id(), self._connections(), now)
        self._grant_around_unreachable(now)

    def _may_start(self, now: float) -> bool:
        is_room = self.leases.connections + self._connections() <= self.controller.limit
        return is_room and self.throttle.may_start(now)

    def _connections(self) -> int:
        """Connections of one lease; a throttled limit may be below what a chunk would take."""
        return min(self.controller.connections_per_chunk, self.controller.limit)

    def _give(
        self, member: Member, chunk: ChunkIndex, lease: LeaseId, connections: int, now: float
    ) -> None:
        entry = self.leases.grant(lease, chunk, member.peer.node_id, connections, now=now)
        member.leases[lease] = entry
        member.peer.lease_count += 1
        self.throttle.started(connections, now=now)
        if self.controller.began(now=now):
            self._step_at = now + JOINING_S
        self._change((member.peer.node_id,))

    def _grant_around_unreachable(self, now: float) -> None:
        """To an agent that cannot reach some holders their chunks are as good as absent: without
        this rule one broken link would starve it for ever."""
        for node_id in list(self._accusers):
            member = self.members[node_id]
            accused = [
                self.members[node].bits
                for node, until in member.peer.accused.items()
                if until > now and node in self.members and self.members[node].is_counted
            ]
            if not accused:
                del self._accusers[node_id]
            elif member.index >= 0 and self._incomplete.may_hold(member, now):
                pool = self.leases.pool(self.availability.held_without(accused)) & ~member.bits
                self._give_all(member, pool, now)

    def _give_all(self, member: Member, pool: int, now: float) -> None:
        while pool and self._may_start(now):
            chunk = pick_bit(pool, self._rng)
            pool &= ~(1 << chunk)
            self._give(member, chunk, self._new_lease_id(), self._connections(), now)

    # What an agent hears.

    def leases_of(self, member: Member, *, now: float) -> tuple[Lease, ...]:
        """All live leases of an agent, for the listen answer that is being written."""
        for lease in member.leases.values():
            if lease.delivered_at is None:
                lease.delivered_at = now
        return tuple(
            Lease(lease.lease, lease.chunk, lease.connections) for lease in member.leases.values()
        )

    def _change(self, node_ids: Iterable[NodeId]) -> None:
        self.changed.update(dict.fromkeys(node_ids))
