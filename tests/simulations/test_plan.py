"""Plans: times against closed forms, the bottleneck, when direct is as fast, from how many nodes on
a swarm pays, and what moves the answer most."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from simulations.assumptions import assumptions
from simulations.cells import CellResult, run_cell
from simulations.cost import Cost, Usage
from simulations.main import main
from simulations.plan import Plan, Planner, SwarmCurve, SwarmPoint, with_nodes
from simulations.plan_report import direct_is_as_fast, plan_document, plan_lines
from simulations.prices import Prices
from simulations.scenario import ChunkCost, NodeGroup, OriginShape, Scenario, VersionShape
from simulations.scenario_file import ScenarioFile, parse_scenario
from simulations.sensitivity import BASE_SEEDS, Run, Study
from simulations.toml_table import Document
from simulations.trial import FailedRun, simulate
from swarm.errors import UsageError

SCENARIOS = Path(__file__).resolve().parents[2] / "simulations" / "scenarios"
CHUNK_BYTES = 2**18
NIC = 8e6

FEW_NODES = """\
[version]
size = "{size}"
chunks = {chunks}

[[nodes]]
count = {count}
nic = "10Gbit/s"

[origin]
rate = "{origin}"
connection = "90MB/s"
first_byte = ["30ms", "100ms"]
"""


def few_nodes(
    count: int, size: str = "2GB", chunks: int = 40, origin: str = "100Gbit/s"
) -> ScenarioFile:
    text = FEW_NODES.format(size=size, chunks=chunks, count=count, origin=origin)
    return parse_scenario(Document(text, "plan.toml"))


def plan_without_sensitivity(read: ScenarioFile) -> Plan:
    planner = Planner(read, read.seed, "")
    cells = planner.cells()
    ladder = len(cells) - len(Study(read.scenario, read.seed).runs())
    results = [run_cell(cell) for cell in cells[:ladder]]
    return planner.plan(results + [CellResult({}, "not run")] * (len(cells) - ladder))


def node(count: int = 1, up: float = NIC, down: float = NIC, **others: float) -> NodeGroup:
    write = others.get("disk", math.inf)
    return NodeGroup(count, up, down, disk_write_bytes_per_s=write)


def seed(up: float) -> NodeGroup:
    return NodeGroup(1, up, NIC, name="seed", held_share=1.0)


@pytest.mark.parametrize(
    ("groups", "origin", "chunk_count", "seconds_per_byte", "bottleneck"),
    [
        ((node(1),), 10 * NIC, 400, 1 / NIC, "receiver NIC"),
        ((node(2),), 2 * NIC, 800, 1 / NIC, "receiver NIC"),
        ((node(4),), NIC / 4, 400, 4 / NIC, "origin"),
        ((seed(NIC / 4), node(1)), None, 400, 4 / NIC, "seed uplink"),
        ((seed(NIC / 4), node(2)), None, 1600, 4 / NIC, "seed uplink"),
        ((node(2, disk=NIC / 4),), 2 * NIC, 400, 4 / NIC, "disk"),
    ],
    ids=["one node", "two nodes", "origin", "seed to one", "seed to two", "disk"],
)
def test_closed_forms_are_met_and_the_bottleneck_is_named(
    groups: tuple[NodeGroup, ...],
    origin: float | None,
    chunk_count: int,
    seconds_per_byte: float,
    bottleneck: str,
) -> None:
    """Within 1 %."""
    version = VersionShape(chunk_count * CHUNK_BYTES, CHUNK_BYTES)
    shape = OriginShape(origin) if origin is not None else None
    scenario = Scenario(version, groups, origin=shape)
    outcome = simulate(scenario, 1, "")
    closed_s = version.total_bytes * seconds_per_byte
    assert outcome.seconds[-1] == pytest.approx(closed_s, rel=0.01)
    assert scenario.bottleneck(groups[-1]) == bottleneck


def test_a_chain_takes_a_chunk_more_for_each_link() -> None:
    """A seed whose uplink carries each chunk once, to one of two nodes that passes it on."""
    version = VersionShape(3200 * CHUNK_BYTES, CHUNK_BYTES)
    scenario = Scenario(version, (seed(NIC), node(2)))
    closed_s = (version.total_bytes + CHUNK_BYTES) / NIC
    assert simulate(scenario, 1, "").seconds[-1] == pytest.approx(closed_s, rel=0.01)


@cache
def plan_of_two() -> Plan:
    return plan_without_sensitivity(few_nodes(2))


@pytest.mark.parametrize("written", ["10Gbit", "10Gb/s", "1.25GB/s", "1.164GiB/s"])
def test_one_rate_in_four_units_is_one_plan(written: str) -> None:
    text = FEW_NODES.format(size="2GB", chunks=40, count=2, origin="100Gbit/s")
    read = parse_scenario(Document(text.replace('"10Gbit/s"', f'"{written}"'), "plan.toml"))
    plan = plan_without_sensitivity(read)
    expected = plan_of_two()
    assert plan.swarm.last_s == pytest.approx(expected.swarm.last_s, rel=0.001)
    assert plan.swarm.cost.total == pytest.approx(expected.swarm.cost.total, rel=0.001)
    assert "GB = 10^9 bytes" in plan_lines(plan)[0]


@pytest.mark.parametrize("written", ["10G", "10g", "0", "-1", "1e9"])
def test_a_rate_that_is_none_is_refused(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = SCENARIOS / "does_not_pay.toml"
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(path), f"--set=nodes.0.nic={written}"])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "E_USAGE: --set nodes[0].nic: " in said.err


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(("size", "chunks"), [("1MB", 4), ("10GB", 400)])
def test_direct_is_as_fast_where_the_origin_is_faster_than_all_nics(
    count: int, size: str, chunks: int
) -> None:
    plan = plan_without_sensitivity(few_nodes(count, size, chunks))
    assert direct_is_as_fast(plan)
    assert "direct is as fast: the swarm does not pay in time here" in plan_lines(plan)
    assert plan_document(plan)["direct_is_as_fast"] is True


def test_direct_is_not_as_fast_where_the_origin_is_as_slow_as_a_nic() -> None:
    plan = plan_without_sensitivity(few_nodes(3, "10GB", 100, origin="10Gbit/s"))
    assert not direct_is_as_fast(plan)
    assert not any("direct is as fast" in line for line in plan_lines(plan))
    (plain, pays), *_ = plan.alternatives
    assert plain.name == "plain S3"
    assert plain.limited_by == "origin"
    assert pays.time in (2, 3)


def test_the_break_even_is_where_the_simulated_swarm_passes_plain_reads() -> None:
    """Ten NICs feed ten plain readers; the ladder's fleets beside it say the same."""
    read = few_nodes(24, "10GB", 100)
    plan = plan_without_sensitivity(read)
    (plain, pays), *_ = plan.alternatives
    assert pays.time is not None
    assert 10 <= pays.time <= 14
    planner = Planner(read, 1, "")
    (make, *_) = planner.makers()
    for point in (*plan.ladder, plan.swarm):
        other = make(point.node_count)
        assert other is not None
        is_faster = point.last_s < other.last_s
        assert is_faster == (point.node_count >= pays.time), point.node_count
    assert plain.usage.origin_bytes == 24 * 10e9


