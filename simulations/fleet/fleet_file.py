"""The ``[fleet]`` tables of a scenario file: a replica, its traffic, how it scales, what it costs.

The rest of the file is the swarm that a cold start is simulated with; its first group of nodes is
what the fleet orders more of. `docs/CAPACITY.md` shows each key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from simulations.fleet.fleet import CacheRule, Spot
from simulations.fleet.grid import BackEnd
from simulations.fleet.planning import SIGNALS
from simulations.fleet.requests import REQUEST_COUNT_MAX, TOKENS_MAX
from simulations.fleet.scaling import Signal
from simulations.fleet.serving import CacheLink, DoesNotFit, Engine, Hardware, Model, Serving
from simulations.fleet.shape import Observed
from simulations.fleet.slo import Slo, parse_slo
from simulations.fleet.traffic import DAY_S, Burst, Lengths, Traffic
from simulations.prices import Prices, Purse, per_byte_s, per_gpu_s
from simulations.scenario_file import ScenarioFile, parse_scenario
from simulations.toml_table import Document, Table
from swarm.errors import UsageError
from swarm.units import parse_duration, parse_percent

_FLOPS = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([GTP])FLOP/s")
_FLOPS_SCALES = {"G": 10**9, "T": 10**12, "P": 10**15}
BATCH_MAX = 4096
"""More than a try of the grid has requests (`capacity.SAMPLE_COUNT`): it would never be full."""
CELLS_MAX = 400
"""Cells of a grid; each takes half a second to a second."""


@dataclass(frozen=True, slots=True)
class GridKeys:
    """``[fleet.grid]``."""

    batches: tuple[int, ...]
    hit_rates: tuple[float, ...]
    waits_s: tuple[float, ...]
    prompt_tokens: int
    output_tokens: int
    reuse_s: float
    observed: tuple[Observed, ...]


@dataclass(frozen=True, slots=True)
class ScalingKeys:
    """``[fleet.scaling]``."""

    signals: tuple[Signal, ...]
    shares: tuple[float, ...]
    floor: int
    warm_max: int
    replicas_max: int
    step: int
    interval_s: float
    calm_s: float


@dataclass(frozen=True, slots=True)
class FleetFile:
    """What a file says of a fleet. Prices per second of a whole replica."""

    swarm: ScenarioFile
    hardware: Hardware
    model: Model
    engine: Engine
    back_ends: tuple[BackEnd, ...]
    cache: CacheRule | None
    boot_s: float
    engine_start_s: float
    scaling: ScalingKeys
    slo: Slo | None
    traffic: Traffic | None
    grid: GridKeys | None
    prices: Prices
    per_node_s: float
    per_warm_node_s: float
    per_spot_node_s: float
    spot: Spot
    # The fleet itself runs on spot nodes.
    is_spot: bool

    @property
    def cache_price(self) -> float:
        """Of the cache that all replicas share, for a byte and a second."""
        return self.back_ends[0].per_byte_s if self.cache and self.cache.is_shared else 0.0

    @property
    def link(self) -> CacheLink:
        return self.back_ends[0].link if self.cache and self.cache.is_shared else CacheLink()


def read_fleet(document: Document) -> FleetFile:
    """Raises UsageError."""
    swarm = parse_scenario(document)
    fleet = document.table().table("fleet")
    gpu = fleet.table("gpu")
    gpus = gpu.count("count", 1)
    model = _model(fleet.table("model"), swarm.scenario.version.total_bytes)
    back_ends = tuple(_back_end(table, swarm.prices.currency) for table in fleet.tables("caches"))
    cache, kept_bytes = _cache(fleet.table("cache"), model, back_ends)
    hardware = _hardware(gpu, gpus, kept_bytes)
    engine = _engine(fleet.table("engine"))
    money = fleet.table("prices")
    purse = Purse(money, swarm.prices.currency)
    per_gpu = swarm.prices.per_gpu_s
    warm = purse.price("warm_gpu", per_gpu_s, per_gpu, "2.50 USD/GPU-hour")
    spot_price = purse.price("spot_gpu", per_gpu_s, per_gpu, "1.20 USD/GPU-hour")
    is_spot = money.flag("is_spot", False)
    start = fleet.table("start")
    spot = _spot(fleet.table("spot"))
    read = FleetFile(
        swarm=swarm,
        hardware=hardware,
        model=model,
        engine=engine,
        back_ends=back_ends,
        cache=cache,
        boot_s=start.duration("boot"),
        engine_start_s=start.duration("engine"),
        scaling=_scaling(fleet.table("scaling")),
        slo=_slo(fleet),
        traffic=_traffic(fleet.table("traffic")) if fleet.has("traffic") else None,
        grid=_grid(fleet.table("grid"), back_ends) if fleet.has("grid") else None,
        prices=swarm.prices,
        per_node_s=(spot_price if is_spot else per_gpu) * gpus,
        per_warm_node_s=warm * gpus,
        per_spot_node_s=spot_price * gpus,
        spot=spot,
        is_spot=is_spot,
    )
    for table in (start, money, fleet):
        table.end()
    try:
        Serving(hardware, model, engine)
    except DoesNotFit as error:
        hint = "more GPUs for a replica, or larger ones"
        raise UsageError(f"{document.where('fleet.gpu')}: {error}", hint=hint) from error
    return read


def parse_flops(text: str) -> float:
    """FLOP/s above zero: ``989TFLOP/s``; raises UsageError."""
    match = _FLOPS.fullmatch(text.strip())
    if match is None or not Fraction(match[1]):
        raise UsageError(f"not a rate of arithmetic: {text[:80]!r}", hint="write 989TFLOP/s")
    return float(Fraction(match[1]) * _FLOPS_SCALES[match[2]])


def _hardware(table: Table, gpus: int, kept_bytes: float) -> Hardware:
    usual = Hardware(1.0, 1.0, 1.0)
    hardware = Hardware(
        flops_per_s=table.quantity("flops", None, parse_flops, "989TFLOP/s") * gpus,
        bytes_per_s=table.rate("bandwidth") * gpus,
        memory_bytes=table.size("memory") * gpus,
        flops_share=_part(table, "flops_reached", usual.flops_share),
        bandwidth_share=_part(table, "bandwidth_reached", usual.bandwidth_share),
        memory_share=_part(table, "memory_used", usual.memory_share),
        reserve_bytes=(table.size("reserve") * gpus if table.has("reserve") else 0.0) + kept_bytes,
    )
    table.end()
    return hardware


def _part(table: Table, key: str, default: float) -> float:
    part = table.share(key, default)
    if part <= 0:
        raise table.fail(key, "is nothing", f'write {key} = "50%"')
    return part


def _model(table: Table, version_bytes: int) -> Model:
    model = Model(
        parameters=table.number("parameters_billion") * 1e9,
        weight_bytes=table.size("weights", version_bytes),
        layers=table.count("layers"),
        heads=table.count("heads"),
        kv_heads=table.count("kv_heads"),
        head_size=table.count("head_size"),
        kv_element_bytes=table.count("kv_bits", 16) / 8,
    )
    table.end()
    return model


def _engine(table: Table) -> Engine:
    usual = Engine()
    wait_s = table.duration("wait") if table.has("wait") else None
    engine = Engine(
        block_tokens=table.count("block_tokens", usual.block_tokens),
        sequences_max=table.count("sequences", usual.sequences_max),
        prefill_tokens_max=table.count("prefill_tokens", usual.prefill_tokens_max),
        step_s=table.duration("step", 0.0),
        block_s=table.duration("thousand_blocks", 0.0) / 1000,
        request_s=table.duration("request", 0.0),
        aggregate_wait_s=wait_s,
    )
    table.end()
    return engine


def _cache(
    table: Table, model: Model, back_ends: tuple[BackEnd, ...]
) -> tuple[CacheRule | None, float]:
    """The rule, and bytes that it takes of a replica's own memory."""
    if not table.is_written:
        return None, 0.0
    is_shared = table.choice("place", ("replica", "shared")) == "shared"
    size = table.size("size")
    tokens_max = size / model.kv_bytes_per_token
    if is_shared:
        if not back_ends:
            raise table.fail("place", "there is no back-end", "write a [[fleet.caches]] table")
        table.end()
        return CacheRule(True, tokens_max, back_ends[0].ttl_s), 0.0
    ttl_s = table.duration("ttl", float("inf"))
    table.end()
    return CacheRule(False, tokens_max, ttl_s), size


