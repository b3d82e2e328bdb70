"""What one replica carries: the highest steady rate at which the objective holds.

Requests of the trace, in its order, arrive as a Poisson process at a replica that never scales; the
rate is doubled until the objective breaks and then halved into, to within `PRECISION`. This is what
thresholds of the scaling signals are derived from: so many requests in flight, so many a second.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulations.fleet.fleet import Fleet, Setup
from simulations.fleet.outcome import FleetPrices, Outcome, measure
from simulations.fleet.requests import Request
from simulations.fleet.scaling import Policy, Signal
from simulations.fleet.slo import Metric, Slo
from simulations.measure import percentile

SAMPLE_COUNT = 4000
"""Requests of each try: the 99th percentile of so many rests on 40 of them."""
PRECISION = 0.02
FREE = FleetPrices(0.0, 0.0)
_RATE_MIN, _RATE_MAX = 1e-3, 1e6
"""Requests/s: so few that each is alone, and more than any replica answers."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of one replica, at the highest rate that keeps the objective."""

    # Requests/s; 0: it breaks for a request that has the replica to itself.
    per_s: float
    # Requests that wait or run on average at that rate.
    in_flight: float
    # Of a request that is alone: median time to the first token, and what breaks at any rate.
    alone_ttft_s: float
    # Latencies at that rate, ascending; of requests that are alone if it is 0.
    latency_s: Sequence[float]
    broken_alone: tuple[str, ...] = ()


def find_capacity(setup: Setup, requests: Sequence[Request], slo: Slo) -> Capacity:
    """About fifteen runs of `SAMPLE_COUNT` requests."""
    sample = _sample(requests)
    alone = offer(setup, sample, slo, _RATE_MIN)
    alone_s = percentile(alone.times[Metric.TTFT], 0.5)
    if not alone.is_met:
        return Capacity(0.0, 0.0, alone_s, alone.times[Metric.LATENCY], alone.broken)
    low, held = _RATE_MIN, alone
    high = 1 / max(percentile(alone.times[Metric.LATENCY], 0.5), 1e-6)
    while high < _RATE_MAX and (tried := offer(setup, sample, slo, high)).is_met:
        low, high, held = high, high * 2, tried
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        tried = offer(setup, sample, slo, middle)
        if tried.is_met:
            low, held = middle, tried
        else:
            high = middle
    latency_s = held.times[Metric.LATENCY]
    return Capacity(low, low * sum(latency_s) / len(latency_s), alone_s, latency_s)


def offer(setup: Setup, sample: Sequence[Request], slo: Slo, per_s: float) -> Outcome:
    """One replica under Poisson arrivals of a rate."""
    rng = random.Random(setup.seed)
    now_s = 0.0
    timed: list[Request] = []
    for request in sample:
        now_s += rng.expovariate(per_s)
        timed.append(replace(request, arrival_s=now_s))
    alone = Policy(Signal.SCHEDULE, replicas_max=1, interval_s=max(now_s, 1.0))
    fleet = Fleet(replace(setup, spot=None), timed, alone, replicas=1)
    fleet.run()
    return measure(fleet, slo, FREE)


def _sample(requests: Sequence[Request]) -> list[Request]:
    """Evenly over the trace, so that no hour is left out; repeated if it is short."""
    if len(requests) >= SAMPLE_COUNT:
        return [requests[place * len(requests) // SAMPLE_COUNT] for place in range(SAMPLE_COUNT)]
    times = -(-SAMPLE_COUNT // len(requests))
    return (list(requests) * times)[:SAMPLE_COUNT]
