"""How many replicas there should be: one rule for each signal that people scale by.

All four are the rule of Kubernetes' horizontal autoscaler, wanted = replicas · value / target, with
another value each; the schedule looks at a clock instead. A rule sees what a monitoring system
would have shown it at the end of each interval, and knows nothing of what is to come.

*GPU utilisation* is the part of the interval in which anything ran on a replica, which is what
nvidia-smi and DCGM show. A single sequence that decodes keeps it near 1, so it tells busy from idle
and not busy from overloaded. *Queue depth* counts requests that wait or run, per replica. *Latency*
is the 95th percentile of the time to the first token in the interval; as nobody's first token
comes while a queue stands, whoever waits longest counts as well. The *schedule* is a table of times
made from a forecast: what somebody who has seen such a day before would write down.

Growing is limited to `step_max` a decision. Shrinking waits until the highest wish of the last
`calm_s` seconds is lower than what there is (the autoscaler's stabilisation window).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

LATENCY_RATIO_MAX = 2.0
"""A latency far beyond its target says "more" and not how much more: at most double."""


class Signal(StrEnum):
    """What a policy looks at."""

    UTILISATION = "gpu-utilisation"
    QUEUE = "queue-depth"
    LATENCY = "ttft"
    SCHEDULE = "schedule"


@dataclass(frozen=True, slots=True)
class Policy:
    """One way of scaling. `target`: a share, requests per replica, seconds; a schedule has none."""

    signal: Signal
    target: float = 0.0
    # Never fewer that serve or are on their way to it, and never more.
    floor: int = 1
    replicas_max: int = 100
    # Nodes that hold the version, booted, without a running engine.
    warm: int = 0
    step_max: int = 4
    interval_s: float = 15.0
    calm_s: float = 300.0
    # From when on how many, ascending, the first from 0.
    schedule: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """What monitoring shows of the last interval."""

    # Replicas that serve, and those that are on their way to it.
    ready: int
    starting: int
    # Mean over replicas, 0 to 1.
    utilisation: float
    waiting: int
    running: int
    # 95th percentile of the interval, and how long the first in the queue has waited.
    ttft_s: float
    oldest_wait_s: float


@dataclass(slots=True)
class Scaler:
    """One policy and what it remembers: its recent wishes."""

    policy: Policy
    _wishes: deque[tuple[float, int]] = field(default_factory=deque)

    def wanted(self, seen: Observation, *, now: float) -> int:
        """Replicas that there should be, starting ones included."""
        policy = self.policy
        wish = min(max(self._wish(seen, now), policy.floor, 1), policy.replicas_max)
        self._wishes.append((now, wish))
        while self._wishes[0][0] < now - policy.calm_s:
            self._wishes.popleft()
        present = seen.ready + seen.starting
        if wish > present:
            return min(wish, present + policy.step_max)
        if policy.signal is Signal.SCHEDULE:
            return wish
        return min(max(wish for _, wish in self._wishes), present)

    def _wish(self, seen: Observation, now: float) -> int:
        policy = self.policy
        if policy.signal is Signal.SCHEDULE:
            return scheduled(policy.schedule, now)
        if not seen.ready:
            return seen.starting
        match policy.signal:
            case Signal.UTILISATION:
                value = seen.utilisation
            case Signal.QUEUE:
                value = (seen.waiting + seen.running) / seen.ready
            case Signal.LATENCY:
                value = max(seen.ttft_s, seen.oldest_wait_s)
                value = min(value, LATENCY_RATIO_MAX * policy.target)
        return math.ceil(seen.ready * value / policy.target - 1e-9)


def scheduled(schedule: Sequence[tuple[float, int]], now: float) -> int:
    """What the table says for a time."""
    count = 0
    for begins_s, wanted in schedule:
        if begins_s > now:
            break
        count = wanted
    return count


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a day like this one asks for: requests/s of each slot, from the start."""

    slot_s: float
    per_s: tuple[float, ...]

    def schedule(self, per_replica: float, lead_s: float) -> tuple[tuple[float, int], ...]:
        """For replicas of `per_replica` requests/s: each slot's are ordered `lead_s` before it
        begins, and those of the slot before stay until it ends."""
        wanted = [max(math.ceil(rate / per_replica - 1e-9), 1) for rate in self.per_s]
        starts = [slot * self.slot_s for slot in range(len(wanted))]
        table: list[tuple[float, int]] = []
        for at in sorted({0.0, *starts, *(max(start - lead_s, 0.0) for start in starts)}):
            first, last = int(at // self.slot_s), int((at + lead_s) // self.slot_s)
            count = max(wanted[first : last + 1])
            if not table or table[-1][1] != count:
                table.append((at, count))
        return tuple(table)


def forecast_of(arrivals_s: Sequence[float], slot_s: float) -> Forecast:
    """The mean rate of each slot of a trace: who knows the day before knows no more."""
    counts = [0] * (int(arrivals_s[-1] // slot_s) + 1)
    for arrival_s in arrivals_s:
        counts[int(arrival_s // slot_s)] += 1
    return Forecast(slot_s, tuple(count / slot_s for count in counts))
