"""The grid of batches and hit rates, and the rates that it is asked to explain."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.fleet.fleet_file import FleetFile, read_fleet
from simulations.fleet.grid import Cell, GridCase, batch_s, run_grid, serving_of
from simulations.fleet.shape import Observed, Shape, alternative, prompt_bounds, shape_of
from simulations.fleet.slo import parse_slo
from simulations.toml_table import Document

SEED = Path(__file__).resolve().parents[3] / "simulations" / "scenarios" / "fleet_seed.toml"
OBSERVED = (Observed(8, 0.7, 120.0), Observed(32, 0.7, 250.0), Observed(32, 0.8, 260.0))


@pytest.fixture(scope="module")
def read() -> FleetFile:
    return read_fleet(Document(SEED.read_text(), str(SEED)))


@pytest.fixture(scope="module")
def case(read: FleetFile) -> GridCase:
    assert read.grid is not None
    assert read.slo is not None
    keys = read.grid
    return GridCase(
        read.hardware, read.model, read.engine, read.back_ends, keys.batches, keys.hit_rates, (),
        keys.observed, keys.prompt_tokens, keys.output_tokens, keys.reuse_s, read.slo,
        read.per_node_s, read.per_spot_node_s, read.spot.interruptions_per_hour, 140.0,
    )  # fmt: skip


def test_the_observed_rates_come_out_of_the_file(read: FleetFile, case: GridCase) -> None:
    """Published figures of an H100 and of Llama 3.1 8B, prompts of 96 tokens, answers of 6."""
    assert read.grid is not None
    assert read.grid.observed == OBSERVED
    for point in OBSERVED:
        rate = point.batch / batch_s(case, read.back_ends[0], point.batch, point.hit_rate)
        assert rate == pytest.approx(point.per_s, rel=0.005)


def test_three_rates_mean_three_times_exactly() -> None:
    shape = shape_of(OBSERVED)
    assert shape is not None
    assert shape.fixed_s == pytest.approx(0.04622, rel=1e-3)
    assert shape.request_s == pytest.approx(0.002094, rel=1e-3)
    assert shape.prompt_s == pytest.approx(0.001538, rel=1e-3)
    for point in OBSERVED:
        assert point.batch / shape.batch_s(point.batch, point.hit_rate) == pytest.approx(
            point.per_s
        )


def test_rates_that_do_not_tell_the_times_apart_have_no_shape() -> None:
    assert shape_of(OBSERVED[:2]) is None
    assert shape_of((OBSERVED[0], OBSERVED[1], replace(OBSERVED[1], batch=16))) is None


@given(st.floats(0.001, 0.1), st.floats(1e-4, 0.01), st.floats(1e-4, 0.01))
def test_a_shape_is_found_again_from_its_rates(fixed: float, request: float, prompt: float) -> None:
    known = Shape(fixed, request, prompt)
    points = [
        Observed(batch, hit, batch / known.batch_s(batch, hit))
        for batch, hit in ((4, 0.5), (16, 0.5), (16, 0.9))
    ]
    found = shape_of(points)
    assert found is not None
    assert found.fixed_s == pytest.approx(fixed, rel=1e-6, abs=1e-9)
    assert found.request_s == pytest.approx(request, rel=1e-6, abs=1e-9)
    assert found.prompt_s == pytest.approx(prompt, rel=1e-6, abs=1e-9)


def test_alternatives_give_the_rates_they_stand_for(read: FleetFile, case: GridCase) -> None:
    """Each length's cache rate and time per request, put into the model, give the three rates."""
    shape = shape_of(OBSERVED)
    assert shape is not None
    serving = serving_of(case, read.back_ends[0], 1)
    low, high = prompt_bounds(shape, serving, OBSERVED)
    # 8 · 30 % of a prompt have to take as long as reading the weights: 82 tokens.
    assert low == pytest.approx(82.0, rel=0.01)
    assert high == pytest.approx(111.8, rel=0.01)
    assert alternative(shape, serving, math.ceil(high)) is None
    for tokens in (83, 96, 110):
        found = alternative(shape, serving, tokens)
        assert found is not None
        assert found.output_tokens == pytest.approx(6.0, abs=0.05)
        link = replace(read.back_ends[0].link, bytes_per_s=found.cache_bytes_per_s)
        engine = replace(case.engine, request_s=found.request_s)
        other = replace(case, prompt_tokens=tokens, engine=engine)
        back_end = replace(read.back_ends[0], link=link)
        for point in OBSERVED:
            rate = point.batch / batch_s(other, back_end, point.batch, point.hit_rate)
            assert rate == pytest.approx(point.per_s, rel=0.015)


