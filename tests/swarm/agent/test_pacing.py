"""Pre-send points and wake-ups, by the numbers."""

from __future__ import annotations

import pytest

from swarm.agent.pacing import LOWAT_BYTES_MAX, PRESEND_BYTES_MIN, Pace

KIB = 1 << 10
MIB = 1 << 20


def pace(rate: float, rtt_s: float = 0.0) -> Pace:
    made = Pace()
    made.saw_rtt(rtt_s)
    made.saw_payload(int(rate), 1.0)
    return made


def test_small_chunk_is_followed_at_its_header() -> None:
    assert Pace().presend_bytes(512 * KIB, 1) == 512 * KIB


def test_two_round_trips_before_the_end_of_a_large_chunk() -> None:
    assert pace(100e6, rtt_s=0.02).presend_bytes(64 * MIB, 1) == 4_000_000
    assert pace(100e6, rtt_s=0.02).presend_bytes(64 * MIB, 2) == 8_000_000


def test_unknown_rate_still_asks_before_the_end() -> None:
    assert Pace().presend_bytes(64 * MIB, 1) == PRESEND_BYTES_MIN


def test_tiny_round_trip_counts_as_a_turn_of_the_peers_loop() -> None:
    assert pace(1e9, rtt_s=1e-5).presend_bytes(64 * MIB, 1) == 2_000_000


@pytest.mark.parametrize(
    ("rate", "left", "presend", "lowat"),
    [
        (1e9, 64 * MIB, 2 * MIB, LOWAT_BYTES_MAX),
        # The end, and the pre-send point, come first.
        (1e9, 100 * KIB, 0, 100 * KIB),
        (1e9, 164 * KIB, 64 * KIB, 100 * KIB),
        # Past the point there is nothing to be awake for.
        (1e9, 64 * KIB, 64 * KIB, 4 * KIB),
        # 50 ms of a slow link.
        (1e6, 64 * MIB, 0, 50_000),
        (1.0, 64 * MIB, 0, 1),
        # Not measured yet.
        (0.0, 64 * MIB, 0, LOWAT_BYTES_MAX),
    ],
)
def test_wake_ups(rate: float, left: int, presend: int, lowat: int) -> None:
    assert pace(rate).lowat_bytes(left, presend) == lowat


def test_least_round_trip_and_recent_rates_count() -> None:
    made = pace(100.0, rtt_s=0.02)
    made.saw_rtt(0.5)
    made.saw_payload(300, 1.0)
    made.saw_payload(5, 0.0)
    assert (made.rtt_s, made.rate) == (0.02, 200.0)
