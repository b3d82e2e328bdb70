"""The virtual world itself: its arithmetic where the answer is known."""

from __future__ import annotations

import pytest

from swarm.policy.settings import NodeSettings
from tests.support.virtual_network import Clock, Flow, Network, Port
from tests.support.virtual_swarm import Scenario, VirtualSwarm


def flow(
    ends: dict[str, float], name: str, clock: Clock, source: Port, target: Port, *, origin: bool
) -> Flow:
    def done() -> None:
        ends[name] = clock.now

    return Flow(source, target, 100.0, float("inf"), origin, done, None, 0.0)


def test_actions_run_in_the_order_of_their_time_then_of_scheduling() -> None:
    clock, seen = Clock(), []
    clock.at(2.0, lambda: seen.append("b"))
    clock.at(1.0, lambda: seen.append("a"))
    clock.at(2.0, lambda: seen.append("c"))
    clock.at(-1.0, lambda: seen.append("now"))
    while clock.step(2.0):
        pass
    assert seen == ["now", "a", "b", "c"]
    assert not clock.step(1.0)


def test_two_flows_share_a_port_and_the_second_speeds_up_when_the_first_ends() -> None:
    """100 bytes each at 10 bytes/s: the first alone for 5 s, both for 10 s, the second for 5 s."""
    clock = Clock()
    network = Network(clock)
    source = Port(10.0)
    ends: dict[str, float] = {}
    network.start(flow(ends, "first", clock, source, Port(100.0), origin=False))
    late = flow(ends, "second", clock, source, Port(100.0), origin=False)

    def start_late() -> None:
        network.start(late)

    clock.at(5.0, start_late)
    while clock.step(100.0):
        pass
    assert ends == {"first": pytest.approx(15.0), "second": pytest.approx(20.0)}


def test_peer_flows_get_what_origin_flows_leave() -> None:
    clock = Clock()
    network = Network(clock)
    target = Port(10.0)
    ends: dict[str, float] = {}
    network.start(flow(ends, "origin", clock, Port(4.0), target, origin=True))
    peer = network.start(flow(ends, "peer", clock, Port(100.0), target, origin=False))
    assert peer.bytes_per_s == 6.0
    network.resize(target, 20.0)
    assert peer.bytes_per_s == 16.0
    network.stop(peer)
    while clock.step(100.0):
        pass
    assert ends == {"origin": pytest.approx(25.0)}


def test_a_run_repeats_exactly_and_another_seed_differs() -> None:
    scenario = Scenario(5, 40)
    first = VirtualSwarm(scenario).run(100.0)
    assert VirtualSwarm(scenario).run(100.0) == first
    assert VirtualSwarm(Scenario(5, 40, seed=2)).run(100.0) != first


def test_one_node_alone_takes_the_bound() -> None:
    scenario = Scenario(1, 96, has_tracker=False, settings=NodeSettings(has_tracker=False))
    outcome = VirtualSwarm(scenario).run(2 * scenario.bound_s)
    assert outcome.last_ratio == pytest.approx(1.0, abs=0.01)
    assert outcome.origin_copies == 1.0


def test_an_unfinished_swarm_has_no_ratio() -> None:
    scenario = Scenario(2, 40)
    outcome = VirtualSwarm(scenario).run(0.1)
    assert outcome.unfinished_count == 2
    assert outcome.last_ratio == float("inf")
