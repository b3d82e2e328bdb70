"""Objectives as people write them."""

from __future__ import annotations

import pytest

from simulations.fleet.slo import Clause, Metric, Slo, parse_slo
from swarm.errors import UsageError

TIMES = {
    Metric.TTFT: [0.1] * 98 + [1.0, 3.0],
    Metric.TPOT: [0.02] * 100,
    Metric.LATENCY: [float(second) for second in range(1, 101)],
}


def test_clauses_and_misses_are_read() -> None:
    slo = parse_slo("ttft p99 < 2 s, latency p95<180ms , misses < 1 %")
    clauses = (Clause(Metric.TTFT, 0.99, 2.0), Clause(Metric.LATENCY, 0.95, 0.18))
    assert slo == Slo(clauses, 0.01)
    assert str(slo) == "ttft p99 < 2 s, latency p95 < 0.18 s, misses < 1 %"
    assert parse_slo("tpot p99.9 < 50ms") == Slo((Clause(Metric.TPOT, 0.999, 0.05),))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not an objective"),
        ("ttft < 2 s", "not an objective"),
        ("ttft p99 > 2 s", "not an objective"),
        ("speed p99 < 2 s", "not an objective: 'speed"),
        ("ttft p99 < 2", "has no unit"),
        ("ttft p99 < 2 GB", "not a duration"),
        ("ttft p99 < 0s", "nothing takes less"),
        ("ttft p100 < 2 s", "no percentile"),
        ("ttft p0 < 2 s", "no percentile"),
        ("misses p99 < 1 %", "not an objective"),
        ("ttft p99 < 2 s, misses < 1", "not a percentage"),
        ("ttft p99 < 2 s, misses < 0 %", "cannot be kept"),
        ("ttft p99 < 2 s, misses < 1 %, misses < 2 %", "bounded twice"),
        ("misses < 1 %", "no request is held to any time"),
        (",".join(["ttft p99 < 2 s"] * 17), "more than 16 clauses"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_slo(text)


def test_a_percentile_is_by_the_nearest_rank() -> None:
    """The 99th of a hundred is the last but one: 1.0 s."""
    assert parse_slo("ttft p99 < 1.1 s").broken(TIMES, 0.0) == []
    assert parse_slo("ttft p99 < 1 s").broken(TIMES, 0.0) == ["ttft p99 < 1 s"]
    assert parse_slo("latency p95 < 96 s").broken(TIMES, 0.0) == []
    assert parse_slo("latency p95 < 95 s").broken(TIMES, 0.0) == ["latency p95 < 95 s"]


def test_misses_are_bounded_from_above() -> None:
    slo = parse_slo("ttft p50 < 2 s, misses < 1 %")
    assert slo.broken(TIMES, 0.0099) == []
    assert slo.broken(TIMES, 0.01) == ["misses < 1 %"]
    assert parse_slo("ttft p50 < 2 s, ttft p99 < 3 s").limit_s(Metric.TTFT) == 2.0
    assert slo.limit_s(Metric.TPOT) is None
