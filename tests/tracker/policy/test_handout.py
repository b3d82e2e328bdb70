"""Who is told of whom."""

from __future__ import annotations

import random

import pytest

from swarm.protocol.ids import NodeId
from tests.support.tracker_fleet import Fleet
from tracker.policy.handout import Handouts
from tracker.policy.settings import HandoutSettings


def node(number: int) -> NodeId:
    return NodeId(number.to_bytes(16, "big"))


def graph(count: int, *, zones: int = 1) -> Handouts:
    handouts = Handouts(HandoutSettings(), random.Random(3))
    for number in range(count):
        handouts.join(node(number), f"z{number % zones}")
    return handouts


def reached(handouts: Handouts, count: int) -> int:
    """Agents in the largest part of the graph that the first one sees."""
    edges: dict[NodeId, set[NodeId]] = {node(number): set() for number in range(count)}
    for number in range(count):
        for other in handouts.told(node(number)):
            edges[node(number)].add(other)
            edges[other].add(node(number))
    seen, todo = {node(0)}, [node(0)]
    while todo:
        for other in edges[todo.pop()] - seen:
            seen.add(other)
            todo.append(other)
    return len(seen)


def test_up_to_33_agents_everybody_knows_everybody() -> None:
    handouts = graph(33)
    assert all(handouts.degree(node(number)) == 32 for number in range(33))


def test_each_edge_is_dialled_from_one_end() -> None:
    handouts = graph(33)
    told = sum(len(handouts.told(node(number))) for number in range(33))
    assert told == 33 * 32 // 2


def test_a_large_graph_has_a_mean_degree_of_k_and_is_connected() -> None:
    handouts = graph(1000)
    degrees = [handouts.degree(node(number)) for number in range(1000)]
    assert 15 <= sum(degrees) / 1000 <= 18
    assert min(degrees) >= 8
    assert max(degrees) <= 48
    assert reached(handouts, 1000) == 1000


def test_zones_are_preferred_and_stay_connected() -> None:
    handouts = graph(300, zones=3)
    inside = outside = 0
    for number in range(40, 300):
        for other in handouts.told(node(number)):
            is_inside = int.from_bytes(other, "big") % 3 == number % 3
            inside, outside = inside + is_inside, outside + (not is_inside)
    assert inside > 2 * outside
    assert outside > 0
    assert reached(handouts, 300) == 300


def test_who_loses_neighbours_gets_others() -> None:
    handouts = graph(200)
    for number in range(160):
        handouts.leave(node(number))
    assert all(handouts.degree(node(number)) >= 8 for number in range(160, 200))


def test_an_agent_that_cannot_reach_another_is_given_a_new_one() -> None:
    handouts = graph(200)
    useless = handouts.told(node(150))[0]
    for _ in range(10):
        handouts.replace(node(150), useless)
    assert useless not in handouts.told(node(150))
    assert handouts.degree(node(150)) >= 7


def racks(count: int, size: int, *, zones: int = 1) -> Handouts:
    """Racks that come up one agent after the other in turn; as many of each name as zones."""
    handouts = Handouts(HandoutSettings(), random.Random(3))
    rack_count = count // size
    for number in range(count):
        rack = number % rack_count
        handouts.join(node(number), f"z{rack % zones}", f"r{rack // zones}")
    return handouts


def edges(handouts: Handouts, number: int, count: int) -> list[int]:
    """Whom an agent dials or is dialled by."""
    dials = [int.from_bytes(other, "big") for other in handouts.told(node(number))]
    return dials + [other for other in range(count) if node(number) in handouts.told(node(other))]


@pytest.mark.parametrize(("size", "outside"), [(2, 14), (4, 10), (16, 4), (40, 4)])
def test_an_agent_knows_its_whole_rack_and_some_others(size: int, outside: int) -> None:
    count = 400
    handouts = racks(count, size)
    rack_count = count // size
    strangers = 0
    for number in range(count):
        known = edges(handouts, number, count)
        mates = [other for other in known if other % rack_count == number % rack_count]
        assert len(set(mates)) == size - 1
        assert len(known) - len(mates) >= 2
        strangers += len(known) - len(mates)
    # The first 33 know each other, whatever their rack.
    assert outside <= strangers / count <= outside + 5
    assert reached(handouts, count) == count


def test_racks_of_two_zones_with_one_name_are_two() -> None:
    handouts = racks(64, 16, zones=2)
    known = edges(handouts, 63, 64)
    assert {other for other in range(64) if other % 4 == 3} - {63} <= set(known)
    assert not {other for other in range(36, 64) if other % 4 == 1} & set(known[:15])


def test_a_large_rack_leaves_room_for_others() -> None:
    handouts = racks(200, 100)
    for number in range(33, 200):
        told = [int.from_bytes(other, "big") for other in handouts.told(node(number))]
        mates = [other for other in told if other % 2 == number % 2]
        assert len(mates) <= 40
        assert len(told) > len(mates)


def test_a_rack_takes_no_places_of_others() -> None:
    """Those that come when the first are a full mesh find a place with them."""
    for size in (1, 16):
        handouts = racks(64, size)
        assert reached(handouts, 64) == 64


def test_who_loses_its_rack_gets_others() -> None:
    handouts = racks(400, 16)
    last = 307
    for number in range(last % 25, 400, 25):
        if number != last:
            handouts.leave(node(number))
    assert handouts.degree(node(last)) >= 8


def test_dead_agents_are_handed_out_to_nobody() -> None:
    """Thirty agents die without a word; the last one hears of nobody, as an empty list too
    replaces the former."""
    fleet = Fleet(chunks=1)
    for number in range(30):
        fleet.joined(f"n{number:02}", "#")
    last = fleet.joined("last", "#")
    assert len(last.handout) == 30
    fleet.live(20.0, last)
    assert last.handout == ()


def test_another_address_is_told_to_those_who_know_the_old_one() -> None:
    fleet = Fleet(chunks=1)
    a = fleet.joined("a", "#")
    b = fleet.joined("b", "#")
    assert b.handout == ("a",)
    a.name = "moved"
    a.report()
    b.listen()
    assert b.handout == ("moved",)
