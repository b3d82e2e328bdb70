"""Scaling rules as stories: what was seen, what is wanted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulations.fleet.scaling import (
    Forecast,
    Observation,
    Policy,
    Scaler,
    Signal,
    forecast_of,
    scheduled,
)

CALM = Observation(
    ready=4, starting=0, utilisation=0.5, waiting=0, running=8, ttft_s=0.5, oldest_wait_s=0.0
)


@pytest.mark.parametrize(
    ("signal", "target", "seen", "wanted"),
    [
        (Signal.UTILISATION, 0.5, replace(CALM, utilisation=0.75), 6),
        (Signal.UTILISATION, 0.5, CALM, 4),
        (Signal.QUEUE, 4.0, replace(CALM, waiting=12), 5),
        (Signal.QUEUE, 2.0, CALM, 4),
        (Signal.LATENCY, 1.0, replace(CALM, ttft_s=1.5), 6),
        # A latency far beyond its target doubles the fleet and no more.
        (Signal.LATENCY, 1.0, replace(CALM, ttft_s=60.0), 8),
        # Nobody's first token came, but somebody waits.
        (Signal.LATENCY, 1.0, replace(CALM, ttft_s=0.0, oldest_wait_s=1.25), 5),
    ],
)
def test_wanted_is_replicas_times_value_over_target(
    signal: Signal, target: float, seen: Observation, wanted: int
) -> None:
    assert Scaler(Policy(signal, target)).wanted(seen, now=0.0) == wanted


def test_growing_is_limited_to_a_step_and_counts_who_is_on_the_way() -> None:
    scaler = Scaler(Policy(Signal.QUEUE, 1.0, step_max=3))
    busy = replace(CALM, running=40)
    assert scaler.wanted(busy, now=0.0) == 7
    assert scaler.wanted(replace(busy, starting=3), now=15.0) == 10


def test_shrinking_waits_until_the_highest_wish_is_old() -> None:
    scaler = Scaler(Policy(Signal.QUEUE, 2.0, calm_s=300.0))
    assert scaler.wanted(replace(CALM, running=8), now=0.0) == 4
    assert scaler.wanted(replace(CALM, running=2), now=150.0) == 4
    assert scaler.wanted(replace(CALM, running=2), now=300.0) == 4
    assert scaler.wanted(replace(CALM, running=2), now=301.0) == 1


def test_floor_and_ceiling_hold() -> None:
    idle = replace(CALM, running=0)
    scaler = Scaler(Policy(Signal.QUEUE, 2.0, floor=2, replicas_max=5, calm_s=0.0))
    assert scaler.wanted(idle, now=0.0) == 2
    assert scaler.wanted(replace(CALM, running=100), now=15.0) == 5


def test_a_fleet_without_a_replica_waits_for_those_that_start() -> None:
    none = replace(CALM, ready=0, starting=2, waiting=50, oldest_wait_s=9.0)
    assert Scaler(Policy(Signal.LATENCY, 1.0)).wanted(none, now=0.0) == 2


def test_a_schedule_is_read_by_the_clock_and_shrinks_at_once() -> None:
    table = ((0.0, 2), (100.0, 6), (200.0, 3))
    assert [scheduled(table, at) for at in (0.0, 99.0, 100.0, 500.0)] == [2, 2, 6, 3]
    scaler = Scaler(Policy(Signal.SCHEDULE, schedule=table, step_max=8))
    assert scaler.wanted(CALM, now=100.0) == 6
    assert scaler.wanted(CALM, now=200.0) == 3


def test_a_forecast_orders_ahead_and_keeps_until_the_slot_ends() -> None:
    """Two replicas' worth, then five, then one; half a slot ahead."""
    forecast = Forecast(100.0, (2.0, 5.0, 1.0))
    assert forecast.schedule(1.0, 50.0) == ((0.0, 2), (50.0, 5), (200.0, 1))
    # A lead of more than a slot.
    assert forecast.schedule(1.0, 150.0) == ((0.0, 5), (200.0, 1))


def test_a_trace_gives_the_mean_rate_of_each_slot() -> None:
    assert forecast_of([0.0, 1.0, 2.0, 25.0], 10.0) == Forecast(10.0, (0.3, 0.0, 0.1))
