"""The agents of one version, and which of them should read a chunk from the origin.

Grants draw a few random incomplete agents and take the best of them: one that can be reached, is
not slow, does not lag, and has the fewest leases for its NIC. Forty of thousands are enough to meet
an idle one, and cost the same at any size of fleet.

An agent that is slow or lags counts as one with several leases more: it comes last while others are
free, but those are not given everything. When it only came last, five of six agents whose first
reads had been overtaken (flows to one agent had the origin's uplink to themselves) were passed over
for ten seconds; the sixth read 85 % of the file, and all waited for its uplink: 1.56 of the bound.

**Lagging.** An agent is compared with its fellows by chunks a second since it joined, as of its own
last report: a mean over a sample, so that a slow origin makes nobody lag. A slow node still gets a
lease when nobody else can take one; a lone node is never passed over.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from swarm.protocol.ids import ChunkIndex, LeaseId
from tracker.policy.controller import Demand
from tracker.policy.leases import LiveLease
from tracker.policy.membership import Peer
from tracker.policy.settings import TrackerSettings

_NIC_PERCENTILE = 0.9
"""Of the NIC rates known: a few slow machines must not set the origin's pace."""


@dataclass(slots=True)
class Member:
    """An agent that takes part in one version."""

    peer: Peer
    joined_at: float
    # Chunks held, as last heard.
    bits: int = 0
    count: int = 0
    # What it held when it joined: only what came later tells its speed.
    count_at_join: int = 0
    counted_at: float = 0.0
    # It said all that it holds; before that it may hold anything.
    has_reported: bool = False
    is_ready: bool = False
    # Its bits are in the availability.
    is_counted: bool = False
    # Live leases, in the order of granting.
    leases: dict[LeaseId, LiveLease] = field(default_factory=dict)
    # Tracker revision of the last change that this agent must hear of.
    changed_at: int = 0
    # Place in the list of incomplete members; -1 when not in it.
    index: int = -1

    @property
    def speed(self) -> float | None:
        """Chunks/s since it joined, as of its last report; None before there is one to judge."""
        elapsed_s = self.counted_at - self.joined_at
        return (self.count - self.count_at_join) / elapsed_s if elapsed_s > 0 else None


class Incomplete:
    """The members that lack a chunk, to draw from in O(1)."""

    def __init__(self, settings: TrackerSettings, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self._members: list[Member] = []
        # Means of a sample: chunks held, speed, NIC rate; set by `measure`.
        self._mean_count = 0.0
        self._mean_speed = 0.0
        self._mean_nic_bytes_per_s = 1.0

    def __len__(self) -> int:
        return len(self._members)

    def set(self, member: Member, *, is_incomplete: bool) -> None:
        """Put a member in or take it out; idempotent."""
        if is_incomplete == (member.index >= 0):
            return
        if is_incomplete:
            member.index = len(self._members)
            self._members.append(member)
            return
        last = self._members.pop()
        if last is not member:
            self._members[member.index] = last
            last.index = member.index
        member.index = -1

    def sample(self) -> list[Member]:
        """Some members, in random order."""
        count = min(len(self._members), self._settings.leases.candidates)
        return self._rng.sample(self._members, count)

    def measure(self) -> None:
        """Take the means anew."""
        sample = self.sample()
        self._mean_count = sum(member.count for member in sample) / max(len(sample), 1)
        speeds = [speed for member in sample if (speed := member.speed) is not None]
        self._mean_speed = sum(speeds) / len(speeds) if speeds else 0.0
        rates = [rate for member in sample if (rate := member.peer.nic_bytes_per_s) > 0]
        self._mean_nic_bytes_per_s = sum(rates) / len(rates) if rates else 1.0

    def demand(self) -> Demand:
        """What the controller's goal depends on; over a sample, as a percentile needs no more."""
        rates = sorted(
            member.peer.nic_bytes_per_s
            for member in self.sample()
            if member.peer.nic_bytes_per_s > 0
        )
        nic = rates[min(int(_NIC_PERCENTILE * len(rates)), len(rates) - 1)] if rates else 0
        return Demand(len(self._members), nic)

    def is_lagging(self, member: Member, now: float) -> bool:
        """Far slower than its fellows. One that is whole does not lag, nor one that holds more than
        they do: a seed that lost a chunk has gained none since it joined."""
        settings = self._settings.leases
        if member.index < 0 or member.count > self._mean_count:
            return False
        if now - member.joined_at <= settings.lagging_after_s:
            return False
        speed = member.speed
        return speed is not None and speed < settings.lagging_share * self._mean_speed

    def is_late(self, member: Member, now: float) -> bool:
        """It lags, or was slow a moment ago."""
        return member.peer.slow_until > now or self.is_lagging(member, now)

    def pick_holder(
        self, chunk: ChunkIndex, leases_max: Callable[[float, float], float], now: float
    ) -> Member | None:
        """Who of a sample should read `chunk`; None if none of them may. `leases_max` says how many
        leases an agent with a NIC of so many bytes/s may hold."""
        best: Member | None = None
        best_key: tuple[bool, float] | None = None
        for member in self.sample():
            if member.bits >> chunk & 1 or not self.may_hold(member, now):
                continue
            if len(member.leases) >= leases_max(member.peer.nic_bytes_per_s, now):
                continue
            key = self._reluctance(member, now)
            if best_key is None or key < best_key:
                best, best_key = member, key
        return best

    def may_hold(self, member: Member, now: float) -> bool:
        """It listens, its last read did not fail just now, and it said what it holds."""
        peer = member.peer
        is_listening = now - peer.listened_at <= self._settings.membership.listener_kept_s
        return is_listening and peer.failing_until <= now

    def _reluctance(self, member: Member, now: float) -> tuple[bool, float]:
        """Smaller is better."""
        peer = member.peer
        count = peer.lease_count + self._settings.leases.late_handicap * self.is_late(member, now)
        # One whose NIC is not known yet counts as a usual one: counted as slow, it would get no
        # lease until it is known, and the first to be known would get them all.
        rate = peer.nic_bytes_per_s or self._mean_nic_bytes_per_s
        return (not peer.is_reachable(now), count / rate)
