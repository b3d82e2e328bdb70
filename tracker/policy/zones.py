"""How chunks come into zones that lack them: once each, by a zone lease.

**Rule.** Sessions run within a zone only. A chunk that is held somewhere and by nobody in zone z is
brought in by one agent of z, which is charged with that by a zone lease: the one with the fewest
leases of twelve random incomplete ones. It fetches the chunk from an agent of another zone, the one
that exports the least of the first six holders, or, where the origin is the cheaper way
(`prices.py`), reads it there. From the receiver it spreads by sessions. Up to sixteen zone leases
are live in a zone (study: with 4, 16 or 48 the same time), and they take none of the slots of
either end. Neighbours that decided by themselves fetched each chunk of three zones 17.9 times.

**Slow ends.** A zone lease is revoked when it goes at less than 0.3 of the usual rate and would
take another two usual times; while its holder has said nothing of it since its first usual time,
it has to be four usual times and a report old. The end that lags counts as slow for ten seconds,
both where neither does. Agents that are slow or lag get a zone lease, or serve one, only while the
zone has no other on its way: they are better than nothing, for a zone's only agent or a chunk's
only holder may be one.

**Failed crossings.** A source that failed is left alone for half a second, doubling. A chunk whose
crossing failed three times comes the other way the next three times: from the origin, or from a
peer where the origin is usual. So a zone that no other can reach reads the origin, and one that the
origin refuses lives off the others.

**Unknown zones.** Agents that do not say where they are count as one zone, the zone "". While all
are of one zone nothing of this applies.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from swarm.protocol.availability import Availability
from swarm.protocol.chunk_set import iter_bits, pick_bit
from swarm.protocol.ids import ChunkIndex, LeaseId, NodeId
from swarm.protocol.tracker_api import LEASE_REPORT_INTERVAL_S
from tracker.policy.leases import LiveLease, renewed_mean_s
from tracker.policy.members import Incomplete, Member
from tracker.policy.set_aside import SetAside
from tracker.policy.settings import ZoneSettings

_SKIPPED_MAX = 8
"""Chunks without a fit source, before a round of grants gives up until the next."""


@dataclass(slots=True)
class Zone:
    """One zone of one version."""

    availability: Availability = field(default_factory=Availability)
    members: dict[NodeId, Member] = field(default_factory=dict)
    # Live zone leases into this zone, in the order of granting, and their chunks.
    live: dict[LeaseId, LiveLease] = field(default_factory=dict)
    leased: int = 0
    # Chunks that somebody of the zone is about to report, or a member that is gone held alone.
    waiting: SetAside = field(default_factory=SetAside)
    # How often a chunk's crossing failed.
    failures: dict[ChunkIndex, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Crossing:
    """A zone lease to give; `source` None is the origin."""

    chunk: ChunkIndex
    receiver: Member
    source: Member | None


class Zones:
    """The zones of one version and the leases into them. `VersionSwarm` alone calls it, and keeps
    the books of agents."""

    def __init__(
        self,
        settings: ZoneSettings,
        rng: random.Random,
        incomplete: Incomplete,
        *,
        chunk_count: int,
        chunk_bytes: int,
        is_origin_usual: bool,
    ) -> None:
        self._settings = settings
        self._rng = rng
        self._incomplete = incomplete
        self._all = (1 << chunk_count) - 1
        self._chunk_bytes = max(chunk_bytes, 1)
        # Zones read their own copies from the origin.
        self.is_origin_usual = is_origin_usual
        self._zones: dict[str, Zone] = {}
        # Where each member is counted, whatever it reports later.
        self._zone_of: dict[NodeId, Zone] = {}
        # The first holders of each chunk, as first heard of, and the chunks that have enough.
        self._holders: dict[ChunkIndex, list[NodeId]] = {}
        self._has_holders = 0
        self._exports: dict[NodeId, int] = {}
        # Sources that failed: how often in a row, and until when others go first.
        self._blamed: dict[NodeId, tuple[int, float]] = {}
        # Mean seconds of a zone lease; 0 before the first ended well.
        self.mean_lease_s = 0.0

    @property
    def is_on(self) -> bool:
        """There are several zones, and chunks to bring into them."""
        return len(self._zones) > 1 and bool(self._all)

    # Who is where, and holds what.

    def join(self, member: Member) -> bool:
        """True if that made it several zones."""
        was_on = self.is_on
        zone = self._zones.setdefault(member.peer.info.zone, Zone())
        zone.members[member.peer.node_id] = member
        self._zone_of[member.peer.node_id] = zone
        return self.is_on and not was_on

    def leave(self, member: Member) -> bool:
        """A member whose bits are not counted any more; True if one zone is left."""
        was_on = self.is_on
        node = member.peer.node_id
        zone = self._zone_of.pop(node)
        del zone.members[node]
        if not zone.members:
            self._zones = {name: each for name, each in self._zones.items() if each is not zone}
        self._blamed.pop(node, None)
        return was_on and not self.is_on

    def add(self, member: Member, bits: int) -> None:
        """A member that others can reach holds these."""
        node = member.peer.node_id
        self._zone_of[node].availability.add(bits)
        for chunk in iter_bits(bits & ~self._has_holders):
            holders = self._holders.setdefault(chunk, [])
            if node not in holders:
                holders.append(node)
            if len(holders) >= self._settings.holders:
                self._has_holders |= 1 << chunk

    def remove(self, member: Member, bits: int) -> None:
        self._zone_of[member.peer.node_id].availability.remove(bits)

    def set_aside(self, member: Member, bits: int, *, until: float) -> None:
        """Bring none of these into the member's zone before then."""
        self._zone_of[member.peer.node_id].waiting.add(bits, until=until)

    def held_near(self, member: Member) -> int:
        """What the member's zone holds."""
        return self._zone_of[member.peer.node_id].availability.held

    # Giving leases.

    def crossings(
        self,
        held: int,
        leased: int,
        live_max: int,
        may_read: Callable[[], bool] | None,
        *,
        now: float,
    ) -> Iterator[Crossing]:
        """Zone leases to give now, each to be granted before the next is asked for. `held` is what
        anybody holds, `leased` what is on its way from the origin, `live_max` the limit of a zone;
        `may_read` says whether one more read of the origin may start, None that the origin is not
        to be read at all."""
        for zone in self._zones.values():
            pool = self._pool(zone, held) & ~leased
            skipped = 0
            while pool and skipped < _SKIPPED_MAX and len(zone.live) < live_max:
                chunk = pick_bit(pool, self._rng)
                pool &= ~(1 << chunk)
                receiver = self._receiver(zone, now)
                if receiver is None:
                    break
                source = None
                if may_read is not None and self._is_read(zone, chunk):
                    is_possible = may_read()
                else:
                    source = self._source(zone, chunk, receiver, now)
                    is_possible = source is not None
                if is_possible:
                    yield Crossing(chunk, receiver, source)
                else:
                    skipped += 1

    def _pool(self, zone: Zone, held: int) -> int:
        return held & ~zone.availability.held & ~zone.leased & ~zone.waiting.bits

    def _is_read(self, zone: Zone, chunk: ChunkIndex) -> bool:
        """From the origin; after some failures the other way, in turns."""
        turns = zone.failures.get(chunk, 0) // self._settings.attempts
        return self.is_origin_usual ^ bool(turns % 2)

    def _receiver(self, zone: Zone, now: float) -> Member | None:
        """Who of a sample has the fewest leases."""
        best: Member | None = None
        best_key = (True, math.inf)
        members = list(zone.members.values())
        sample = self._rng.sample(members, min(len(members), self._settings.candidates))
        for member in sample:
            if member.index < 0 or not self._incomplete.may_hold(member, now):
                continue
            key = (self._incomplete.is_late(member, now), float(member.peer.lease_count))
            if (not key[0] or not zone.live) and key < best_key:
                best, best_key = member, key
        return best

    def _source(self, zone: Zone, chunk: ChunkIndex, receiver: Member, now: float) -> Member | None:
        """Which of the chunk's first holders exports the least."""
        best: Member | None = None
        best_key = (True, math.inf)
        for member in self._holders_of(chunk):
            node = member.peer.node_id
            is_blamed = self._blamed.get(node, (0, 0.0))[1] > now
            is_out_of_reach = node in receiver.peer.accused or not member.peer.is_reachable(now)
            is_late = is_blamed or is_out_of_reach or self._incomplete.is_late(member, now)
            key = (is_late, float(self._exports.get(node, 0)))
            if (not is_late or not zone.live) and key < best_key:
                best, best_key = member, key
        return best

    def _holders_of(self, chunk: ChunkIndex) -> list[Member]:
        """The holders remembered that still are; others are looked for when none is."""
        found = [
            member
            for node in self._holders.get(chunk, ())
            if (member := self._member(node)) is not None and member.bits >> chunk & 1
        ]
        if found:
            return found
        everyone = (m for zone in self._zones.values() for m in zone.members.values())
        holders = (m for m in everyone if m.is_counted and m.bits >> chunk & 1)
        found = [member for member, _ in zip(holders, range(self._settings.holders), strict=False)]
        self._holders[chunk] = [member.peer.node_id for member in found]
        return found

    def _member(self, node: NodeId) -> Member | None:
        zone = self._zone_of.get(node)
        return zone.members[node] if zone is not None else None

    def grant(self, entry: LiveLease) -> None:
        zone = self._zone_of[entry.holder]
        assert not zone.leased >> entry.chunk & 1, entry.chunk
        zone.live[entry.lease] = entry
        zone.leased |= 1 << entry.chunk
        if entry.source is not None:
            self._exports[entry.source] = self._exports.get(entry.source, 0) + 1

    # How they end.

    def end(self, entry: LiveLease) -> None:
        """Live no longer, however that came."""
        zone = self._zone_of[entry.holder]
        if zone.live.pop(entry.lease, None) is None:
            return
        zone.leased &= ~(1 << entry.chunk)
        if entry.source is not None:
            self._exports[entry.source] -= 1
            if not self._exports[entry.source]:
                del self._exports[entry.source]

    def verified(self, entry: LiveLease, *, now: float) -> None:
        self.mean_lease_s = renewed_mean_s(self.mean_lease_s, now - entry.granted_at)
        self._zone_of[entry.holder].failures.pop(entry.chunk, None)
        if entry.source is not None:
            self._blamed.pop(entry.source, None)

    def failed(self, entry: LiveLease, *, now: float) -> None:
        """The other end did not give it."""
        failures = self._zone_of[entry.holder].failures
        failures[entry.chunk] = failures.get(entry.chunk, 0) + 1
        if entry.source in self._zone_of:
            count = self._blamed.get(entry.source, (0, 0.0))[0]
            wait_s = min(self._settings.failed_s * 2.0**count, self._settings.failed_s_max)
            self._blamed[entry.source] = (min(count + 1, 10), now + wait_s)

    def slow(self, *, now: float) -> list[LiveLease]:
        """Leases to revoke; their slow ends are marked, and take no other for a while."""
        found = [
            entry
            for zone in self._zones.values()
            for entry in zone.live.values()
            if self._is_slow(entry, now)
        ]
        for entry in found:
            ends = [member for member in self._ends(entry) if member is not None]
            lagging = [member for member in ends if self._incomplete.is_lagging(member, now)]
            for member in lagging or ends:
                member.peer.slow_until = now + self._settings.slow_s
        return found

    def _ends(self, entry: LiveLease) -> list[Member | None]:
        source = self._member(entry.source) if entry.source is not None else None
        return [self._member(entry.holder), source]

    def _is_slow(self, entry: LiveLease, now: float) -> bool:
        usual_s = self.mean_lease_s
        if not usual_s:
            return False
        heard_at = entry.received_at if entry.received_at is not None else entry.granted_at
        elapsed_s = heard_at - entry.granted_at
        if elapsed_s <= usual_s:
            # A word of its first moments tells no rate.
            patience_s = self._settings.patience_factor * usual_s + LEASE_REPORT_INTERVAL_S
            return now - entry.granted_at > patience_s
        rate = entry.received_bytes / self._chunk_bytes / elapsed_s
        if rate >= self._settings.slow_share / usual_s:
            return False
        done_at = entry.granted_at + (1 / rate if rate else math.inf)
        return done_at - now > self._settings.slow_remaining * usual_s

    # What time does.

    def live(self) -> list[LiveLease]:
        """All live zone leases."""
        return [entry for zone in self._zones.values() for entry in zone.live.values()]

    def release_waiting(self, *, now: float) -> None:
        for zone in self._zones.values():
            zone.waiting.release(now=now)

    def waits_until(self) -> float:
        """When a chunk that was set aside may be brought in; infinite if there is none."""
        return min((zone.waiting.next_at for zone in self._zones.values()), default=math.inf)

    def is_busy(self, held: int) -> bool:
        """A lease is live, or a zone lacks what another holds."""
        return self.is_on and any(
            zone.live or self._pool(zone, held) for zone in self._zones.values()
        )

    def check(self) -> None:
        """The invariants; for tests."""
        exports: dict[NodeId, int] = {}
        for zone in self._zones.values():
            assert zone.members
            leased = 0
            for entry in zone.live.values():
                assert entry.holder in zone.members
                assert not leased >> entry.chunk & 1
                leased |= 1 << entry.chunk
                if entry.source is not None:
                    exports[entry.source] = exports.get(entry.source, 0) + 1
            assert leased == zone.leased
        assert exports == self._exports
