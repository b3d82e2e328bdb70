"""How many origin connections of one version may be live at once.

**Rule.** Steer the delivered origin rate towards g = 3 NICs (at most 1.1 for each agent that still
lacks something): the swarm doubles what the origin gives, so more would only repeat it. Start from
what a connection of S3 gives (90 MB/s after 65 ms), then probe upwards: raise the limit, wait until
the effect can be seen, keep it if at least 40 % of the raise arrived as rate. Above 1.25 g leases
drain until the rate fits. Never probe downwards: in a brown-out a lower rate looks like proof that
fewer connections do as well, and recovery then starts from nothing (study: 1.160 against 1.102).

**Blind.** Where no NIC is known there is no g. The start is one lease for each incomplete agent,
and probing goes on as long as it gains. Rather too few than too many: doubling takes a second or
two, while leases that spread a slow origin thin are never taken back.

**Throttled.** An origin that says 503 or 429 freezes the probes and halves the limit, once for each
time it takes to see an effect; whatever it asked for in Retry-After is kept, and until one read
succeeds only ten requests a second start over the whole fleet. After that the limit grows by a
quarter at a time. Throttling belongs to the origin, so versions that lie at one origin share an
`OriginThrottle`.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from tracker.policy.leases import renewed_mean_s
from tracker.policy.settings import ControllerSettings, LeaseSettings

_BATCH_S = 0.02
"""What arrives within this belongs together; also bounds the samples kept."""

JOINING_S = 0.05
"""Agents that start at the same moment have joined by then: some round trips. A lone one loses
three quarters of it."""


@dataclass(slots=True)
class OriginThrottle:
    """Whether an origin asked us to slow down, and when the next request may start."""

    settings: ControllerSettings
    # Since when; None while it answers.
    throttled_at: float | None = None
    next_start_at: float = 0.0

    @property
    def is_on(self) -> bool:
        return self.throttled_at is not None

    def may_start(self, now: float) -> bool:
        return self.throttled_at is None or now >= self.next_start_at

    def started(self, connections: int, *, now: float) -> None:
        """Count origin requests that start now; free while the origin is well."""
        if self.throttled_at is not None:
            gap_s = connections / self.settings.throttled_starts_per_s
            self.next_start_at = max(now, self.next_start_at) + gap_s

    def throttled(self, retry_after_s: float | None, *, now: float) -> None:
        if self.throttled_at is None:
            self.throttled_at = now
            self.next_start_at = now + 1 / self.settings.throttled_starts_per_s
        wait_s = min(retry_after_s or 0.0, self.settings.retry_after_s_max)
        self.next_start_at = max(self.next_start_at, now + wait_s)

    def succeeded(self, *, started_at: float) -> None:
        """A read that began after the throttling began came to its end: the origin answers
        again."""
        if self.throttled_at is not None and started_at >= self.throttled_at:
            self.throttled_at = None


@dataclass(frozen=True, slots=True)
class Demand:
    """What the limit depends on: who is there."""

    incomplete_agents: int
    # 90th percentile of the NIC rates known, bytes/s; 0 when none is known.
    nic_bytes_per_s: float


class ConnectionController:
    """Owned by one version's leases; told every origin byte and every lease time."""

    def __init__(
        self, settings: ControllerSettings, leases: LeaseSettings, *, chunk_bytes: int
    ) -> None:
        self._settings = settings
        self._leases = leases
        self._chunk_bytes = chunk_bytes
        # k: connections that read one chunk, each on its own range.
        self.connections_per_chunk = max(
            1,
            min(
                math.ceil(chunk_bytes / (leases.connection_bytes_per_s * leases.range_s)),
                leases.connections_per_chunk_max,
            ),
        )
        self.limit = self._limit_min
        # Mean seconds from grant to completion; 0 before the first.
        self.mean_lease_s = 0.0
        self._samples: deque[tuple[float, int]] = deque()
        self._sampled_bytes = 0
        # Until the first effect can be seen the limit follows the demand.
        self.is_fresh = True
        # When the first lease of all was granted.
        self._began_at = math.inf
        self._settled_at = 0.0
        self._probe: tuple[int, float] | None = None
        self._probe_at = 0.0
        self._hold_s = settings.hold_s
        self._factor = settings.factor
        self._halved_until = 0.0

    @property
    def _limit_min(self) -> int:
        return self._settings.leases_min * self.connections_per_chunk

    def goal_bytes_per_s(self, demand: Demand) -> float:
        """G; infinite when no NIC is known."""
        if demand.nic_bytes_per_s <= 0:
            return math.inf
        settings = self._settings
        if demand.incomplete_agents == 1:
            nics = settings.goal_nics_alone
        else:
            nics = settings.goal_nics_per_agent * demand.incomplete_agents
        return min(nics, settings.goal_nics) * demand.nic_bytes_per_s

    def received(self, byte_count: int, *, now: float) -> None:
        """Origin bytes arrived somewhere."""
        if byte_count <= 0:
            return
        self._sampled_bytes += byte_count
        if self._samples and now - self._samples[-1][0] < _BATCH_S:
            at, batch_bytes = self._samples[-1]
            self._samples[-1] = (at, batch_bytes + byte_count)
        else:
            self._samples.append((now, byte_count))

    def completed(self, lease_s: float) -> None:
        """A lease took so long."""
        self.mean_lease_s = renewed_mean_s(self.mean_lease_s, lease_s)

    def rate(self, *, now: float) -> float:
        """Delivered origin bytes/s over the window.

        Leases that started together end together, so bytes come in batches: counted from batch to
        batch, as a window that cuts one in half would see gains and losses that are not there.
        """
        window_s = self._window_s
        samples = self._samples
        while len(samples) > 1 and samples[1][0] < now - window_s:
            self._sampled_bytes -= samples.popleft()[1]
        if not samples:
            return 0.0
        first_at, first_bytes = samples[0]
        last_at = samples[-1][0]
        # After a silence time counts as well as bytes.
        until = last_at if now - last_at < window_s / 2 else now
        return (self._sampled_bytes - first_bytes) / (until - first_at) if until > first_at else 0.0

    def began(self, *, now: float) -> bool:
        """A lease was granted; True if it was the first of all."""
        if self._began_at < math.inf:
            return False
        self._began_at = now
        self._settle(now)
        return True

    def throttled(self, *, now: float) -> None:
        """Halve the limit, once per round of answers."""
        self._probe = None
        self.is_fresh = False
        self._factor = self._settings.small_factor
        self._probe_at = max(self._probe_at, now + self._settings.hold_s)
        if now >= self._halved_until:
            self.limit = max(1, self.limit // 2)
            self._settle(now)
            self._halved_until = self._settled_at

    def follow(self, demand: Demand) -> None:
        """Fit the limit to who is there, as long as nothing was measured."""
        if self.is_fresh:
            self.limit = self._start_limit(demand)

    def leases_max(self, nic_bytes_per_s: float, now: float) -> float:
        """How many leases one agent may hold: few in the first moments, while others are about to
        join, then any number.

        Without it the first of a fleet that boots together got all leases of the start, and the
        origin gave one NIC for as long as they take.
        """
        if now >= self._began_at + JOINING_S:
            return math.inf
        if nic_bytes_per_s <= 0:
            return self._settings.blind_first_leases
        return self.leases_for(self._settings.first_nic_share * nic_bytes_per_s)

    def leases_for(self, bytes_per_s: float) -> int:
        """Leases that give this rate by what a connection of S3 gives."""
        return math.ceil(self._connections_for(bytes_per_s) / self.connections_per_chunk)

    def step(self, demand: Demand, *, is_throttled: bool, now: float) -> None:
        """Look at the rate and move the limit; call it every `step_s` while chunks are left."""
        self.follow(demand)
        rate = self.rate(now=now)
        # A probe from nothing would call anything a gain.
        if now < self._settled_at or is_throttled or rate <= 0:
            return
        self.is_fresh = False
        goal = self.goal_bytes_per_s(demand)
        if self._probe is not None:
            self._judge_probe(self._probe, rate, goal, now)
        elif rate > 1.25 * goal:
            lower = max(0.7 * self.limit, 1.05 * self.limit * goal / rate, self._limit_min)
            self._set(min(self.limit, math.ceil(lower)), now)
        elif rate < 0.97 * goal and now >= self._probe_at:
            self._raise(rate, goal, now)

    def _judge_probe(self, probe: tuple[int, float], rate: float, goal: float, now: float) -> None:
        """Keep a raise that at least 40 % of arrived; else go back and wait longer."""
        former_limit, former_rate = probe
        self._probe = None
        gain = rate / former_rate - 1
        wanted = self.limit / former_limit - 1
        settings = self._settings
        if gain >= 0.4 * wanted:
            self._factor = settings.factor if gain >= 0.7 * wanted else settings.small_factor
            self._hold_s = settings.hold_s
            if rate < 0.97 * goal:
                self._raise(rate, goal, now)
            return
        self._factor = settings.small_factor
        self._probe_at = now + self._hold_s
        self._hold_s = min(2 * self._hold_s, settings.hold_s_max)
        self._set(former_limit, now)

    def _raise(self, rate: float, goal: float, now: float) -> None:
        wanted = self._factor * self.limit
        if goal < math.inf:
            wanted = min(wanted, 1.05 * self.limit * goal / rate + 1)
        raised = min(math.ceil(wanted), self._settings.connections_max)
        if raised > self.limit:
            self._probe = (self.limit, rate)
            self._set(raised, now)

    def _set(self, limit: int, now: float) -> None:
        if limit != self.limit:
            self.limit = limit
            self._settle(now)

    def _start_limit(self, demand: Demand) -> int:
        """The limit before anything was measured."""
        goal = self.goal_bytes_per_s(demand)
        if goal == math.inf:
            wanted = (
                self._settings.blind_connections_per_agent
                * demand.incomplete_agents
                * self.connections_per_chunk
            )
        else:
            wanted = self._connections_for(1.1 * goal)
        return min(max(math.ceil(wanted), self._limit_min), self._settings.connections_max)

    def _connections_for(self, bytes_per_s: float) -> float:
        """Connections that give this rate by what one of S3 gives."""
        rate = self._leases.connection_bytes_per_s
        transfer_s = self._chunk_bytes / (self.connections_per_chunk * rate)
        busy_share = transfer_s / (transfer_s + self._leases.first_byte_s)
        return bytes_per_s / rate / busy_share

    @property
    def _window_s(self) -> float:
        """Long enough for two batches of leases and a bit."""
        settings = self._settings
        return min(max(2.5 * self.mean_lease_s, settings.window_s_min), settings.window_s_max)

    def _settle(self, now: float) -> None:
        """Nothing is judged until the leases granted now can have shown in the rate: a lease time,
        and a window of what came after."""
        self._settled_at = now + self._window_s + 0.1 + min(self.mean_lease_s, self._window_s)
