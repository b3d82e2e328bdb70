"""``[fleet]`` tables: units are mandatory and checked, and errors name file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulations.fleet.fleet_file import FleetFile, parse_flops, read_fleet
from simulations.fleet.planning import SIGNALS
from simulations.fleet.scaling import Signal
from simulations.toml_table import Document
from swarm.errors import UsageError

SCENARIOS = Path(__file__).resolve().parents[3] / "simulations" / "scenarios"
DAY = (SCENARIOS / "fleet_day.toml").read_text()
SEED = (SCENARIOS / "fleet_seed.toml").read_text()


def read(text: str) -> FleetFile:
    return read_fleet(Document(text, "plan.toml"))


def test_the_day_is_read_with_its_units() -> None:
    day = read(DAY)
    assert day.hardware.flops_per_s == 4 * 362e12
    assert day.hardware.memory_bytes == 4 * 48e9
    assert day.model.weight_bytes == 141.2e9
    assert day.engine.block_s == pytest.approx(2e-8)
    assert day.per_node_s == pytest.approx(4 * 2.62 / 3600)
    assert day.per_warm_node_s == day.per_node_s
    assert day.scaling.signals == SIGNALS
    assert set(SIGNALS) == set(Signal)
    assert day.traffic is not None
    assert day.traffic.bursts[1].factor == 6.0
    assert day.grid is None


@pytest.mark.parametrize(
    ("written", "flops"),
    [("989TFLOP/s", 989e12), ("1 PFLOP/s", 1e15), ("0.5GFLOP/s", 5e8)],
)
def test_a_rate_of_arithmetic_is_what_its_unit_says(written: str, flops: float) -> None:
    assert parse_flops(written) == flops


@pytest.mark.parametrize(
    ("text", "before", "after", "message"),
    [
        (DAY, 'flops = "362TFLOP/s"', "flops = 362e12", r"fleet.gpu.flops: .*has no unit"),
        (DAY, "362TFLOP/s", "362T", "fleet.gpu.flops: not a rate of arithmetic"),
        (DAY, "362TFLOP/s", "0TFLOP/s", "fleet.gpu.flops: not a rate of arithmetic"),
        (DAY, "864GB/s", "864G", "fleet.gpu.bandwidth: .*"),
        (DAY, 'memory = "48GB"', 'memory = "30GB"', "fleet.gpu: weights of 141.2 GB leave no"),
        (DAY, 'memory = "48GB"', 'memory = "-48GB"', "fleet.gpu.memory: .*negative"),
        (DAY, "flops_reached", "flops_reach", "fleet.gpu.flops_reach: unknown key"),
        (DAY, 'flops_reached = "40%"', 'flops_reached = "0%"', "fleet.gpu.flops_reached: is not"),
        (DAY, "layers = 80", "layers = 0", "fleet.model.layers: is 0, not between"),
        (DAY, "parameters_billion = 70.6", "parameters_billion = nan", "is nan, not above zero"),
        (DAY, 'step = "3ms"', "step = 3", "fleet.engine.step: 3 has no unit"),
        (DAY, 'boot = "90s"', "", "fleet.start.boot: is missing"),
        (DAY, 'targets = ["60%", "80%"]', 'targets = ["0%"]', "fleet.scaling.targets: a target"),
        (DAY, 'targets = ["60%", "80%"]', "targets = [0.6]", "fleet.scaling.targets: 0.6 has no"),
        (DAY, "replicas_max = 40", 'signals = ["cpu"]', "fleet.scaling.signals: 'cpu' is not"),
        (DAY, "replicas_max = 40", 'interval = "0s"', "fleet.scaling.interval: is below a second"),
        (DAY, "replicas_max = 40", "replicas_max = 4\nfloor = 5", "floor: is above replicas_max"),
        (DAY, "requests_per_s = 1.85", "requests_per_s = -1", "requests_per_s: is -1, not above"),
        (DAY, "requests_per_s = 1.85", "requests_per_s = 500", "come to about .* requests, not"),
        (DAY, 'trough = "20%"', "trough = 0.2", "fleet.traffic.trough: 0.2 has no unit"),
        (DAY, "output_spread = 0.6", "output_spread = 60", "output_spread: is 60: the logarithm"),
        (DAY, "factor = 4.0", "factor = 0", r"fleet.traffic.bursts\[0\].factor: is 0, not above"),
        (DAY, 'slo = "ttft p99 < 2 s, misses < 1 %"', 'slo = "fast"', "fleet.slo: not an obj"),
        (DAY, "[fleet.start]", '[fleet.cache]\nplace = "shared"\nsize = "1TB"\n[fleet.start]',
         "fleet.cache.place: there is no back-end"),
        (SEED, "batches = [8, 16, 32, 64]", "batches = [8, 8]", "grid.batches: is not a list"),
        (SEED, "batches = [8, 16, 32, 64]", "batches = [true]", "grid.batches: is not a list"),
        (SEED, "batches = [8, 16, 32, 64]", "batches = [9999]", "holds 9999; 4096 at most"),
        (SEED, 'reuse_after = "5min"', 'reuse_after = "5h"', "is longer than the ttl of DRAM"),
        (SEED, '"0.084 USD/GB-hour"', '"0.084 USD/GB"', r"fleet.caches\[0\].price: not such a"),
        (SEED, '"0.084 USD/GB-hour"', '"0.084 EUR/GB-hour"', r"caches\[0\].price: is in EUR"),
        (SEED, 'price = "0.084 USD/GB-hour"', "", r"caches\[0\].price: is missing"),
        (SEED, 'spot_gpu = "2.25 USD/GPU-hour"', "spot_gpu = 2.25", "spot_gpu: 2.25 has no unit"),
        (SEED, 'interrupted_per_hour = "1%"', "interrupted_per_hour = 0.01", "0.01 has no unit"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_line_and_key(
    text: str, before: str, after: str, message: str
) -> None:
    assert before in text
    changed = text.replace(before, after, 1)
    with pytest.raises(UsageError, match=rf"^plan.toml:\d+: .*{message}"):
        read(changed)


def test_a_replicas_own_cache_takes_its_memory() -> None:
    table = '[fleet.cache]\nplace = "replica"\nsize = "10GB"\nttl = "30min"\n\n[fleet.start]'
    cached = read(DAY.replace("[fleet.start]", table, 1))
    assert cached.cache is not None
    assert not cached.cache.is_shared
    assert cached.cache.ttl_s == 1800.0
    assert cached.hardware.reserve_bytes == 10e9


def test_spot_nodes_are_paid_at_their_price() -> None:
    spot = read(SEED.replace("[fleet.prices]", "[fleet.prices]\nis_spot = true", 1))
    assert spot.is_spot
    assert spot.per_node_s == pytest.approx(2.25 / 3600)
    assert spot.spot.interruptions_per_hour == 0.01
