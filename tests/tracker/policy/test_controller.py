"""The number of origin connections: where it starts, what moves it, what never does."""

from __future__ import annotations

import math

import pytest

from tracker.policy.controller import ConnectionController, Demand, OriginThrottle
from tracker.policy.settings import ControllerSettings, LeaseSettings

MIB = 1 << 20
GBIT_25 = 25e9 / 8


def controller(chunk_bytes: int) -> ConnectionController:
    return ConnectionController(ControllerSettings(), LeaseSettings(), chunk_bytes=chunk_bytes)


@pytest.mark.parametrize(
    ("chunk_bytes", "connections"), [(256 << 10, 1), (16 * MIB, 1), (64 * MIB, 4), (256 * MIB, 15)]
)
def test_a_range_takes_a_fifth_of_a_second(chunk_bytes: int, connections: int) -> None:
    assert controller(chunk_bytes).connections_per_chunk == connections


@pytest.mark.parametrize(
    ("agents", "nic", "low", "high"),
    [(1000, GBIT_25, 145, 175), (4, GBIT_25, 145, 175), (1, GBIT_25, 95, 110)],
)
def test_the_start_follows_what_a_connection_gives(
    agents: int, nic: float, low: int, high: int
) -> None:
    """3 NICs of 25 Gbit/s, 2 for one alone, at 90 MB/s a connection, and the first byte's share of
    its time."""
    subject = controller(64 * MIB)
    subject.follow(Demand(agents, nic))
    assert low <= subject.limit <= high


def test_a_small_fleet_starts_with_enough_leases_to_keep_the_origin_busy() -> None:
    subject = controller(256 << 10)
    subject.follow(Demand(12, 8e6))
    assert subject.limit == 8


@pytest.mark.parametrize(("nic", "leases"), [(GBIT_25, 3), (4 * GBIT_25, 12), (8e6, 1), (0.0, 2)])
def test_in_the_first_moments_one_agent_gets_leases_for_a_quarter_of_its_nic(
    nic: float, leases: int
) -> None:
    """A lease of 64 MiB gives 360 MB/s on four connections, for 186 of 251 ms."""
    subject = controller(64 * MIB)
    assert subject.began(now=7.0)
    assert not subject.began(now=7.01)
    assert subject.leases_max(nic, 7.04) == leases
    assert subject.leases_max(nic, 7.05) == math.inf


def run(
    subject: ConnectionController,
    demand: Demand,
    *,
    connection_rate: float,
    cap: float,
    seconds: float,
    start: float = 0.0,
) -> list[int]:
    """An origin that gives each connection its rate up to a cap; the limits over time."""
    now = start
    limits = []
    subject.began(now=now)
    while now < start + seconds:
        now = round(now + 0.05, 6)
        rate = min(subject.limit * connection_rate, cap)
        subject.received(int(rate * 0.05), now=now)
        subject.completed(0.2)
        if round(now / 0.25, 6).is_integer():
            subject.step(demand, is_throttled=False, now=now)
            limits.append(subject.limit)
    return limits


def test_slow_connections_are_made_up_for_by_number() -> None:
    """True rate 20 MB/s where 90 were expected: the goal is reached by probing."""
    subject = controller(64 * MIB)
    demand = Demand(100, GBIT_25)
    limits = run(subject, demand, connection_rate=20e6, cap=1e12, seconds=10)
    assert limits[-1] * 20e6 >= 0.95 * 3 * GBIT_25


def test_fast_connections_drain() -> None:
    subject = controller(64 * MIB)
    limits = run(subject, Demand(100, GBIT_25), connection_rate=400e6, cap=1e12, seconds=10)
    # Down to eight leases of four connections, the least that keeps an origin busy.
    assert limits[-1] == 32


def test_a_saturated_origin_is_not_flooded() -> None:
    """One NIC is all it gives: probes gain nothing and are taken back."""
    subject = controller(64 * MIB)
    demand = Demand(100, GBIT_25)
    limits = run(subject, demand, connection_rate=90e6, cap=GBIT_25, seconds=40)
    start = limits[0]
    assert max(limits) <= 2.1 * start
    assert limits.count(start) > len(limits) / 2


def test_a_brown_out_does_not_shrink_the_limit() -> None:
    subject = controller(64 * MIB)
    demand = Demand(100, GBIT_25)
    before = run(subject, demand, connection_rate=90e6, cap=3 * GBIT_25, seconds=5)[-1]
    during = run(subject, demand, connection_rate=90e6, cap=0.3 * GBIT_25, seconds=10, start=5.0)
    assert min(during) >= before


def test_blind_probing_goes_on_while_it_gains() -> None:
    subject = controller(256 << 10)
    demand = Demand(4, 0.0)
    subject.follow(demand)
    assert subject.limit == 8
    limits = run(subject, demand, connection_rate=1e6, cap=64e6, seconds=15)
    assert 64 <= limits[-1] <= 128


def test_throttling_halves_once_a_round_and_regrows_by_a_quarter() -> None:
    subject = controller(64 * MIB)
    demand = Demand(100, GBIT_25)
    start = run(subject, demand, connection_rate=90e6, cap=1e12, seconds=2)[-1]
    for _ in range(20):
        subject.throttled(now=2.01)
    assert subject.limit == start // 2
    subject.step(demand, is_throttled=True, now=3.0)
    assert subject.limit == start // 2
    limits = run(subject, demand, connection_rate=90e6, cap=1e12, seconds=12, start=3.0)
    steps = [limit for limit, before in zip(limits[1:], limits, strict=False) if limit != before]
    assert steps[0] <= 1.25 * (start // 2) + 1
    assert limits[-1] * 90e6 >= 0.96 * 3 * GBIT_25


def test_throttling_never_goes_below_one_connection() -> None:
    subject = controller(64 * MIB)
    for now in range(100):
        subject.throttled(now=10.0 * now)
    assert subject.limit == 1


def test_the_fleet_starts_ten_requests_a_second_while_throttled() -> None:
    throttle = OriginThrottle(ControllerSettings())
    throttle.throttled(None, now=0.0)
    started = 0
    for millisecond in range(10_000):
        if throttle.may_start(millisecond / 1000):
            throttle.started(4, now=millisecond / 1000)
            started += 4
    assert 92 <= started <= 104


def test_only_a_read_begun_since_shows_that_the_origin_is_back() -> None:
    throttle = OriginThrottle(ControllerSettings())
    throttle.throttled(None, now=10.0)
    throttle.succeeded(started_at=9.0)
    assert throttle.is_on
    throttle.succeeded(started_at=10.5)
    assert not throttle.is_on
    assert throttle.may_start(10.5)
