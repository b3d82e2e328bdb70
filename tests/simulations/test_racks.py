"""Racks whose uplink carries a quarter of their NICs, in whole fleets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulations.faults import Crash
from simulations.measure import percentile
from simulations.scenario import NodeGroup, Scenario
from tests.support.small_swarm import NIC_BYTES_PER_S, run_whole, small_group, small_swarm


def racked(
    *groups: NodeGroup, rack_nodes: int = 8, chunk_count: int = 200, has_tracker: bool = True
) -> Scenario:
    """Uplinks of a quarter of what the NICs of a rack come to."""
    scenario = small_swarm(
        *(replace(group, rack_nodes=rack_nodes) for group in groups),
        chunk_count=chunk_count,
        origin_nics=4.0,
        has_tracker=has_tracker,
    )
    rack_bytes_per_s = rack_nodes * NIC_BYTES_PER_S / 4
    return replace(scenario, links=replace(scenario.links, rack_bytes_per_s=rack_bytes_per_s))


def test_racks_end_near_the_bound_and_import_each_chunk_about_once() -> None:
    """Without the rule 3.7 of the bound and 27 imports of each chunk."""
    outcome = run_whole(racked(small_group(32), chunk_count=160))
    assert percentile(outcome.ratios, 0.99) <= 1.15
    assert outcome.origin_copies <= 1.01
    # Each of four racks but the one whose node read it from the origin.
    assert 3.0 <= outcome.cross_rack_copies <= 3.3


def test_racks_need_no_tracker() -> None:
    outcome = run_whole(racked(small_group(40), chunk_count=60, has_tracker=False))
    assert outcome.last_ratio <= 1.35
    assert outcome.cross_rack_copies <= 4.3


@pytest.mark.parametrize(("rack_nodes", "limit"), [(1, 4.8), (3, 2.3)])
def test_tiny_racks_are_no_worse_off(rack_nodes: int, limit: float) -> None:
    """Without the rule 5.0 and 4.2: their uplinks take 3.9 and 1.2 of the bound for what each rack
    lacks. A node that has a rack of its own has no mates, and no rule."""
    outcome = run_whole(racked(small_group(36), rack_nodes=rack_nodes, chunk_count=40))
    assert outcome.last_ratio <= limit
    assert outcome.origin_copies <= 1.01


def test_nodes_without_a_rack_are_served_too() -> None:
    """Without the rule 3.8 and 2.5."""
    racks = racked(small_group(24, name="racks"), chunk_count=60)
    scenario = replace(racks, groups=(*racks.groups, small_group(16, name="loose")))
    in_racks, loose = run_whole(scenario).groups
    assert in_racks.ratios[-1] <= 1.5
    assert loose.ratios[-1] <= 1.9


def test_a_rack_goes_on_when_importers_die() -> None:
    crash = Crash(at_s=1.0, share=0.2, notice_s=2.0, is_replaced=True)
    scenario = replace(racked(small_group(32), chunk_count=80), faults=(crash,))
    outcome = run_whole(scenario)
    assert outcome.origin_copies <= 1.1