def test_between_simulated_fleets_the_ratio_is_interpolated() -> None:
    scenario = few_nodes(16).scenario
    bound_s = scenario.slowest_bound_s
    points = [
        SwarmPoint(count, 0.0, 0.0, ratio * bound_s, Cost(Usage(100, 2e9, 0, count), Prices()))
        for count, ratio in ((4, 1.2), (16, 1.4))
    ]
    curve = SwarmCurve(scenario, points)
    for count, ratio in ((1, 1.2), (4, 1.2), (8, 1.3), (16, 1.4), (100, 1.4)):
        bound_s = with_nodes(scenario, count).slowest_bound_s
        assert curve.last_s(count) == pytest.approx(ratio * bound_s), count
    assert curve.cost(8).usage.node_s == pytest.approx(8.0)
    assert curve.cost(8).usage.origin_bytes == 2e9


def test_a_smaller_fleet_keeps_its_kinds_and_its_seeds() -> None:
    groups = (node(60), replace(node(20), name="fast"), seed(NIC))
    version = VersionShape(100 * CHUNK_BYTES, CHUNK_BYTES)
    small = with_nodes(Scenario(version, groups), 8)
    assert [group.count for group in small.groups] == [6, 2, 1]
    assert [group.count for group in with_nodes(small, 1).groups] == [1, 1, 1]


