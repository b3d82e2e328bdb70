"""The NIC rate: what is believed at once, what is learned, and how fast it is forgotten."""

from __future__ import annotations

from swarm.policy.nic import GIGABIT_BYTES_PER_S, NicEstimate


def feed(nic: NicEstimate, rates: list[float], *, since: float = 0.0) -> None:
    """Half-second windows at these rates, all busy, after a moment of rest."""
    total = 0
    nic.sample(total, 0, is_busy=False, now=since)
    for index, rate in enumerate(rates, start=1):
        total += int(rate / 2)
        nic.sample(total, 0, is_busy=True, now=since + index / 2)


def test_a_given_rate_is_believed_at_once() -> None:
    nic = NicEstimate(5e6, 1e9)
    feed(nic, [1e9] * 10)
    assert nic.is_known
    assert nic.bytes_per_s == 5e6


def test_link_speed_is_only_an_upper_bound_of_the_first_guess() -> None:
    assert NicEstimate(0, 0).bytes_per_s == GIGABIT_BYTES_PER_S
    assert NicEstimate(0, 10e9).bytes_per_s == GIGABIT_BYTES_PER_S
    assert NicEstimate(0, 1e6).bytes_per_s == 1e6


def test_the_guess_rises_at_once_and_falls_after_three_busy_seconds() -> None:
    nic = NicEstimate(0, 1e6)
    feed(nic, [8e6])
    assert nic.bytes_per_s == 8e6
    assert not nic.is_known
    slow = NicEstimate(0, 1e9)
    feed(slow, [8e6] * 5)
    assert slow.bytes_per_s == GIGABIT_BYTES_PER_S
    feed(slow, [8e6] * 2, since=10.0)
    assert slow.is_known
    assert slow.bytes_per_s == 8e6


def test_a_known_rate_falls_after_ten_slower_busy_seconds() -> None:
    nic = NicEstimate(0, 0)
    feed(nic, [8e6] * 6)
    feed(nic, [4e6] * 19, since=100.0)
    assert nic.bytes_per_s == 8e6
    feed(nic, [4e6], since=200.0)
    assert nic.bytes_per_s == 4e6


def test_idle_time_teaches_nothing() -> None:
    nic = NicEstimate(0, 0)
    nic.sample(0, 0, is_busy=True, now=0.0)
    nic.sample(10_000_000, 0, is_busy=False, now=5.0)
    nic.sample(10_000_000, 0, is_busy=True, now=5.4)
    nic.sample(10_000_000, 4_000_000, is_busy=True, now=5.5)
    assert nic.bytes_per_s == GIGABIT_BYTES_PER_S


def test_sending_counts_as_much_as_receiving() -> None:
    nic = NicEstimate(0, 1e6)
    nic.sample(0, 0, is_busy=True, now=0.0)
    nic.sample(1_000, 4_000_000, is_busy=True, now=0.5)
    assert nic.bytes_per_s == 8e6
