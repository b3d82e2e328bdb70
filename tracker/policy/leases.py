"""Who reads which chunk of one version from the origin.

**Rule.** A chunk is read once: at most one live lease for it, none while a live peer holds it.
Leases go to random chunks of that pool and to the least loaded of some random incomplete agents,
where one that is slow or lags seems to have several more than it has (`members`). The number of
live connections is the controller's.

**Expiry by overtaking.** A lease is revoked when 2 × live + 4 leases granted later have finished
first, less than 70 % of it has arrived, and it is not young: four mean lease times old. No second
of a clock is in this: when the origin slows down, all leases and their mean slow down together and
nothing is revoked, where an expiry by time would read everything twice (study: a ten-second
brown-out, 1.000 copies against 1.068). In the tail, with nothing left to overtake, four mean lease
times and a second decide, once per chunk.

**Coming back.** A dead holder's leases return at once. Chunks that only the dead held wait one
report interval, as others may have got them unreported. A chunk whose few owners all lag is leased
once more, or it would trickle out at their pace.

Rejected: leases that expire by clock, and a second lease when a chunk is rare but its owners are
not slow: both read the origin about 2.5 times in a small swarm.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from swarm.protocol.chunk_set import bits_of, iter_bits
from swarm.protocol.ids import ChunkIndex, LeaseId, NodeId
from tracker.policy.set_aside import SetAside
from tracker.policy.settings import LeaseSettings


@dataclass(slots=True)
class LiveLease:
    """A lease that somebody holds."""

    lease: LeaseId
    chunk: ChunkIndex
    holder: NodeId
    connections: int
    granted_at: float
    # Place in the order of granting, from 1 on; zone leases have none.
    order: int = 0
    received_bytes: int = 0
    # Leases granted later that finished first.
    overtaken: int = 0
    # When its holder last said how far it is; None before.
    received_at: float | None = None
    # A zone lease, and the agent to fetch it from; no source: the origin.
    is_for_zone: bool = False
    source: NodeId | None = None
    # When it was part of a listen answer; None before.
    delivered_at: float | None = None
    # The holder's report did not list it: taken back then unless one does.
    take_back_at: float | None = None


@dataclass(slots=True)
class LeaseCounts:
    """What became of leases, since the tracker's start."""

    granted: int = 0
    verified: int = 0
    declined: int = 0
    failed: int = 0
    throttled: int = 0
    unavailable: int = 0
    revoked_overtaken: int = 0
    revoked_tail: int = 0
    returned_dead: int = 0
    returned_unlisted: int = 0
    adopted: int = 0
    # Zone leases; one that reads the origin counts above when it is granted and verified.
    zone_granted: int = 0
    zone_verified: int = 0
    zone_declined: int = 0
    zone_failed: int = 0
    zone_revoked: int = 0
    zone_returned: int = 0


