"""The network's incremental rates against exact max-min sharing, computed the slow way."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace

import pytest

from simulations.cluster import Cluster
from simulations.network import TOLERANCE, Flow, Link, Network
from simulations.scenario import Scenario
from simulations.timeline import Timeline
from tests.support.small_swarm import small_group, small_swarm


def exact_rates(flows: list[Flow]) -> dict[int, float]:
    """Progressive filling: raise all rates together, and freeze the flows of each link (or cap)
    that is full. Rates by id of the flow."""
    rates: dict[int, float] = {}
    left = {id(link): link.bytes_per_s for flow in flows for link in flow.links}
    open_flows = list(flows)
    while open_flows:
        weights: dict[int, float] = dict.fromkeys(left, 0.0)
        for flow in open_flows:
            for link in flow.links:
                weights[id(link)] += flow.weight
        levels = {key: left[key] / weight for key, weight in weights.items() if weight}

        def limit(flow: Flow, levels: dict[int, float] = levels) -> float:
            return min(flow.cap_per_connection, *(levels[id(link)] for link in flow.links))

        lowest = min(limit(flow) for flow in open_flows)
        frozen = [flow for flow in open_flows if limit(flow) <= lowest * (1 + 1e-12)]
        for flow in frozen:
            rates[id(flow)] = lowest * flow.weight
            for link in flow.links:
                left[id(link)] = max(left[id(link)] - lowest * flow.weight, 0.0)
        open_flows = [flow for flow in open_flows if id(flow) not in rates]
    return rates


def random_churn(seed: int, tolerance: float) -> list[float]:
    """Errors of all rates, relative to exact ones, after each of many changes in a network of
    NICs, racks and caps."""
    rng = random.Random(seed)
    timeline = Timeline()
    network = Network(timeline, tolerance)
    ups = [Link(f"up {n}", rng.choice([10.0, 40.0])) for n in range(12)]
    downs = [Link(f"down {n}", rng.choice([10.0, 40.0])) for n in range(12)]
    racks = [Link(f"rack {n}", 60.0) for n in range(3)]
    flows: list[Flow] = []
    errors = []
    for _ in range(200):
        if flows and rng.random() < 0.45:
            network.stop(flows.pop(rng.randrange(len(flows))))
        else:
            source, target = rng.sample(range(12), 2)
            links = [ups[source], downs[target]]
            if source % 3 != target % 3:
                links.append(racks[source % 3])
            cap = rng.choice([math.inf, math.inf, 3.0])
            weight = rng.choice([1.0, 1.0, 4.0])
            flow = Flow(tuple(links), 1e9, lambda: None, weight=weight, cap_per_connection=cap)
            flows.append(flow)
            network.start(flow)
        timeline.at(timeline.now + 1e-6, lambda: None)
        while timeline.step(timeline.now + 2e-6):
            pass
        exact = exact_rates(flows)
        errors += [abs(flow.bytes_per_s / exact[id(flow)] - 1) for flow in flows]
    return errors


@pytest.mark.parametrize("seed", range(5))
def test_without_tolerance_rates_are_exactly_fair(seed: int) -> None:
    assert max(random_churn(seed, 0.0)) < 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_the_tolerance_bounds_the_error(seed: int) -> None:
    errors = random_churn(seed, TOLERANCE)
    assert statistics.mean(errors) < TOLERANCE / 4
    assert max(errors) < 5 * TOLERANCE


def uneven_swarm(node_count: int) -> Scenario:
    """Flows of equal weight change each other's rates by more than the tolerance, so that it plays
    no part; these have different ones."""
    even = small_swarm(small_group(node_count), chunk_count=60, origin_nics=4.0)
    return replace(even, links=replace(even.links, unevenness=0.5))


def test_rates_in_a_swarm_are_fair_to_a_hundredth() -> None:
    cluster = Cluster(uneven_swarm(24))
    errors: list[float] = []

    def look() -> None:
        flows = list(dict.fromkeys(f for link in cluster.world.all_links() for f in link.flows))
        exact = exact_rates(flows)
        errors.extend(abs(flow.bytes_per_s / exact[id(flow)] - 1) for flow in flows)

    for tenth in range(1, 20):
        cluster.world.timeline.at(tenth / 10 * cluster.scenario.slowest_bound_s, look)
    cluster.run()
    assert len(errors) > 500
    assert max(errors) > 0
    assert statistics.mean(errors) < TOLERANCE / 4
    assert max(errors) < 5 * TOLERANCE


def test_the_tolerance_does_not_change_what_a_run_says() -> None:
    """Mean time of the last node over five seeds, exact against tolerant."""
    scenario = uneven_swarm(12)

    def last(tolerance: float) -> list[float]:
        runs = [Cluster(scenario, seed, tolerance=tolerance).run() for seed in range(1, 6)]
        return [run.ratios[-1] for run in runs]

    tolerant, exact = last(TOLERANCE), last(0.0)
    assert tolerant != exact
    assert statistics.mean(tolerant) == pytest.approx(statistics.mean(exact), rel=0.015)
