"""The tracker's benchmark measures what it says; how long anything took is not judged here."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tracker_storm import percentiles, run_storm

pytestmark = pytest.mark.cluster


async def test_every_agent_is_measured_in_every_phase(tmp_path: Path) -> None:
    agents, steady_s = 6, 3.5
    found = await run_storm(tmp_path, agents, 100, start_s=1.5, steady_s=steady_s)
    phases = {name: found[name] for name in ("start", "steady", "restart")}
    for name, phase in phases.items():
        assert isinstance(phase, dict)
        assert phase["requests"] >= agents, name
        assert phase["cpu_ms_per_request"] >= 0
        assert phase["rss_mib"] > 10
    assert isinstance(found["start"], dict)
    assert isinstance(found["steady"], dict)
    assert isinstance(found["restart"], dict)
    assert found["start"]["report_ms"]["count"] >= agents
    # The channel moved each second, and every move reached everybody.
    assert found["steady"]["event_to_listener_ms"]["count"] == agents * int(steady_s)
    assert found["steady"]["failed_calls"] == 0
    assert found["restart"]["report_ms"]["count"] >= agents, "all came back"


def test_percentiles_are_of_what_was_seen() -> None:
    assert percentiles([]) == {"count": 0}
    assert percentiles([0.1]) == {"count": 1, "p50": 100.0, "p99": 100.0, "max": 100.0}
    hundred = [number / 1000 for number in range(101)]
    assert percentiles(hundred) == {"count": 101, "p50": 50.0, "p99": 99.0, "max": 100.0}
