"""The bucket against a clock that the test turns."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from swarm.agent.rate_limit import BURST_S, SLICE_BYTES_MAX, SLICE_BYTES_MIN, RateLimit


class HandClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("rate", [None, 0])
def test_no_limit_never_delays(rate: int | None) -> None:
    bucket = RateLimit(rate, clock=HandClock())
    bucket.take(1 << 40)
    assert bucket.delay_s() == 0
    assert not bucket.is_limited


def test_burst_passes_and_debt_is_waited_off() -> None:
    clock = HandClock()
    bucket = RateLimit(1_000_000, clock=clock)
    bucket.take(int(1_000_000 * BURST_S))
    assert bucket.delay_s() == 0
    bucket.take(100_000)
    assert bucket.delay_s() == pytest.approx(0.1)
    clock.now += 0.06
    assert bucket.delay_s() == pytest.approx(0.04)
    clock.now += 0.06
    assert bucket.delay_s() == 0


def test_long_run_rate_is_exact() -> None:
    clock = HandClock()
    bucket = RateLimit(1_000_000, clock=clock)
    moved = 0
    while clock.now < 110.0:
        clock.now += bucket.delay_s()
        moved += bucket.slice_bytes
        bucket.take(bucket.slice_bytes)
    assert moved == pytest.approx(10_000_000, rel=0.01)


def test_idle_time_earns_no_more_than_a_burst() -> None:
    clock = HandClock()
    bucket = RateLimit(1_000_000, clock=clock)
    bucket.delay_s()
    clock.now += 3600
    bucket.delay_s()
    bucket.take(150_000)
    assert bucket.delay_s() == pytest.approx(0.1)


@pytest.mark.parametrize(("rate", "size"), [(1000, SLICE_BYTES_MIN), (10**12, SLICE_BYTES_MAX)])
def test_slices_have_bounds(rate: int, size: int) -> None:
    assert RateLimit(rate, clock=HandClock()).slice_bytes == size


async def test_waiting_lasts_as_long_as_the_debt(autojump_clock: object) -> None:
    bucket = RateLimit(1000)
    bucket.delay_s()
    bucket.take(2050)
    await bucket.wait()
    assert trio.current_time() == pytest.approx(2.0)


async def test_who_spends_waits_its_own_debt_off(autojump_clock: trio.testing.MockClock) -> None:
    bucket = RateLimit(1_000_000)
    started_at = trio.current_time()
    for _ in range(3):
        bucket.take(500_000)
        await bucket.wait()
    assert trio.current_time() - started_at == pytest.approx(1.5 - BURST_S)
