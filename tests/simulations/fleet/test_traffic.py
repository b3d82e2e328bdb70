"""Traffic that is made up: its rates are those stated, and one seed gives one trace."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from simulations.fleet.traffic import DAY_S, Burst, Lengths, Traffic, draw_requests

STEADY = Traffic(20_000.0, 2.0, Lengths(500), Lengths(100))


def test_one_seed_gives_one_trace() -> None:
    assert draw_requests(STEADY, 1) == draw_requests(STEADY, 1)
    assert draw_requests(STEADY, 1) != draw_requests(STEADY, 2)


def test_a_steady_rate_is_a_poisson_process() -> None:
    """Mean and variance of the gaps; 40,000 of them leave a standard error of half a per cent."""
    arrivals = [request.arrival_s for request in draw_requests(STEADY, 3)]
    assert len(arrivals) == pytest.approx(40_000, rel=0.02)
    gaps = [after - before for before, after in itertools.pairwise(arrivals)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(0.5, rel=0.02)
    assert variance**0.5 == pytest.approx(mean, rel=0.02)


def test_the_day_has_its_peak_and_trough_where_stated() -> None:
    day = replace(STEADY, for_s=DAY_S, trough_share=0.25, peak_at_s=DAY_S / 2)
    assert day.rate_at(DAY_S / 2) == 2.0
    assert day.rate_at(0.0) == pytest.approx(0.5)
    requests = draw_requests(day, 1)
    noon = sum(10 / 24 <= request.arrival_s / DAY_S < 14 / 24 for request in requests)
    night = sum(not 2 / 24 <= request.arrival_s / DAY_S < 22 / 24 for request in requests)
    assert noon / night == pytest.approx(0.98309 / 0.26691, rel=0.03)
    assert len(requests) == pytest.approx(2.0 * DAY_S * 0.625, rel=0.02)


def test_a_burst_multiplies_the_rate_for_its_time() -> None:
    burst = replace(STEADY, bursts=(Burst(5000.0, 1000.0, 3.0),))
    assert (burst.rate_at(4999.0), burst.rate_at(5000.0), burst.rate_at(6000.0)) == (2, 6, 2)
    within = [r for r in draw_requests(burst, 1) if 5000 <= r.arrival_s < 6000]
    assert len(within) == pytest.approx(6000, rel=0.05)
    assert burst.expected_count == 2.0 * (20_000 + 3000)


def test_bursts_that_overlap_multiply_and_so_do_their_requests() -> None:
    both = replace(STEADY, bursts=(Burst(5000.0, 1000.0, 3.0), Burst(5500.0, 1000.0, 4.0)))
    assert [both.rate_at(at_s) for at_s in (5000.0, 5500.0, 6000.0)] == [6.0, 24.0, 8.0]
    drawn = len(draw_requests(both, 1))
    assert drawn == pytest.approx(2.0 * (20_000 + 500 * (2 + 11 + 3)), rel=0.02)
    assert both.expected_count == 2.0 * (20_000 + 500 * (3 + 12 + 4)) > drawn


def test_lengths_spread_around_their_median() -> None:
    spread = replace(STEADY, prompt=Lengths(500, 0.8))
    prompts = sorted(request.prompt_tokens for request in draw_requests(spread, 1))
    assert prompts[len(prompts) // 2] == pytest.approx(500, rel=0.03)
    assert prompts[int(len(prompts) * 0.8413)] / 500 == pytest.approx(2.2255, rel=0.04)
    assert {request.output_tokens for request in draw_requests(STEADY, 1)} == {100}


def test_prefixes_follow_zipf_and_lengthen_the_prompt() -> None:
    shared = replace(STEADY, prefixes=10, prefix_tokens=64)
    requests = draw_requests(shared, 1)
    assert all(r.prompt_tokens == 564 and r.prefix_tokens == 64 for r in requests)
    counts = {name: sum(r.prefix == name for r in requests) for name in ("prefix-1", "prefix-2")}
    assert counts["prefix-1"] / counts["prefix-2"] == pytest.approx(2.0, rel=0.05)
    assert len({r.prefix for r in requests}) == 10
    # Chance of prefixes has its own stream: arrivals are those of the plain trace.
    plain = draw_requests(STEADY, 1)
    assert [r.arrival_s for r in requests] == [r.arrival_s for r in plain]
