"""Whole runs where the answer is known, and that a run depends on its seed alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from simulations.cluster import Cluster
from simulations.scenario import (
    ChunkCost,
    LinkShape,
    NodeGroup,
    OriginShape,
    Scenario,
    TrackerShape,
    VersionShape,
)
from tests.support.small_swarm import run_whole, small_group, small_swarm

REPOSITORY = Path(__file__).resolve().parents[2]
GBIT = 125e6


def test_a_run_repeats_exactly_and_another_seed_differs() -> None:
    scenario = small_swarm(small_group(5), chunk_count=40)
    first = run_whole(scenario)
    assert run_whole(scenario) == first
    assert run_whole(scenario, seed=2) != first


def test_hash_seeds_and_processes_change_nothing() -> None:
    program = (
        "from simulations.cluster import Cluster\n"
        "from tests.support.small_swarm import small_group, small_swarm\n"
        "print(repr(Cluster(small_swarm(small_group(40), chunk_count=30), 7).run()))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=REPOSITORY,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for hash_seed in ("0", "1", "77")
    }
    assert len(said) == 1


def test_one_node_alone_takes_the_bound() -> None:
    outcome = run_whole(small_swarm(small_group(1), chunk_count=384, has_tracker=False))
    assert outcome.last_ratio == pytest.approx(1.0, abs=0.01)
    assert outcome.origin_copies == 1.0


def test_a_node_alone_asks_once_for_several_small_chunks() -> None:
    """And waits for one first byte where it would have waited for many."""
    scenario = small_swarm(
        small_group(1, nic_factor=100), chunk_count=4096, has_tracker=False, origin_nics=100
    )
    assert scenario.origin is not None
    slow = replace(scenario.origin, first_byte_s_min=0.065, first_byte_s_max=0.065)
    outcome = run_whole(replace(scenario, origin=slow))
    assert outcome.origin_copies == 1.0
    assert outcome.origin_requests < 4096 / 10
    one_by_one_s = 4096 / 8 * (0.065 + scenario.version.chunk_bytes / 90e6)
    assert outcome.seconds[-1] < one_by_one_s / 3


def test_two_equal_nodes_take_the_bound() -> None:
    outcome = run_whole(small_swarm(small_group(2), chunk_count=800))
    assert outcome.last_ratio == pytest.approx(1.0, abs=0.015)


@pytest.mark.parametrize("node_count", [2, 6])
def test_origin_only_takes_as_long_as_all_copies(node_count: int) -> None:
    """N·F/o."""
    scenario = small_swarm(small_group(node_count), chunk_count=300, mode="origin")
    outcome = run_whole(scenario)
    assert outcome.origin_copies == node_count
    whole_s = node_count * scenario.version.total_bytes / 8e6
    assert outcome.seconds[-1] == pytest.approx(whole_s, rel=0.01)
    assert outcome.transfers == node_count * 300


def test_one_slow_seed_and_one_node_take_the_seeds_uplink() -> None:
    groups = small_group(1, held_share=1.0, nic_factor=0.25, name="seed"), small_group(1)
    scenario = small_swarm(*groups, chunk_count=300, origin_nics=None)
    assert scenario.bottleneck(groups[1]) == "seed uplink"
    outcome = run_whole(scenario)
    assert outcome.last_ratio == pytest.approx(1.0, abs=0.01)
    assert outcome.origin_copies == 0.0


def test_one_seed_serves_six_nodes_in_little_more_than_one_copy() -> None:
    """Nodes that ask the seed for the same chunk at the same time cost the rest."""
    groups = small_group(1, held_share=1.0, name="seed"), small_group(6)
    outcome = run_whole(small_swarm(*groups, chunk_count=800, origin_nics=None))
    assert outcome.ratios[0] >= 1.0
    assert outcome.last_ratio <= 1.08


def disk_scenario(write: float = float("inf"), read: float = float("inf")) -> Scenario:
    seed = NodeGroup(1, 8e6, 8e6, name="seed", held_share=1.0, disk_read_bytes_per_s=read)
    nodes = NodeGroup(3, 8e6, 8e6, disk_write_bytes_per_s=write)
    return Scenario(VersionShape(300 * 2**18, 2**18), (seed, nodes))


@pytest.mark.parametrize(
    ("scenario", "bottleneck", "last_max"),
    [
        (disk_scenario(write=2e6), "disk", 1.06),
        (disk_scenario(read=2e6), "seed uplink", 1.06),
        (disk_scenario(), "receiver NIC", 1.14),
        (small_swarm(chunk_count=300, origin_nics=0.5), "origin", 1.04),
    ],
)
def test_the_bottleneck_is_named_and_sets_the_time(
    scenario: Scenario, bottleneck: str, last_max: float
) -> None:
    assert scenario.bottleneck(scenario.groups[-1]) == bottleneck
    outcome = run_whole(scenario)
    assert outcome.ratios[0] >= 0.995
    assert outcome.last_ratio <= last_max


def test_a_processor_that_is_slower_than_the_nic_sets_the_time() -> None:
    """All it waits for are the first leases, eight at most, which share the NIC."""
    scenario = Scenario(
        VersionShape(200 * 2**18, 2**18),
        (small_group(1),),
        origin=OriginShape(64e6),
        chunk_cost=ChunkCost(per_chunk_s=0.1),
    )
    busy_s = 200 * 0.1
    first_s = 8 * 2**18 / 8e6
    assert busy_s + first_s / 8 < run_whole(scenario).seconds[-1] < busy_s + first_s


def test_flow_caps_are_overcome_by_stripes() -> None:
    """A flow gives a twentieth of the NIC, so every session needs several."""
    group = NodeGroup(8, 25 * GBIT, 25 * GBIT, flow_cap_bytes_per_s=1.25 * GBIT)
    version = VersionShape(300 * 2**26, 2**26)
    scenario = Scenario(version, (group,), origin=OriginShape(100 * GBIT))
    assert run_whole(scenario).last_ratio <= 1.08


def test_oversubscribed_racks_and_zones_carry_no_more_than_they_can() -> None:
    """Checked at the end of each run: here the uplinks are the bottleneck, and stay whole."""
    group = NodeGroup(24, 8e6, 8e6, zones=("a", "b"), rack_nodes=4)
    links = LinkShape(rack_bytes_per_s=8e6, zone_bytes_per_s=16e6)
    version = VersionShape(60 * 2**18, 2**18)
    outcome = run_whole(Scenario(version, (group,), links=links, origin=OriginShape(16e6)))
    assert outcome.cross_rack_copies >= 5
    assert outcome.cross_zone_copies >= 0.5


def test_a_slow_tracker_costs_time_and_nothing_else() -> None:
    base = small_swarm(small_group(8))
    slow = Scenario(
        base.version, base.groups, links=base.links, origin=base.origin,
        tracker=TrackerShape(0.02, service_s=0.01),
    )  # fmt: skip
    outcome = run_whole(slow)
    assert outcome.origin_copies == 1.0
    assert run_whole(base).last_ratio <= outcome.last_ratio <= 1.5


def test_a_throttling_origin_is_asked_less_and_read_once() -> None:
    base = small_swarm(small_group(8))
    origin = OriginShape(8e6, requests_per_s=20.0, retry_after_s=1.0)
    outcome = run_whole(Scenario(base.version, base.groups, links=base.links, origin=origin))
    assert outcome.origin_throttled >= 1
    assert outcome.origin_copies <= 1.02


def test_requests_that_hang_are_given_up_and_asked_again() -> None:
    base = small_swarm(small_group(8))
    origin = OriginShape(8e6, hung_share=0.1)
    outcome = run_whole(Scenario(base.version, base.groups, links=base.links, origin=origin))
    assert outcome.origin_hung >= 3
    assert outcome.origin_copies == 1.0


def test_an_unfinished_swarm_has_no_ratio() -> None:
    outcome = Cluster(small_swarm(small_group(2), chunk_count=40)).run(0.1)
    assert outcome.unfinished_count == 2
    assert outcome.last_ratio == float("inf")
