"""Whole swarms of real nodes and a real tracker in virtual time: they finish, near the bound, with
one copy from the origin, whatever breaks.

The small swarm is that of the laboratory: twelve nodes at 64 Mbit/s, chunks of 256 KiB, RTT 1 ms.
Times are simulated; the bound T* contains no latency and no pipeline fill. `NIC` is announced, as
with `--nic-rate`; without it the tracker's first steps are blind.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from swarm.policy.commands import Command
from swarm.policy.events import Event
from swarm.policy.settings import NodeSettings
from swarm.protocol.tracker_api import Mode
from tests.support.virtual_swarm import Outcome, Scenario, VirtualNode, VirtualSwarm

NIC = NodeSettings(nic_bytes_per_s=8e6)
ALONE = NodeSettings(nic_bytes_per_s=8e6, has_tracker=False)
SMALL = Scenario(12, 96, settings=NIC)
Fault = Callable[[VirtualSwarm], None]


def run(scenario: Scenario, *faults: Fault, until: float = 20.0) -> tuple[VirtualSwarm, Outcome]:
    """Run to the end with invariants checked on the way; `until` is in T*."""
    swarm = VirtualSwarm(scenario)
    for fault in faults:
        fault(swarm)
    events = itertools.count(1)

    def check(member: VirtualNode, event: Event, commands: list[Command]) -> None:
        if next(events) % 997 == 0:
            member.node.check_invariants()

    swarm.watch = check
    outcome = swarm.run(until * scenario.bound_s)
    for member in swarm.nodes.values():
        if not member.is_dead:
            member.node.check_invariants()
    return swarm, outcome


def at(when: float, fault: Fault) -> Fault:
    """A fault at a time in T*."""
    return lambda swarm: swarm.clock.at(when * swarm.scenario.bound_s, lambda: fault(swarm))


def kill(*indices: int) -> Fault:
    def fault(swarm: VirtualSwarm) -> None:
        members = list(swarm.nodes.values())
        for index in indices:
            swarm.kill(members[index])

    return fault


@pytest.mark.parametrize(("session_count", "origin_nics"), [(4, 1.0), (4, 4.0), (2, 1.0)])
def test_the_small_swarm_ends_near_the_bound(session_count: int, origin_nics: float) -> None:
    settings = replace(NIC, session_count=session_count)
    scenario = Scenario(12, 384, origin_nics=origin_nics, settings=settings)
    _, outcome = run(scenario)
    assert outcome.last_ratio <= 1.065
    assert outcome.origin_copies == 1.0


@pytest.mark.parametrize("node_count", [1, 2, 3, 5])
def test_swarms_of_a_few_nodes_end_near_the_bound(node_count: int) -> None:
    _, outcome = run(replace(SMALL, node_count=node_count))
    assert outcome.last_ratio <= 1.2
    assert outcome.origin_copies == 1.0


def test_a_larger_swarm_with_sixteen_neighbours_each_finishes() -> None:
    scenario = Scenario(50, 30, origin_nics=4.0, settings=NIC)
    swarm, outcome = run(scenario)
    assert outcome.last_ratio <= 1.1 * outcome.ratios[25], "somebody was starved"
    assert outcome.origin_copies <= 1.02
    degrees = [len(member.links) for member in swarm.nodes.values()]
    assert max(degrees) <= 48
    assert min(degrees) >= 8


def test_nobody_needs_a_nic_rate() -> None:
    _, outcome = run(replace(SMALL, settings=NodeSettings()))
    assert outcome.unfinished_count == 0
    assert outcome.origin_copies == 1.0


def test_nodes_that_die_cost_little() -> None:
    _, outcome = run(SMALL, at(0.3, kill(0, 5)), at(0.6, kill(9)))
    assert outcome.unfinished_count == 0
    assert outcome.last_ratio <= 1.8
    assert outcome.origin_copies <= 1.15


def test_a_slow_node_does_not_slow_the_others() -> None:
    """It needs twenty times as long for itself."""

    def slow(swarm: VirtualSwarm) -> None:
        swarm.boot(nic_factor=0.05)

    swarm, outcome = run(SMALL, slow, until=40.0)
    assert outcome.unfinished_count == 0
    assert outcome.ratios[-2] <= 1.4
    assert outcome.origin_copies <= 1.05
    statistics = [member.node.statistics() for member in swarm.nodes.values()]
    assert sum(node.cut_count for node in statistics) >= 1


def test_a_late_joiner_takes_everything_from_peers() -> None:
    def late(swarm: VirtualSwarm) -> None:
        swarm.boot(delay_s=2 * swarm.scenario.bound_s)

    swarm, outcome = run(SMALL, late)
    assert outcome.unfinished_count == 0
    assert outcome.origin_copies == 1.0
    (newcomer,) = list(swarm.nodes.values())[-1:]
    took_s = newcomer.done_at - swarm.joined_at[newcomer.id]
    assert took_s <= 1.05 * SMALL.bound_s
    statistics = newcomer.node.statistics().versions[0]
    assert statistics.peer_same_zone_bytes == SMALL.total_bytes


def test_one_seed_serves_a_swarm_without_an_origin() -> None:
    settings = replace(NIC, has_origin=False)
    _, outcome = run(replace(SMALL, seed_nodes=1, settings=settings))
    assert outcome.unfinished_count == 0
    assert outcome.last_ratio <= 1.5
    assert outcome.origin_copies == 0.0


def test_a_seed_that_dies_is_replaced_by_the_origin() -> None:
    """The chunks that only it held are leased again."""
    _, outcome = run(replace(SMALL, seed_nodes=1), at(0.5, kill(0)), until=60.0)
    assert outcome.unfinished_count == 0
    assert 0.2 <= outcome.origin_copies <= 0.8


def test_a_lost_tracker_stops_nobody() -> None:
    def lose(swarm: VirtualSwarm) -> None:
        swarm.lose_tracker(1000.0)

    _, outcome = run(SMALL, at(0.3, lose))
    assert outcome.unfinished_count == 0
    assert outcome.last_ratio <= 1.6
    assert outcome.origin_copies <= 1.1


def test_a_tracker_that_comes_back_knows_nothing_and_reads_little_twice() -> None:
    def lose(swarm: VirtualSwarm) -> None:
        swarm.lose_tracker(0.3 * swarm.scenario.bound_s)

    _, outcome = run(SMALL, at(0.3, lose))
    assert outcome.unfinished_count == 0
    assert outcome.origin_copies <= 1.1


@pytest.mark.parametrize("node_count", [2, 8])
def test_without_a_tracker_each_chunk_is_still_read_about_once(node_count: int) -> None:
    _, outcome = run(replace(SMALL, node_count=node_count, has_tracker=False, settings=ALONE))
    assert outcome.last_ratio <= 1.35
    assert outcome.origin_copies <= 1.02


def test_without_a_tracker_the_dead_are_replaced_in_line() -> None:
    scenario = replace(SMALL, node_count=8, has_tracker=False, settings=ALONE)
    _, outcome = run(scenario, at(0.2, kill(0, 1, 2)))
    assert outcome.unfinished_count == 0
    assert outcome.origin_copies <= 1.1


def test_a_peer_that_corrupts_everything_is_dropped() -> None:
    """The others finish; what it does alone is its own affair."""

    def corrupt(swarm: VirtualSwarm) -> None:
        next(iter(swarm.nodes.values())).corrupts = (1 << swarm.scenario.chunk_count) - 1

    swarm, _ = run(SMALL, corrupt)
    bad, *others = swarm.nodes.values()
    assert all(member.done_at < 5 * SMALL.bound_s for member in others)
    assert not any(bad.id in member.links for member in others)
    wasted = sum(member.node.statistics().versions[0].wasted_bytes for member in others)
    assert wasted <= 0.1 * SMALL.total_bytes * SMALL.node_count


def test_damaged_chunks_are_found_repaired_and_served_again() -> None:
    """A seed whose disk lost four chunks hears of it, and they are read from the origin anew."""

    def damage(swarm: VirtualSwarm) -> None:
        victim = next(iter(swarm.nodes.values()))
        victim.corrupts = victim.damaged = 0b1111 << 20

    swarm, outcome = run(replace(SMALL, node_count=5, chunk_count=48, seed_nodes=1), damage)
    assert outcome.unfinished_count == 0
    victim = next(iter(swarm.nodes.values()))
    assert (victim.damaged, victim.corrupts) == (0, 0)
    assert victim.held.bit_count() == 48
    assert outcome.origin_copies == 4 / 48


def test_a_brown_out_of_the_origin_doubles_no_egress() -> None:
    def resize(factor: float) -> Fault:
        return lambda swarm: swarm.network.resize(swarm.origin, swarm.origin.bytes_per_s * factor)

    _, outcome = run(SMALL, at(0.2, resize(0.1)), at(0.5, resize(10.0)))
    assert outcome.unfinished_count == 0
    assert outcome.origin_copies == 1.0


def test_mode_origin_works_without_any_peer() -> None:
    def order(swarm: VirtualSwarm) -> None:
        swarm.tracker.set_mode(Mode.ORIGIN)

    scenario = replace(SMALL, node_count=3, chunk_count=40, origin_nics=4.0)
    _, outcome = run(scenario, at(0.01, order))
    assert outcome.unfinished_count == 0
    assert outcome.origin_copies >= 2.0


@pytest.mark.parametrize("seed", range(3))
def test_everything_at_once_still_ends(seed: int) -> None:
    """Safety under faults, then the rest must finish: slow, dead, late, corrupt, no tracker."""

    def chaos(swarm: VirtualSwarm) -> None:
        members = list(swarm.nodes.values())
        swarm.boot(nic_factor=0.1)
        swarm.boot(delay_s=0.7 * swarm.scenario.bound_s)
        members[3].corrupts = 0b1011 << 7

    def lose(swarm: VirtualSwarm) -> None:
        swarm.lose_tracker(0.5 * swarm.scenario.bound_s)

    scenario = replace(SMALL, node_count=9, chunk_count=64, seed=seed + 10)
    _, outcome = run(scenario, chaos, at(0.2, kill(0)), at(0.5, lose), at(0.9, kill(5)), until=60)
    assert outcome.unfinished_count == 0
    assert outcome.origin_copies <= 1.5
