"""The simulator against reality: real agents, a real tracker and a real origin, and the same fleet
simulated with inputs that were measured elsewhere.

The lab's profile (`simulations/profiles/`) comes from `benchmarks.calibration`, which never runs a
cold start of a fleet. Times are those of each agent's trace, from knowing the version to its last
chunk. How far both are apart is printed, passed or not.

**A busy machine.** Agents that do not get a processor are late, and no model of a network can tell.
The kernel counts how long each agent's loop was ready and did not run. Up to `DENIED_SHARE` of a
run that is an agent's own affair; beyond, a run may be longer than predicted by the time denied,
and by nothing else. It may never be shorter.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks.arena import Arena, open_arena, race
from benchmarks.race import work_directory
from benchmarks.race_swarm import Swarm
from benchmarks.scenario import Scenario as LabScenario
from simulations.agreement import Agreement
from simulations.commands.calibrate import profile_words
from simulations.scenario_file import read_scenario
from swarm.capacity.cold_start import VERIFIED, Trace
from swarm.cli.demo_origin import start_directory
from swarm.cli.demo_processes import Children
from tests.support.agreement import (
    denied_s,
    read_finished_traces,
    simulate_beside,
    told,
)
from tests.support.cluster import Cluster
from tests.support.models import M8, write_model

pytestmark = pytest.mark.cluster

SIMULATIONS = Path(__file__).resolve().parents[2] / "simulations"
LAB = SIMULATIONS / "scenarios" / "lab_six.toml"
LIMITED = SIMULATIONS / "scenarios" / "limited_eight.toml"
PROFILE = SIMULATIONS / "profiles" / "lab-2026-12.json"
LIMIT_S = 60.0
DENIED_SHARE = 0.05


def assert_times(agreement: Agreement, within: float, starved_s: float, words: str) -> None:
    """p50 and last; see the module for what a busy machine may add."""
    for name in ("p50", "last"):
        part = agreement.part(name)
        excess_s = max(starved_s - DENIED_SHARE * part.actual, 0.0)
        low, high = part.predicted * (1 - within), part.predicted * (1 + within) + excess_s
        assert low <= part.actual <= high, f"{name} is off\n{words}"


def assert_origin_copies(agreement: Agreement, within: float, words: str) -> None:
    off = agreement.part("origin copies").deviation
    assert off is not None, words
    assert abs(off) <= within, words


class MeteredSwarm(Swarm):
    """Notes what its agents were denied before the cold start: starting them keeps any machine
    busy."""

    def __init__(self) -> None:
        super().__init__(has_traces=True)
        self.denied_before_s = 0.0

    def go(self, arena: Arena) -> None:
        self.denied_before_s = self.denied_s()
        super().go(arena)

    def denied_s(self) -> float:
        return denied_s(process.pid for process in self.node_processes())


@pytest.mark.root
def test_the_lab_takes_as_long_as_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    """Six agents behind cards of 24 Mbit/s, 32 MiB: within 10 %, origin bytes within 2 %."""
    scenario = read_scenario(LAB, profile_words(LAB, PROFILE, None)).scenario
    lab = LabScenario(nodes=6, node_mbit=24, origin_mbit=24, file_mib=32)
    assert lab.file_bytes == scenario.version.total_bytes
    assert lab.nodes == scenario.node_count
    swarm = MeteredSwarm()
    with open_arena(lab, work_directory(lab)) as arena:
        race(swarm, arena, limit_s=LIMIT_S)
        starved_s = swarm.denied_s() - swarm.denied_before_s
        actual = read_finished_traces(swarm.trace_of(arena, name) for name in lab.node_names())
        wire = sum(arena.lab.wire_bytes(name)[1] for name in lab.node_names())
    agreement = simulate_beside(scenario, actual)
    words = told(agreement, starved_s)
    beside = wire / (lab.nodes * lab.file_bytes) - 1
    with capsys.disabled():
        print(f"{words}\n  beside payload: {scenario.links.header_share:.1%} measured for the "
              f"profile, {beside:.1%} of what nodes received here")  # fmt: skip
    assert_times(agreement, 0.10, starved_s, words)
    assert_origin_copies(agreement, 0.02, words)


def test_agents_with_limited_rates_take_as_long_as_simulated(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eight agents on loopback, 4 MiB/s each way by their own limits, an origin of 2 MiB/s: within
    25 %, origin bytes within 5 %, the share of peers within five points."""
    source = write_model(tmp_path / "model", M8)
    work = tmp_path / "work"
    work.mkdir()
    with Children(work / "logs") as children:
        origin = start_directory(children, work, 2 << 20)
        published = cluster.swarm(
            "publish", str(source), "--origin", origin.publish_url, "--name", "model",
            "--tag", "v1", "--chunk-size", "64KiB",
        )  # fmt: skip
        paths = [tmp_path / f"trace{number}.jsonl" for number in range(8)]
        limits = ("--uplink-limit", "4MiB/s", "--downlink-limit", "4MiB/s")
        agents = [
            cluster.start_agent(
                "--channel", "c", "--origin", origin.read_url, "--trace", str(path), *limits
            )
            for path in paths
        ]
        for agent in agents:
            cluster.wait_until(agent.socket.exists, f"{agent.name} answers")
        time.sleep(1.0)  # All have told the tracker, and listen.
        before_s = denied_s(agent.process.pid for agent in agents if agent.process)
        cluster.swarm("channel", "set", "c", "model@v1")
        cluster.wait_ready(agents, str(published["version"]), timeout_s=LIMIT_S)
        starved_s = denied_s(agent.process.pid for agent in agents if agent.process) - before_s
        actual = read_finished_traces(paths)
    # The model's small files come on top of the eight shards.
    size = f"version.size={actual[0].start.total_bytes}B"
    agreement = simulate_beside(read_scenario(LIMITED, (size,)).scenario, actual)
    words = told(agreement, starved_s)
    with capsys.disabled():
        print(words)
    assert_times(agreement, 0.25, starved_s, words)
    assert_origin_copies(agreement, 0.05, words)
    peers = agreement.part("share of peers")
    assert abs(peers.predicted - peers.actual) <= 5.0, words
    assert origin_bytes(actual) <= 1.05 * actual[0].start.total_bytes, words


def origin_bytes(traces: list[Trace]) -> int:
    """Verified chunks that came from there."""
    return sum(
        attempt.bytes
        for trace in traces
        for attempt in trace.attempts
        if attempt.is_origin and attempt.outcome == VERIFIED
    )