def _back_end(table: Table, currency: str) -> BackEnd:
    purse = Purse(table, currency)
    back_end = BackEnd(
        table.text("name"),
        CacheLink(table.rate("rate"), table.duration("latency", 0.0)),
        purse.price("price", per_byte_s, 0.0, "0.08 USD/GB-month"),
        table.duration("ttl"),
    )
    if not table.has("price"):
        raise table.fail("price", "is missing", 'write price = "0.084 USD/GB-hour"')
    table.end()
    return back_end


def _spot(table: Table) -> Spot:
    usual = Spot(0.0)
    spot = Spot(table.share("interrupted_per_hour", 0.0), table.duration("notice", usual.notice_s))
    table.end()
    return spot


def _scaling(table: Table) -> ScalingKeys:
    known = tuple(signal.value for signal in SIGNALS)
    names = table.texts("signals", known)
    for name in names:
        if name not in known:
            raise table.fail("signals", f"{name!r} is not known", f"of {', '.join(known)}")
    if len(set(names)) < len(names):
        raise table.fail("signals", "names one twice")
    shares = table.quantities("targets", (0.6, 0.8), parse_percent, "60%")
    if min(shares) <= 0:
        raise table.fail("targets", "a target of nothing is never reached")
    keys = ScalingKeys(
        tuple(Signal(name) for name in names),
        shares,
        floor=table.count("floor", 1),
        warm_max=table.count("warm_max", 16),
        replicas_max=table.count("replicas_max", 100),
        step=table.count("step", 4),
        interval_s=table.duration("interval", 15.0),
        calm_s=table.duration("calm", 300.0),
    )
    if keys.interval_s < 1:
        raise table.fail("interval", "is below a second", 'write interval = "15s"')
    if keys.floor > keys.replicas_max:
        raise table.fail("floor", f"is above replicas_max = {keys.replicas_max}")
    table.end()
    return keys


