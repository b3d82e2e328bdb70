"""The command line of the race, and what it derives from its results."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks.arena import Result
from benchmarks.race import control_ms_per_chunk, main
from benchmarks.scenario import Scenario


def result(cpu_s: float) -> Result:
    return Result("swarm", 12, p50_ratio=1.1, last_ratio=1.1, origin_copies=1.0, cpu_s=cpu_s)


def test_control_cpu_is_the_difference_over_the_difference_in_chunks() -> None:
    """96 MiB are 1,536 chunks of 64 KiB or 384 of 256 KiB; 12 nodes x 1,152 chunks x 0.5 ms."""
    scenario = Scenario(nodes=12, node_mbit=64, origin_mbit=64, file_mib=96)
    derived = control_ms_per_chunk(result(cpu_s=10 + 12 * 1152 * 0.0005), result(10), scenario)
    assert derived == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--systems", "swarm,aria2"], "aria2"),
        (["--nodes", "0"], "positive"),
        (["--chunk-size", "large"], "large"),
    ],
)
def test_a_bad_option_is_named(arguments: list[str], message: str) -> None:
    outcome = CliRunner().invoke(main, arguments)
    assert outcome.exit_code == 2
    assert message in outcome.output