def test_effects_are_ranked_and_prices_need_no_run() -> None:
    study = Study(few_nodes(8).scenario, 1)
    runs = study.runs()
    results: list[Run | None] = [Run(10.0, 10.0, 100.0)] * len(runs)
    results[1] = Run(10.0, 10.2, 100.0)
    # The first two variants are half and double of the NIC, the next is what nodes are told.
    results[BASE_SEEDS : BASE_SEEDS + 3] = [
        Run(20.0, 20.0, 190.0), Run(5.0, 6.0, 55.0), Run(10.0, 15.0, 110.0),
    ]  # fmt: skip
    results[-1] = None
    found = study.result(results, {"GPU time": 0.9})
    assert found is not None
    assert found.noise == pytest.approx(0.02)
    names = [effect.name for effect in found.effects]
    assert names[:4] == [
        "nodes that die halfway", "NIC", "what nodes are told of their NIC", "price of GPU time",
    ]  # fmt: skip
    nic = found.effects[1]
    assert [change.last for change in nic.changes] == pytest.approx([1.0, -0.4])
    assert [change.cost for change in found.effects[3].changes] == pytest.approx([-0.45, 0.9])
    assert study.result([None] * len(runs), {}) is None


def test_an_assumption_is_varied_alone() -> None:
    scenario = parse_scenario(
        Document((SCENARIOS / "everything_wrong.toml").read_text(), "x.toml")
    ).scenario
    small = few_nodes(4).scenario
    lab = replace(small, chunk_cost=ChunkCost(0.001, 1e9, shared_count=2))
    for one in (scenario, small, lab):
        told = assumptions(one)
        assert len({assumption.name for assumption in told}) == len(told) >= 12
        for assumption in told:
            for variant in assumption.variants:
                changed = [
                    name
                    for name in Scenario.__dataclass_fields__
                    if getattr(variant.scenario, name) != getattr(one, name)
                ]
                expected = 3 if assumption.name == "round trips" else 1
                assert 1 <= len(changed) <= expected, assumption.name
                assert variant.scenario.chunk_cost.shared_count == one.chunk_cost.shared_count


def test_a_plan_is_one_object_and_the_same_for_any_number_of_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = []
    words = ["plan", str(SCENARIOS / "does_not_pay.toml"), "--set=version.chunks=20", "--json"]
    for workers in ("1", "3"):
        plot = tmp_path / f"{workers}.svg"
        with pytest.raises(SystemExit) as ended:
            main([*words, f"--workers={workers}", f"--plot={plot}"])
        assert ended.value.code == 0
        result = json.loads(capsys.readouterr().out)
        assert result.pop("wall_s") > 0
        told.append(json.dumps(result))
    assert told[0] == told[1]
    assert (tmp_path / "1.svg").read_bytes() == (tmp_path / "3.svg").read_bytes()
    result = json.loads(told[0])
    assert result["bottleneck"] == "receiver NIC"
    assert result["direct_is_as_fast"] is True
    assert [one["name"] for one in result["alternatives"]] == [
        "plain S3", "shared file system", "prebuilt volumes",
    ]  # fmt: skip
    effects = result["sensitivity"]["effects"]
    sizes = [max(abs(change["last_s"]) for change in one["changes"]) for one in effects]
    # Equal to a tenth of a per cent counts as equal.
    assert all(later - earlier < 0.001 for earlier, later in pairwise(sizes))
    assert "swarm" in (tmp_path / "1.svg").read_text()


def test_a_fleet_that_does_not_finish_has_no_plan() -> None:
    read = few_nodes(2)
    assert read.scenario.origin is not None
    hung = replace(read.scenario.origin, hung_share=1.0)
    stuck = replace(read, scenario=replace(read.scenario, origin=hung, limit_bounds=3.0))
    with pytest.raises(FailedRun, match="2 nodes are not complete"):
        plan_without_sensitivity(stuck)


def test_prices_in_another_currency_need_those_of_the_alternatives() -> None:
    read = few_nodes(2)
    foreign = replace(read.alternatives, foreign_prices=("alternatives.volumes.price",))
    with pytest.raises(UsageError, match=r"these are missing: alternatives\.volumes\.price"):
        Planner(replace(read, alternatives=foreign), 1, "")