def _slo(table: Table) -> Slo | None:
    if not table.has("slo"):
        return None
    try:
        return parse_slo(table.text("slo"))
    except UsageError as error:
        raise table.fail("slo", error.message, error.hint) from error


def _traffic(table: Table) -> Traffic:
    prefixes = table.count("prefixes", 0, least=0)
    traffic = Traffic(
        for_s=table.duration("for"),
        requests_per_s=table.number("requests_per_s"),
        prompt=_lengths(table, "prompt"),
        output=_lengths(table, "output"),
        trough_share=_part(table, "trough", 1.0),
        peak_at_s=table.duration("peak_at", DAY_S * 14 / 24),
        bursts=tuple(_burst(burst) for burst in table.tables("bursts")),
        prefixes=prefixes,
        prefix_tokens=table.count("prefix_tokens") if prefixes else 0,
    )
    table.end()
    if not 1 <= traffic.expected_count <= REQUEST_COUNT_MAX:
        what = f"come to about {traffic.expected_count:.0f} requests, not 1 to {REQUEST_COUNT_MAX}"
        raise table.fail("requests_per_s", f"and the time {what}")
    return traffic


def _lengths(table: Table, what: str) -> Lengths:
    spread = table.number(f"{what}_spread") if table.has(f"{what}_spread") else 0.0
    if spread > 3:
        raise table.fail(f"{what}_spread", f"is {spread:g}: the logarithm's deviation; 0 to 3")
    return Lengths(_tokens(table, f"{what}_tokens"), spread)


def _tokens(table: Table, key: str) -> int:
    tokens = table.count(key)
    if tokens > TOKENS_MAX:
        raise table.fail(key, f"is more than {TOKENS_MAX}")
    return tokens


def _burst(table: Table) -> Burst:
    burst = Burst(table.duration("at"), table.duration("for"), table.number("factor"))
    table.end()
    return burst


def _grid(table: Table, back_ends: tuple[BackEnd, ...]) -> GridKeys:
    keys = GridKeys(
        batches=table.counts("batches"),
        hit_rates=table.quantities("hit_rates", None, parse_percent, "70%"),
        waits_s=table.quantities("waits", (), parse_duration, "20ms"),
        prompt_tokens=_tokens(table, "prompt_tokens"),
        output_tokens=_tokens(table, "output_tokens"),
        reuse_s=table.duration("reuse_after"),
        observed=tuple(_observed(each) for each in table.tables("observed")),
    )
    if not back_ends:
        raise table.fail("", "needs a back-end for its hits", "write a [[fleet.caches]] table")
    if max(keys.batches) > BATCH_MAX:
        raise table.fail("batches", f"holds {max(keys.batches)}; {BATCH_MAX} at most")
    if (count := len(keys.batches) * len(keys.hit_rates) * len(back_ends)) > CELLS_MAX:
        raise table.fail("batches", f"and the hit rates make {count} cells; {CELLS_MAX} at most")
    for back_end in back_ends:
        if keys.reuse_s > back_end.ttl_s:
            what = f"is longer than the ttl of {back_end.name}: nothing would be found again"
            raise table.fail("reuse_after", what)
    table.end()
    return keys


def _observed(table: Table) -> Observed:
    observed = Observed(
        table.count("batch"), table.share("hit_rate"), table.number("requests_per_s")
    )
    table.end()
    return observed
