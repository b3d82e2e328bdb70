"""Cold starts come from the swarm's simulator; the errors of scaling it down are measured here."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from simulations.fleet.cold_starts import ColdStarts
from simulations.main import main
from simulations.scenario import NodeGroup, OriginShape, Scenario, VersionShape
from simulations.scenario_file import read_scenario
from simulations.trial import FailedRun

# 16 GB at 10 Gbit/s; the origin feeds two nodes.
SWARM = Scenario(
    VersionShape(16 * 10**9, 10**8),
    (NodeGroup(1, 1.25e9, 1.25e9),),
    origin=OriginShape(2.5e9, connection_bytes_per_s=90e6, first_byte_s_min=0.03),
)
SLOW_DAY = """\
[version]
size = "16GB"
{chunk_key} = {chunks}

[[nodes]]
count = 1
nic = "10Gbit/s"

[origin]
rate = "20Gbit/s"
"""


@pytest.fixture(scope="module")
def exact() -> ColdStarts:
    """Asked for sizes one by one; each is simulated once for all tests."""
    return ColdStarts(SWARM, 1, chunks_max=100)


def test_more_nodes_at_once_take_longer_but_far_less_than_one_after_the_other(
    exact: ColdStarts,
) -> None:
    one, sixteen = exact.load_times(1)[-1], exact.load_times(16)[-1]
    assert 12.8 <= one < 14.5
    assert one < sixteen < 1.3 * one
    assert len(exact.load_times(16)) == 16


def test_between_two_simulated_sizes_times_are_within_three_per_cent(exact: ColdStarts) -> None:
    cold = ColdStarts(SWARM, 1, chunks_max=100)
    for count in (3, 6, 12):
        asked = cold.load_times(count)
        simulated = exact.simulate(count)
        assert len(asked) == count
        assert asked[-1] == pytest.approx(simulated[-1], rel=0.03)
        assert asked[count // 2] == pytest.approx(simulated[count // 2], rel=0.03)
    assert sorted(cold.simulated) == [2, 4, 8, 16]


@pytest.mark.parametrize("chunk_key", ["chunks", "chunk_size"])
def test_a_swarm_that_cannot_finish_says_how_to_see_it(
    chunk_key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tenth of the nodes' time: nobody is done by then. The command fails in the same way, with
    the chunks that were made larger."""
    path = tmp_path / "day.toml"
    path.write_text(
        SLOW_DAY.format(
            chunks={"chunks": "160", "chunk_size": '"100MB"'}[chunk_key], chunk_key=chunk_key
        )
    )
    settings = ("limit_bounds=0.1",)
    scenario = read_scenario(path, settings).scenario
    cold = ColdStarts(
        scenario, 7, file=str(path), settings=settings, chunk_key=chunk_key, chunks_max=50
    )
    with pytest.raises(FailedRun) as raised:
        cold.load_times(2)
    command = raised.value.object_name
    assert command.startswith(f"swarm-sim run {path} --seed=7 --set=limit_bounds=0.1")
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command)[1:])
    assert ended.value.code == 1
    # The same nodes lack as much; the command looks at its run, so the last instant is another.
    lacking = raised.value.message.partition(" s: ")[2]
    assert "of 50, node 2 (" in lacking
    assert lacking in capsys.readouterr().err


def test_larger_chunks_are_late_by_little_and_never_early() -> None:
    """160 chunks are the file's; with 40 the pipeline takes longer to fill."""
    fine = ColdStarts(SWARM, 1).load_times(8)[-1]
    coarse = ColdStarts(SWARM, 1, chunks_max=40).load_times(8)[-1]
    assert fine <= coarse <= 1.3 * fine


def test_other_groups_stay_as_they_are() -> None:
    """Two running nodes that hold everything: nobody waits for a slow origin."""
    seeded = Scenario(
        SWARM.version,
        (*SWARM.groups, NodeGroup(2, 1.25e9, 1.25e9, name="running", held_share=1.0)),
        origin=OriginShape(1e8),
    )
    assert ColdStarts(seeded, 1, chunks_max=100).load_times(2)[-1] < 20
    alone = Scenario(SWARM.version, SWARM.groups, origin=OriginShape(1e8))
    assert ColdStarts(alone, 1, chunks_max=100).load_times(2)[-1] > 150
