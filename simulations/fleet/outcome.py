"""What a run of a fleet came to: how long users waited, who missed, and what it cost.

Percentiles are by the nearest rank over all requests of the trace; a request that was never
answered counts as infinitely late. Costs are of every node from its order to its end, so boots,
loading and warm nodes are in them, and of the prefix cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from simulations.fleet.fleet import Fleet, Moment
from simulations.fleet.nodes import ColdStart, State
from simulations.fleet.replica import Ask
from simulations.fleet.slo import Metric, Slo


@dataclass(frozen=True, slots=True)
class FleetPrices:
    """In the currency of the file. A warm node may be a cheaper reservation."""

    per_node_s: float
    per_warm_node_s: float
    per_cache_byte_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy on one trace."""

    # Values of all requests, ascending, in seconds.
    times: Mapping[Metric, tuple[float, ...]]
    requests: int
    unanswered: int
    # Share of requests beyond the objective's durations.
    miss_share: float
    broken: tuple[str, ...]
    # Seconds of nodes by what they did, and the most nodes at once.
    node_seconds: Mapping[State, float]
    nodes_max: int
    replicas_max: int
    replicas_min: int
    cold_starts: tuple[ColdStart, ...]
    interruptions: int
    restarts: int
    prompt_tokens: int
    output_tokens: int
    # Part of all prompt tokens that were found.
    hit_rate: float
    # Bytes in a shared cache, over time.
    cache_byte_s: float
    cost: float
    moments: tuple[Moment, ...]

    @property
    def is_met(self) -> bool:
        return not self.broken

    @property
    def per_million_tokens(self) -> float:
        """Prompt and output tokens alike."""
        return self.cost / (self.prompt_tokens + self.output_tokens) * 1e6

    @property
    def per_request(self) -> float:
        return self.cost / self.requests

    @property
    def slowest_cold_start_s(self) -> float:
        return max((start.slowest_s for start in self.cold_starts), default=0.0)


def measure(fleet: Fleet, slo: Slo, prices: FleetPrices) -> Outcome:
    """After the run."""
    asks = fleet.asks
    taken = {metric: [_time(ask, metric) for ask in asks] for metric in Metric}
    late = [False] * len(asks)
    for metric, seconds in taken.items():
        limit_s = slo.limit_s(metric)
        if limit_s is not None:
            late = [was or s >= limit_s for was, s in zip(late, seconds, strict=True)]
    times = {metric: tuple(sorted(seconds)) for metric, seconds in taken.items()}
    miss_share = sum(late) / len(asks)
    node_s = dict(fleet.nodes.meter.seconds)
    warm_s = node_s[State.WARM]
    busy_s = sum(node_s.values()) - warm_s
    now = fleet.timeline.now
    # What replicas keep for themselves lies in memory that is paid for already.
    shared = fleet.shared_cache
    kv_bytes = fleet.setup.serving.model.kv_bytes_per_token
    byte_s = shared.token_seconds(now) * kv_bytes if shared is not None else 0.0
    prompt_tokens = sum(ask.request.prompt_tokens for ask in asks)
    ready = [moment.ready for moment in fleet.moments] or [0]
    return Outcome(
        times=times,
        requests=len(asks),
        unanswered=fleet.unfinished_count,
        miss_share=miss_share,
        broken=tuple(slo.broken(times, miss_share)),
        node_seconds=node_s,
        nodes_max=fleet.nodes.peak,
        replicas_max=max(ready),
        replicas_min=min(ready),
        cold_starts=tuple(fleet.nodes.cold_starts),
        interruptions=fleet.interruption_count,
        restarts=sum(ask.restarts for ask in asks),
        prompt_tokens=prompt_tokens,
        output_tokens=sum(ask.request.output_tokens for ask in asks),
        hit_rate=sum(ask.found_tokens for ask in asks) / prompt_tokens,
        cache_byte_s=byte_s,
        cost=busy_s * prices.per_node_s
        + warm_s * prices.per_warm_node_s
        + byte_s * prices.per_cache_byte_s,
        moments=tuple(fleet.moments),
    )


def _time(ask: Ask, metric: Metric) -> float:
    """Seconds; infinite of a request that was never answered."""
    request = ask.request
    match metric:
        case Metric.TTFT:
            return ask.first_token_at - request.arrival_s
        case Metric.LATENCY:
            return ask.done_at - request.arrival_s
        case Metric.TPOT:
            if ask.done_at == math.inf:
                return math.inf
            return (ask.done_at - ask.first_token_at) / max(request.output_tokens - 1, 1)
