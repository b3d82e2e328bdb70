"""Shared bandwidth where the answer is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulations.network import Flow, Link, Network
from simulations.timeline import Timeline


class Lab:
    """A network and when its flows ended."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.network = Network(self.timeline, tolerance=0.0)
        self.ends: dict[str, float] = {}

    def flow(
        self,
        name: str,
        *links: Link,
        length: float = 100.0,
        weight: float = 1.0,
        cap: float = float("inf"),
        then: Callable[[], None] = lambda: None,
    ) -> Flow:
        def done() -> None:
            self.ends[name] = self.timeline.now
            then()

        return Flow(links, length, done, weight=weight, cap_per_connection=cap)

    def start(self, *flows: Flow) -> None:
        for flow in flows:
            self.network.start(flow)

    def run(self) -> dict[str, float]:
        while self.timeline.step(1e9):
            pass
        return self.ends


def test_two_flows_share_a_link_and_the_second_speeds_up_when_the_first_ends() -> None:
    """100 bytes each at 10 bytes/s: the first alone for 5 s, both for 10 s, the second for 5 s."""
    lab = Lab()
    source = Link("source", 10.0)
    lab.start(lab.flow("first", source, Link("a", 100.0)))
    lab.timeline.at(5.0, lab.start, lab.flow("second", source, Link("b", 100.0)))
    assert lab.run() == {"first": pytest.approx(15.0), "second": pytest.approx(20.0)}


def test_what_one_flow_cannot_use_goes_to_the_other() -> None:
    """The narrow target takes 2 of 10, the other gets 8."""
    lab = Lab()
    source = Link("source", 10.0)
    lab.start(lab.flow("narrow", source, Link("a", 2.0)), lab.flow("wide", source, Link("b", 50.0)))
    assert lab.run() == {"narrow": pytest.approx(50.0), "wide": pytest.approx(12.5)}


def test_connections_count_as_flows_and_each_has_its_cap() -> None:
    lab = Lab()
    link = Link("link", 10.0)
    lab.start(lab.flow("four", link, length=800.0, weight=4.0), lab.flow("one", link, length=200.0))
    assert lab.run() == {"four": pytest.approx(100.0), "one": pytest.approx(100.0)}
    lab = Lab()
    lab.start(lab.flow("capped", Link("link", 10.0), weight=2.0, cap=1.5))
    assert lab.run() == {"capped": pytest.approx(100 / 3)}


def test_a_link_that_gets_slower_delays_what_is_under_way() -> None:
    lab = Lab()
    link = Link("link", 10.0)
    lab.start(lab.flow("flow", link))
    lab.timeline.at(5.0, lab.network.resize, link, 1.0)
    lab.timeline.at(15.0, lab.network.resize, link, 20.0)
    assert lab.run() == {"flow": pytest.approx(17.0)}
    assert link.capacity_bytes(17.0) == pytest.approx(100.0)


def test_a_link_at_zero_holds_everything_until_it_is_back() -> None:
    lab = Lab()
    link = Link("link", 10.0)
    lab.start(lab.flow("flow", link))
    lab.timeline.at(5.0, lab.network.resize, link, 0.0)
    lab.timeline.at(50.0, lab.network.resize, link, 10.0)
    assert lab.run() == {"flow": pytest.approx(55.0)}


def test_a_stopped_flow_leaves_its_share_and_what_it_carried_is_counted() -> None:
    lab = Lab()
    link = Link("link", 10.0)
    stopped = lab.flow("stopped", link)
    lab.start(stopped, lab.flow("other", link))
    lab.timeline.at(4.0, lab.network.stop, stopped)
    assert lab.run() == {"other": pytest.approx(12.0)}
    assert stopped.received(lab.timeline.now) == 20
    assert link.passed_bytes == pytest.approx(120.0)


def test_the_presend_point_comes_once_and_at_its_place() -> None:
    lab = Lab()
    seen = []
    flow = lab.flow("flow", Link("link", 10.0))
    flow.near_end, flow.near_end_bytes = lambda: seen.append(lab.timeline.now), 30.0
    lab.start(flow)
    assert lab.run() == {"flow": pytest.approx(10.0)}
    assert seen == [pytest.approx(7.0)]


def test_a_successor_at_the_same_instant_changes_no_rate() -> None:
    lab = Lab()
    link = Link("link", 10.0)
    successor = lab.flow("successor", link)
    lab.start(lab.flow("first", link, then=lambda: lab.start(successor)))
    lab.start(lab.flow("long", link, length=1000.0))
    ends = lab.run()
    assert ends["first"] == pytest.approx(20.0)
    assert ends["successor"] == pytest.approx(40.0)
    assert ends["long"] == pytest.approx(120.0)


@pytest.mark.parametrize("hops", [1, 2, 5, 20])
def test_a_chain_takes_the_closed_form(hops: int) -> None:
    """Chunk by chunk along a line of equal links, each node passing on what it has whole:
    (chunks + hops − 1) chunk times."""
    lab = Lab()
    links = [Link(f"hop {hop}", 10.0) for hop in range(hops)]
    chunks = 50
    waiting = [chunks] + [0] * (hops - 1)
    busy = [False] * hops

    def pump(hop: int) -> None:
        if hop < hops and waiting[hop] and not busy[hop]:
            waiting[hop] -= 1
            busy[hop] = True
            lab.start(lab.flow("last", links[hop], length=20.0, then=lambda: passed(hop)))

    def passed(hop: int) -> None:
        busy[hop] = False
        if hop + 1 < hops:
            waiting[hop + 1] += 1
            pump(hop + 1)
        pump(hop)

    pump(0)
    assert lab.run()["last"] == pytest.approx((chunks + hops - 1) * 2.0, rel=1e-6)


@pytest.mark.parametrize(("children", "levels"), [(2, 3), (3, 2)])
def test_a_tree_takes_the_closed_form(children: int, levels: int) -> None:
    """A whole copy goes down level by level, each uplink shared by its children: levels × children
    × F / u."""
    lab = Lab()

    def send_down(level: int) -> None:
        if level == levels:
            return
        up = Link(f"up {level}", 10.0)
        for child in range(children):
            down = Link(f"down {level}.{child}", 10.0)
            lab.start(lab.flow(f"{level}", up, down, then=lambda: send_down(level + 1)))

    send_down(0)
    assert lab.run()[f"{levels - 1}"] == pytest.approx(levels * children * 10.0, rel=1e-6)
