"""Three zones in virtual time, by the real policies: what crosses, and how long it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulations.faults import TrackerLoss
from simulations.measure import percentile
from simulations.scenario import (
    LinkShape,
    NodeGroup,
    OriginShape,
    Scenario,
    TrackerShape,
    VersionShape,
)
from tests.support.small_swarm import run_whole
from tracker.policy.prices import ZoneCopies

NIC = 25e9 / 8
CHUNK_BYTES = 140_000_000
ZONES = ("a", "b", "c")


def three_zones(count: int, chunks: int) -> Scenario:
    return Scenario(
        VersionShape(chunks * CHUNK_BYTES, CHUNK_BYTES),
        (NodeGroup(count, NIC, NIC, zones=ZONES),),
        links=LinkShape(zone_rtt_s=0.001),
        origin=OriginShape(4 * NIC, connection_bytes_per_s=90e6),
    )


def test_each_chunk_crosses_into_each_further_zone_once() -> None:
    outcome = run_whole(three_zones(24, 150))
    assert 2.0 <= outcome.cross_zone_copies <= 2.05
    assert outcome.origin_copies <= 1.01
    assert percentile(outcome.ratios, 0.99) <= 1.09


def test_zones_may_read_their_own_copies_from_the_origin() -> None:
    scenario = three_zones(24, 100)
    outcome = run_whole(replace(scenario, tracker=TrackerShape(zone_copies=ZoneCopies.ORIGIN)))
    assert outcome.cross_zone_copies <= 0.05
    assert 2.95 <= outcome.origin_copies <= 3.05


def test_a_zone_of_one_node_is_served() -> None:
    scenario = three_zones(12, 60)
    lonely = NodeGroup(1, NIC, NIC, name="lonely", zones=("d",))
    outcome = run_whole(replace(scenario, groups=(*scenario.groups, lonely)))
    assert outcome.cross_zone_copies <= 3.1


@pytest.mark.parametrize("seed", [1, 2])
def test_without_a_tracker_zones_are_reached_across_in_bounds(seed: int) -> None:
    """24 nodes without the rule would cross about sixteen times."""
    scenario = three_zones(24, 60)
    outcome = run_whole(replace(scenario, tracker=None), seed)
    assert outcome.cross_zone_copies <= 4.0


def test_a_tracker_that_is_lost_on_the_way_costs_few_crossings() -> None:
    scenario = three_zones(24, 100)
    outcome = run_whole(replace(scenario, faults=(TrackerLoss(1.0, 20.0),)))
    assert outcome.cross_zone_copies <= 4.0