@pytest.fixture(scope="module")
def few(read: FleetFile, case: GridCase) -> dict[tuple[str, int, float], Cell]:
    large = replace(case, batches=(64,), hit_rates=(0.6, 0.9))
    small = replace(case, batches=(8,), hit_rates=(0.6,), back_ends=read.back_ends[:1])
    found = [cell for one in (large, small) for cell in run_grid(one, lambda _: None).cells]
    return {(cell.back_end, cell.batch, cell.hit_rate): cell for cell in found}


def test_the_kept_rate_is_below_the_full_one_and_keeps_the_objective(
    few: dict[tuple[str, int, float], Cell],
) -> None:
    for cell in few.values():
        assert 0 < cell.kept_per_s < cell.full_per_s
        assert cell.latency_s[1] < 0.18
        assert cell.latency_s[2] < 0.2
        assert cell.latency_s[0] >= cell.batch_s / 3


def test_reading_from_nvme_takes_longer_than_computing_and_memory_is_dear(
    few: dict[tuple[str, int, float], Cell],
) -> None:
    """Found tokens raise the rate over DRAM and lower it over NVMe; the money is the other way."""
    assert few["DRAM", 64, 0.9].full_per_s > few["DRAM", 64, 0.6].full_per_s
    assert few["NVMe", 64, 0.9].full_per_s < few["NVMe", 64, 0.6].full_per_s
    assert few["DRAM", 64, 0.9].cost > 5 * few["NVMe", 64, 0.9].cost


def test_costs_are_price_over_rate_and_littles_law(
    read: FleetFile, case: GridCase, few: dict[tuple[str, int, float], Cell]
) -> None:
    cell = few["DRAM", 8, 0.6]
    assert cell.node_cost == pytest.approx(3.9 / 3600 / cell.kept_per_s)
    idle = 1 + 0.01 * 140 / 3600
    assert cell.spot_node_cost == pytest.approx(2.25 / 3600 * idle / cell.kept_per_s)
    held_s = 0.4 * 1800 + 0.6 * 300
    assert cell.cache_bytes == pytest.approx(cell.kept_per_s * 96 * 131_072 * held_s)
    price = 0.084 / 1e9 / 3600
    assert cell.cache_cost == pytest.approx(cell.cache_bytes * price / cell.kept_per_s)
    assert cell.per_million_tokens(cell.cost) == pytest.approx(cell.cost / 102 * 1e6)


def test_an_objective_below_one_batch_is_never_kept(read: FleetFile, case: GridCase) -> None:
    slo = parse_slo("latency p95 < 40 ms")
    first = read.back_ends[:1]
    strict = replace(case, batches=(8,), hit_rates=(0.7,), slo=slo, back_ends=first)
    (cell,) = run_grid(strict, lambda _: None).cells
    assert cell.kept_per_s == 0.0
    assert math.isnan(cell.cost)


@given(st.sampled_from([0, 1]), st.integers(1, 64), st.integers(0, 95))
def test_larger_batches_never_give_less(
    read: FleetFile, case: GridCase, place: int, batch: int, found: int
) -> None:
    def full(size: int) -> float:
        return size / batch_s(case, read.back_ends[place], size, found / 100)

    assert full(batch + 1) >= full(batch) * (1 - 1e-9)
