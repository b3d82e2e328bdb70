"""One replica at a grid of batch sizes and hit rates: requests/s, latency, cost.

Requests are alike and come through an aggregator that lets a batch go when it is full or its first
request has waited long enough. For each cell two rates are told: *full* is what batches that are
never short give; *kept* is the highest rate at which Poisson arrivals still keep the objective,
found by simulating them (`capacity`), with the latencies at that rate. Costs are at the kept rate.

**The cache.** A hit rate has to be paid for in bytes. A prefix is kept for its time to live after
its last use. Prefixes that miss are written at the rate of the misses and stay that long; those
that hit stay until they are used again, `reuse_s` later on average. So a request's prompt occupies
its KV bytes for (1 − h) · ttl + h · reuse, whatever the rate of requests is (Little's law).

**Spot.** A replica that is taken away is replaced by one that boots, loads and starts; it is paid
for while it does. With i interruptions an hour and a cold start of c seconds a replica serves
1 / (1 + i · c / 3600) of the time that is paid for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulations.fleet.capacity import SAMPLE_COUNT, Capacity, find_capacity, offer
from simulations.fleet.fleet import CacheRule, Setup
from simulations.fleet.outcome import FleetPrices
from simulations.fleet.requests import Request
from simulations.fleet.serving import CacheLink, Engine, Hardware, Model, Serving, attention_pairs
from simulations.fleet.slo import Metric, Slo
from simulations.measure import percentile

PERCENTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class BackEnd:
    """Where KV of prefixes is kept."""

    name: str
    link: CacheLink
    per_byte_s: float
    ttl_s: float


@dataclass(frozen=True, slots=True)
class GridCase:
    """What is asked. The engine's batch and the link are those of each cell."""

    hardware: Hardware
    model: Model
    engine: Engine
    batches: tuple[int, ...]
    hit_rates: tuple[float, ...]
    prompt_tokens: int
    output_tokens: int
    # Between two uses of one prefix, on average.
    reuse_s: float
    slo: Slo
    prices: FleetPrices
    # Price of a spot node, its interruptions an hour, and the cold start that each costs.
    spot_per_node_s: float
    interruptions_per_hour: float
    cold_start_s: float
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Cell:
    """One batch size at one hit rate over one back-end. Times in seconds, money per request."""

    back_end: str
    batch: int
    hit_rate: float
    batch_s: float
    full_per_s: float
    kept_per_s: float
    # Percentiles of the latency at the kept rate; of a request alone if that is 0.
    latency_s: tuple[float, ...]
    cache_bytes: float
    node_cost: float
    spot_node_cost: float
    cache_cost: float
    tokens: int

    @property
    def cost(self) -> float:
        return self.node_cost + self.cache_cost

    @property
    def spot_cost(self) -> float:
        return self.spot_node_cost + self.cache_cost

    def per_million_tokens(self, per_request: float) -> float:
        return per_request / self.tokens * 1e6


def serving_of(case: GridCase, back_end: BackEnd, batch: int) -> Serving:
    """Blocks of one token, so that a hit rate is exactly itself."""
    engine = replace(
        case.engine,
        block_tokens=1,
        block_s=0.0,
        sequences_max=batch,
        prefill_tokens_max=batch * case.prompt_tokens,
    )
    return Serving(case.hardware, case.model, engine, back_end.link)


def batch_s(case: GridCase, serving: Serving, batch: int, hit_rate: float) -> float:
    """A full batch from its start to its last token."""
    found = cached_tokens(case, hit_rate)
    new = case.prompt_tokens - found
    prefill_s = serving.prefill_s(
        batch, batch * new, batch * attention_pairs(new, found), batch * found
    )
    held = batch * (case.prompt_tokens + 1)
    return prefill_s + serving.steps_s(case.output_tokens - 1, batch, held)


def cached_tokens(case: GridCase, hit_rate: float) -> int:
    return round(case.prompt_tokens * hit_rate)


def cells(case: GridCase, back_ends: tuple[BackEnd, ...]) -> Iterator[Cell]:
    """Row by row; each takes about fifteen short simulations."""
    for back_end in back_ends:
        for batch in case.batches:
            for hit_rate in case.hit_rates:
                yield _cell(case, back_end, batch, hit_rate)


def wait_row(
    case: GridCase, back_end: BackEnd, batch: int, hit_rate: float, waits_s: tuple[float, ...]
) -> list[tuple[float, Cell]]:
    """One cell at other waits of the aggregator."""
    return [
        (
            wait_s,
            _cell(
                replace(case, engine=replace(case.engine, aggregate_wait_s=wait_s)),
                back_end, batch, hit_rate,
            ),
        )
        for wait_s in waits_s
    ]  # fmt: skip


def _cell(case: GridCase, back_end: BackEnd, batch: int, hit_rate: float) -> Cell:
    serving = serving_of(case, back_end, batch)
    takes_s = batch_s(case, serving, batch, hit_rate)
    setup = Setup(
        serving, 0.0, 0.0, lambda count: [0.0] * count, CacheRule(is_shared=True), seed=case.seed
    )
    found = cached_tokens(case, hit_rate)
    request = Request(0.0, case.prompt_tokens, case.output_tokens, "prefix", found)
    if not found:
        request = Request(0.0, case.prompt_tokens, case.output_tokens)
    sample = [request] * SAMPLE_COUNT
    capacity = find_capacity(setup, sample, case.slo)
    latency_s = _latency_s(setup, sample, case.slo, capacity)
    prompt_bytes = case.prompt_tokens * case.model.kv_bytes_per_token
    kept_s = (1 - hit_rate) * back_end.ttl_s + hit_rate * case.reuse_s
    per_s = capacity.per_s or float("nan")
    idle = 1 + case.interruptions_per_hour * case.cold_start_s / 3600
    return Cell(
        back_end.name,
        batch,
        hit_rate,
        takes_s,
        batch / takes_s,
        capacity.per_s,
        latency_s,
        cache_bytes=capacity.per_s * prompt_bytes * kept_s,
        node_cost=case.prices.per_node_s / per_s,
        spot_node_cost=case.spot_per_node_s * idle / per_s,
        cache_cost=prompt_bytes * kept_s * back_end.per_byte_s,
        tokens=case.prompt_tokens + case.output_tokens,
    )


def _latency_s(
    setup: Setup, sample: list[Request], slo: Slo, capacity: Capacity
) -> tuple[float, ...]:
    outcome = offer(setup, sample, slo, capacity.per_s or 1e-3)
    times = outcome.times[Metric.LATENCY]
    return tuple(percentile(times, share) for share in PERCENTILES)