class LeaseBook:
    """The leases of one version and the chunks that wait. Knows no peers: `VersionSwarm` decides
    who gets a lease, this says what may be leased and what must end."""

    def __init__(self, settings: LeaseSettings, *, chunk_count: int, chunk_bytes: int) -> None:
        self._settings = settings
        self._all = (1 << chunk_count) - 1
        self._chunk_bytes = chunk_bytes
        # In the order of granting.
        self.live: dict[LeaseId, LiveLease] = {}
        self.leased = 0
        self.connections = 0
        self.counts = LeaseCounts()
        self._order = 0
        # Orphans, declined without an owner, absent at the origin: granted to nobody for a while.
        self.waiting = SetAside()
        # Chunks to lease although somebody holds them, and all that ever were forced or revoked in
        # the tail: once per chunk.
        self._forced = 0
        self._was_forced = 0
        self._was_revoked_in_tail = 0
        # (when, chunk, check number), in order of time as the delay is constant.
        self._stall_checks: deque[tuple[float, ChunkIndex, int]] = deque()

    def pool(self, held: int) -> int:
        """Chunks that may be leased while `held` have a live holder."""
        absent = self._all & ~held & ~self.waiting.bits
        return (absent | self._forced) & ~self.leased

    def grant(
        self, lease: LeaseId, chunk: ChunkIndex, holder: NodeId, connections: int, *, now: float
    ) -> LiveLease:
        bit = 1 << chunk
        assert not self.leased & bit, chunk
        self._order += 1
        entry = LiveLease(lease, chunk, holder, connections, now, self._order)
        self.live[lease] = entry
        self.leased |= bit
        self._forced &= ~bit
        self.connections += connections
        self.counts.granted += 1
        return entry

    def end(self, lease: LeaseId) -> LiveLease | None:
        """Take a lease out, however it ended; None if it is not live."""
        entry = self.live.pop(lease, None)
        if entry is not None:
            self.leased &= ~(1 << entry.chunk)
            self.connections -= entry.connections
        return entry

    def completed(self, entry: LiveLease, mean_lease_s: float, *, now: float) -> list[LiveLease]:
        """`entry` (ended already) was verified: count whom it overtook; those to revoke now.

        None is revoked young: a read on a cold connection through a full queue takes several times
        the mean without being hung, and its holder would be passed over in favour of those that are
        served already. In the lab one of four nodes ended with 87 % of all leases.

        Leases are in the order of granting, so the loop ends at the first later one; and what
        overtakes a lease overtakes all older ones, so the counts fall along it.
        """
        self._stall_checks.append((now + self._settings.stalled_after_s, entry.chunk, 1))
        limit = self._settings.overtaken_factor * len(self.live) + self._settings.overtaken_extra
        kept_bytes = self._settings.kept_share * self._chunk_bytes
        young_at = now - self._settings.patience_factor * mean_lease_s
        overdue = []
        for other in self.live.values():
            if other.order > entry.order:
                break
            other.overtaken += 1
            is_overtaken = other.overtaken >= limit and other.granted_at <= young_at
            if is_overtaken and other.received_bytes < kept_bytes:
                overdue.append(other)
        return overdue

    def overdue_in_tail(self, held: int, mean_lease_s: float, *, now: float) -> list[LiveLease]:
        """Leases to revoke when no chunk is left to grant; marks them, as it happens once."""
        if not self.live or mean_lease_s <= 0 or self.pool(held):
            return []
        settings = self._settings
        age_s = settings.patience_factor * mean_lease_s + settings.tail_extra_s
        kept_bytes = settings.tail_kept_share * self._chunk_bytes
        overdue = [
            entry
            for entry in self.live.values()
            if now - entry.granted_at > age_s
            and entry.received_bytes < kept_bytes
            and not self._was_revoked_in_tail >> entry.chunk & 1
        ]
        self._was_revoked_in_tail |= bits_of(entry.chunk for entry in overdue)
        return overdue

    def due_stall_checks(self, *, now: float) -> Iterable[tuple[ChunkIndex, int]]:
        """(chunk, check number) of chunks that should have spread by now."""
        while self._stall_checks and self._stall_checks[0][0] <= now:
            _, chunk, number = self._stall_checks.popleft()
            yield chunk, number

    def check_stall_again(self, chunk: ChunkIndex, number: int, *, now: float) -> None:
        if number < self._settings.stalled_checks:
            self._stall_checks.append((now + self._settings.stalled_after_s, chunk, number + 1))

    def force(self, chunk: ChunkIndex) -> None:
        """Lease this chunk once more although it is held; once per chunk."""
        bit = 1 << chunk
        self._forced |= bit & ~self._was_forced
        self._was_forced |= bit

    def next_deadline(self) -> float:
        """When a chunk comes back or a stall check is due; infinite if there is neither."""
        check_at = self._stall_checks[0][0] if self._stall_checks else math.inf
        return min(self.waiting.next_at, check_at)

    def check(self) -> None:
        """The invariants; for tests."""
        assert self.leased == bits_of(entry.chunk for entry in self.live.values())
        assert self.leased.bit_count() == len(self.live)
        assert self.connections == sum(entry.connections for entry in self.live.values())
        orders = [entry.order for entry in self.live.values()]
        assert orders == sorted(orders)
        assert all(self._all >> chunk & 1 for chunk in iter_bits(self.leased))


def renewed_mean_s(mean_s: float, lease_s: float) -> float:
    """The mean time of the last few dozen leases, with one more: a sixteenth of each new value. 0
    before the first."""
    weight = 1 / 16 if mean_s else 1.0
    return mean_s + weight * (lease_s - mean_s)
