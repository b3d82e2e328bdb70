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

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from simulations.fleet.capacity import SAMPLE_COUNT, find_capacity
from simulations.fleet.fleet import CacheRule, Setup
from simulations.fleet.requests import Request
from simulations.fleet.serving import CacheLink, Engine, Hardware, Model, Serving, attention_pairs
from simulations.fleet.shape import Observed
from simulations.fleet.slo import Slo
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
    back_ends: tuple[BackEnd, ...]
    batches: tuple[int, ...]
    hit_rates: tuple[float, ...]
    # Of the aggregator, for one cell at other waits than the engine's.
    waits_s: tuple[float, ...]
    # Rates that somebody saw, for what they mean.
    observed: tuple[Observed, ...]
    prompt_tokens: int
    output_tokens: int
    # Between two uses of one prefix, on average.
    reuse_s: float
    slo: Slo
    # Price of a node and of a spot node, its interruptions an hour, the cold start that each costs.
    per_node_s: float
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
    kept_per_s: float
    # Percentiles of the latency at the kept rate; of a request alone if that is 0.
    latency_s: tuple[float, ...]
    cache_bytes: float
    node_cost: float
    spot_node_cost: float
    cache_cost: float
    tokens: int

    @property
    def full_per_s(self) -> float:
        return self.batch / self.batch_s

    @property
    def cost(self) -> float:
        return self.node_cost + self.cache_cost

    @property
    def spot_cost(self) -> float:
        return self.spot_node_cost + self.cache_cost

    def per_million_tokens(self, per_request: float) -> float:
        return per_request / self.tokens * 1e6


@dataclass(frozen=True, slots=True)
class Grid:
    """What came of a case."""

    case: GridCase
    cells: tuple[Cell, ...]
    # One cell at other waits of the aggregator, in seconds.
    waits: tuple[tuple[float, Cell], ...]


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


def batch_s(case: GridCase, back_end: BackEnd, batch: int, hit_rate: float) -> float:
    """A full batch from its start to its last token."""
    serving = serving_of(case, back_end, batch)
    found = cached_tokens(case, hit_rate)
    new = case.prompt_tokens - found
    prefill_s = serving.prefill_s(
        batch, batch * new, batch * attention_pairs(new, found), batch * found
    )
    held = batch * (case.prompt_tokens + 1)
    return prefill_s + serving.steps_s(case.output_tokens - 1, batch, held)


def cached_tokens(case: GridCase, hit_rate: float) -> int:
    return round(case.prompt_tokens * hit_rate)


def run_grid(case: GridCase, progress: Callable[[str], None]) -> Grid:
    """Row by row; each cell takes about fifteen short simulations."""
    cells = []
    for back_end in case.back_ends:
        for batch in case.batches:
            for hit_rate in case.hit_rates:
                cells.append(_cell(case, back_end, batch, hit_rate))
                progress(f"{back_end.name}: batch {batch} at {hit_rate:.0%}")
    return Grid(case, tuple(cells), tuple(_at_waits(case)))


def _at_waits(case: GridCase) -> Iterator[tuple[float, Cell]]:
    """Where the observed rates are; else the middle of the grid."""
    seen = case.observed
    batch = seen[-1].batch if seen else case.batches[len(case.batches) // 2]
    hit_rate = seen[0].hit_rate if seen else case.hit_rates[0]
    for wait_s in case.waits_s:
        waiting = replace(case, engine=replace(case.engine, aggregate_wait_s=wait_s))
        yield wait_s, _cell(waiting, case.back_ends[0], batch, hit_rate)


def _cell(case: GridCase, back_end: BackEnd, batch: int, hit_rate: float) -> Cell:
    setup = Setup(
        serving_of(case, back_end, batch), 0.0, 0.0, lambda count: [0.0] * count,
        CacheRule(is_shared=True), seed=case.seed,
    )  # fmt: skip
    found = cached_tokens(case, hit_rate)
    request = Request(0.0, case.prompt_tokens, case.output_tokens, "prefix", found)
    if not found:
        request = Request(0.0, case.prompt_tokens, case.output_tokens)
    capacity = find_capacity(setup, [request] * SAMPLE_COUNT, case.slo)
    prompt_bytes = case.prompt_tokens * case.model.kv_bytes_per_token
    kept_s = (1 - hit_rate) * back_end.ttl_s + hit_rate * case.reuse_s
    per_s = capacity.per_s or float("nan")
    idle = 1 + case.interruptions_per_hour * case.cold_start_s / 3600
    return Cell(
        back_end.name,
        batch,
        hit_rate,
        batch_s(case, back_end, batch, hit_rate),
        capacity.per_s,
        tuple(percentile(capacity.latency_s, share) for share in PERCENTILES),
        cache_bytes=capacity.per_s * prompt_bytes * kept_s,
        node_cost=case.per_node_s / per_s,
        spot_node_cost=case.spot_per_node_s * idle / per_s,
        cache_cost=prompt_bytes * kept_s * back_end.per_byte_s,
        tokens=case.prompt_tokens + case.output_tokens,
    )
