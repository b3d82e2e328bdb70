"""One version across the fleet: who holds what, who is told of whom, who reads the origin.

Composes availability, handout, leases, their controller and zones; `Tracker` calls it with facts
about one agent at a time and collects the agents that must hear of something from `changed`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from functools import partial

from swarm.protocol.availability import Availability
from swarm.protocol.chunk_set import pick_bit
from swarm.protocol.ids import ChunkIndex, LeaseId, NodeId, VersionId
from swarm.protocol.tracker_api import Lease, LeaseProgress, Mode
from tracker.policy.controller import JOINING_S, ConnectionController, OriginThrottle
from tracker.policy.handout import Handouts
from tracker.policy.lease_ends import LeaseEnds
from tracker.policy.leases import LeaseBook, LiveLease
from tracker.policy.members import Incomplete, Member
from tracker.policy.membership import Peer
from tracker.policy.prices import TRANSFER_PRICES, ZoneCopies, is_origin_copy_cheaper
from tracker.policy.settings import TrackerSettings
from tracker.policy.unreachable import CutOff
from tracker.policy.zones import Zones

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
        origin: str,
        throttle: OriginThrottle,
        new_lease_id: Callable[[], LeaseId],
    ) -> None:
        self.version = version
        self.chunk_count = chunk_count
        self.chunk_bytes = chunk_bytes
        self.mode = Mode.AUTO
        self.members: dict[NodeId, Member] = {}
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
        self.zones = Zones(
            settings.zones,
            rng,
            self._incomplete,
            chunk_count=chunk_count,
            chunk_bytes=chunk_bytes,
            is_origin_usual=self._is_origin_usual(origin),
        )
        self.ends = LeaseEnds(
            settings,
            self.members,
            self.leases,
            self.zones,
            self.controller,
            throttle,
            chunk_bytes=chunk_bytes,
            change_bits=self.change_bits,
            change=self._change,
        )
        self._cut_off = CutOff(self.members)
        self._step_at = 0.0

    @property
    def origin_bytes(self) -> int:
        """Read from the origin under leases."""
        return self.ends.origin_bytes

    def _is_origin_usual(self, origin: str) -> bool:
        copies = self._settings.zones.copies
        return copies is ZoneCopies.ORIGIN or (
            copies is ZoneCopies.AUTO
            and is_origin_copy_cheaper(
                TRANSFER_PRICES,
                origin=origin,
                chunk_bytes=self.chunk_bytes,
                requests=self.controller.connections_per_chunk,
            )
        )

    @property
    def is_zoned(self) -> bool:
        """Zone leases bring chunks to where they are lacking."""
        return self.zones.is_on and self.mode in (Mode.AUTO, Mode.PEERS_ONLY)

    # Who is here.

    def join(self, peer: Peer, *, now: float) -> Member:
        """Introduce an agent; it may not have said yet what it holds."""
        member = Member(peer, joined_at=now)
        self.members[peer.node_id] = member
        is_new_rule = self.zones.join(member)
        self._place(member, now)
        self._change(self.members if is_new_rule else (peer.node_id,))
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
            self._count(member, member.bits)

    def _count(self, member: Member, bits: int) -> None:
        self.availability.add(bits)
        self.zones.add(member, bits)

    def leave(self, node_id: NodeId, *, now: float) -> None:
        """An agent is gone, or dropped the version: its leases return, its sole chunks wait one
        report interval, as others may have got them unreported."""
        member = self.members.pop(node_id)
        for lease in list(member.leases.values()):
            self.ends.over(member, lease)
            self.leases.counts.returned_dead += 1
        for lease in self.zones.live():
            if lease.source == node_id:
                self.ends.over(self.members[lease.holder], lease)
                self.leases.counts.zone_returned += 1
        self._uncount(member, now)
        self._incomplete.set(member, is_incomplete=False)
        self._cut_off.forget(node_id)
        if self.handouts.is_member(node_id):
            self._change(self.handouts.leave(node_id))
        if self.zones.leave(member):
            self._change(self.members)
        self.changed.pop(node_id, None)

    def moved(self, node_id: NodeId) -> None:
        """An agent has another address: those told of it must hear that."""
        if self.handouts.is_member(node_id):
            self._change(self.handouts.neighbours_told_of(node_id))

    def cannot_reach(self, node_id: NodeId, target: NodeId) -> None:
        self._cut_off.add(node_id)
        self._change(self.handouts.replace(node_id, target))

    # What they hold.

    def set_bits(self, member: Member, bits: int, *, now: float) -> None:
        """The whole of what an agent holds."""
        if not member.has_reported:
            member.has_reported = True
            member.count_at_join = bits.bit_count()
            member.joined_at = now
        self.change_bits(member, bits & ~member.bits, member.bits & ~bits, now)

    def change_bits(self, member: Member, added: int, removed: int, now: float) -> None:
        """What is new and what is gone; both may repeat what is known."""
        self._place(member, now)
        added &= ~member.bits
        removed &= member.bits
        if member.is_counted and added:
            self._count(member, added)
        if member.is_counted and removed:
            self.availability.remove(removed)
            self.zones.remove(member, removed)
        member.bits = (member.bits | added) & ~removed
        member.count += added.bit_count() - removed.bit_count()
        member.counted_at = now
        if member.has_reported:
            self._incomplete.set(member, is_incomplete=member.count < self.chunk_count)

    def _uncount(self, member: Member, now: float) -> None:
        if not member.is_counted:
            return
        self.availability.remove(member.bits)
        self.zones.remove(member, member.bits)
        member.is_counted = False
        until = now + self._settings.membership.report_interval_s
        held = self.availability.held
        self.leases.waiting.add(member.bits & ~held, until=until)
        lost_near = member.bits & held & ~self.zones.held_near(member)
        self.zones.set_aside(member, lost_near, until=until)

    # Leases that come and go otherwise.

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

    def set_mode(self, mode: Mode) -> None:
        """Leases of the origin exist in mode auto only; in mode origin every agent reads by its own
        cap. Zone leases end with the others, and those that a mode allows are given anew."""
        self.mode = mode
        if mode is not Mode.AUTO:
            for member in self.members.values():
                for lease in list(member.leases.values()):
                    self.ends.over(member, lease)
        self._change(self.members)

    # What time does.

    def step(self, *, now: float) -> None:
        """Everything that is due: call it at `next_deadline`."""
        self.leases.waiting.release(now=now)
        self.zones.release_waiting(now=now)
        self._check_stalled(now)
        if now >= self._step_at:
            self._step_at = now + self._settings.controller.step_s
            self._incomplete.measure()
            demand = self._incomplete.demand()
            self.controller.step(demand, is_throttled=self.throttle.is_on, now=now)
            self.ends.expire(self.availability.held, now)

    def next_deadline(self) -> float | None:
        """When `step` has something to do; None while nothing is live and nothing waits."""
        deadlines = [self.leases.next_deadline(), self.zones.waits_until()]
        is_waiting = len(self._incomplete) and self.leases.pool(self.availability.held)
        is_crossing = len(self._incomplete) and self.zones.is_busy(self.availability.held)
        if self.leases.live or is_waiting or is_crossing:
            deadlines.append(self._step_at)
        if is_waiting and self.throttle.is_on:
            deadlines.append(self.throttle.next_start_at)
        deadline = min(deadlines)
        return deadline if deadline < math.inf else None

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
        if not len(self._incomplete):
            return
        if self.is_zoned:
            self._grant_crossings(now)
        if self.mode is not Mode.AUTO:
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

    def _grant_crossings(self, now: float) -> None:
        """Bring chunks into the zones that lack them; what of it reads the origin has no part in
        the controller's limit, as it is bounded by itself."""
        settings = self._settings.zones
        live_max = settings.leases_max
        if self.zones.is_origin_usual:
            nic = self._incomplete.demand().nic_bytes_per_s
            live_max = max(live_max, self.controller.leases_for(settings.origin_nics * nic))

        may_read = partial(self.throttle.may_start, now) if self.mode is Mode.AUTO else None
        held, leased = self.availability.held, self.leases.leased
        for crossing in self.zones.crossings(held, leased, live_max, may_read, now=now):
            is_read = crossing.source is None
            connections = self._connections() if is_read else 1
            entry = LiveLease(
                self._new_lease_id(), crossing.chunk, crossing.receiver.peer.node_id,
                connections, now, is_for_zone=True,
                source=None if crossing.source is None else crossing.source.peer.node_id,
            )  # fmt: skip
            self.zones.grant(entry)
            self.leases.counts.granted += is_read
            self.leases.counts.zone_granted += not is_read
            if is_read:
                self.throttle.started(connections, now=now)
            self._hold(crossing.receiver, entry)

    def _hold(self, member: Member, entry: LiveLease) -> None:
        member.leases[entry.lease] = entry
        member.peer.lease_count += 1
        self._change((member.peer.node_id,))

    def _give(
        self, member: Member, chunk: ChunkIndex, lease: LeaseId, connections: int, now: float
    ) -> None:
        entry = self.leases.grant(lease, chunk, member.peer.node_id, connections, now=now)
        self._hold(member, entry)
        self.throttle.started(connections, now=now)
        if self.controller.began(now=now):
            self._step_at = now + JOINING_S

    def _grant_around_unreachable(self, now: float) -> None:
        for member, accused in self._cut_off.all(now):
            if member.index >= 0 and self._incomplete.may_hold(member, now):
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
            Lease(
                lease.lease,
                lease.chunk,
                lease.connections,
                lease.is_for_zone,
                None if lease.source is None else self.members[lease.source].peer.info,
            )
            for lease in member.leases.values()
        )

    def _change(self, node_ids: Iterable[NodeId]) -> None:
        self.changed.update(dict.fromkeys(node_ids))
