"""What an operator wants to know before paying for a fleet: how long, how much, against what, and
what to find out first.

The swarm's side is simulated: the fleet of the scenario itself, small fleets of the same kind for
the question how many nodes it takes to pay, and one of moderate size for what each assumption does
(`sensitivity`). Between simulated sizes the ratio to the bound is interpolated over the logarithm
of the number of nodes, beyond the largest it stays. The alternatives are closed forms
(`alternatives`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from simulations.alternatives import (
    Estimate,
    plain_reads,
    prebuilt_volumes,
    shared_file_system,
)
from simulations.cells import Cell, CellResult
from simulations.cost import Cost, Usage
from simulations.prices import Prices
from simulations.scenario import Scenario
from simulations.scenario_file import ScenarioFile
from simulations.sensitivity import Run, Sensitivity, Study
from simulations.trial import FailedRun
from swarm.errors import UsageError

SMALL_WORK = 20_000
"""Chunks times nodes of a run beside the fleet itself: some six seconds."""
SMALL_NODES_LEAST = 8
LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Sizes that are simulated to find where the swarm begins to pay, as far as they are small."""
SCAN_FACTOR, SCAN_LEAST, SCAN_MOST = 4, 1000, 20_000
"""Looked for up to so many times the fleet, within these numbers of nodes, or up to the fleet."""
MARGIN = 0.02
"""Better by less is not better: the seeds differ by as much."""


@dataclass(frozen=True, slots=True)
class SwarmPoint:
    """What a simulated fleet of one size came to."""

    node_count: int
    p50_s: float
    p99_s: float
    last_s: float
    cost: Cost


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The least number of nodes from which on the swarm is faster, and cheaper; None: not up to the
    number that was looked at."""

    time: int | None
    cost: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer."""

    scenario: Scenario
    seed: int
    swarm: SwarmPoint
    # Smaller fleets of the same kind, ascending.
    ladder: tuple[SwarmPoint, ...]
    alternatives: tuple[tuple[Estimate, BreakEven], ...]
    looked_up_to: int
    sensitivity: Sensitivity | None

    @property
    def curve(self) -> SwarmCurve:
        """Of the fleets that were simulated."""
        return SwarmCurve(self.scenario, (*self.ladder, self.swarm))


class Planner:
    """The runs of a plan, and what they say."""

    def __init__(self, read: ScenarioFile, seed: int, command: str) -> None:
        """Raises UsageError where prices of alternatives are missing."""
        if read.alternatives.foreign_prices:
            missing = ", ".join(read.alternatives.foreign_prices)
            raise UsageError(
                f"prices are in {read.prices.currency}, and these are missing: {missing}",
                object_name=missing,
                hint="a default in another currency cannot be compared; write them down",
            )
        self._read = read
        self._seed = seed
        self._command = command
        scenario = read.scenario
        chunks = scenario.version.chunk_count
        count = fetching_count(scenario)
        small = min(count, max(SMALL_WORK // chunks, SMALL_NODES_LEAST))
        self._ladder = [nodes for nodes in LADDER if nodes <= small and nodes < count]
        self._study = Study(with_nodes(scenario, small), seed)

    def cells(self) -> list[Cell]:
        """The fleet itself, the ladder, the sensitivity analysis."""
        scenario, seed = self._read.scenario, self._seed
        wanted = [(scenario, seed)]
        wanted += [(with_nodes(scenario, nodes), seed) for nodes in self._ladder]
        wanted += self._study.runs()
        return [Cell(one, its_seed, self._read.prices, self._command) for one, its_seed in wanted]

    def plan(self, results: Sequence[CellResult]) -> Plan:
        """From the cells' results. Raises FailedRun if the fleet itself came to nothing."""
        if not _is_usable(results[0]):
            error = results[0].error or "no node finished: all of them died"
            raise FailedRun(error, self._command)
        scenario, prices = self._read.scenario, self._read.prices
        count = fetching_count(scenario)
        swarm = _point(count, results[0], prices)
        ladder = tuple(
            _point(nodes, result, prices)
            for nodes, result in zip(self._ladder, results[1:], strict=False)
            if _is_usable(result)
        )
        curve = SwarmCurve(scenario, (*ladder, swarm))
        looked_up_to = max(count, SCAN_LEAST, min(SCAN_FACTOR * count, SCAN_MOST))
        alternatives = tuple(
            (estimate, _break_even(curve, make, looked_up_to))
            for make in self.makers()
            if (estimate := make(count)) is not None
        )
        runs = [_run(result, prices) for result in results[1 + len(self._ladder) :]]
        sensitivity = self._study.result(runs, _price_shares(swarm.cost))
        return Plan(scenario, self._seed, swarm, ladder, alternatives, looked_up_to, sensitivity)

    def makers(self) -> list[Callable[[int], Estimate | None]]:
        """Each alternative for any number of nodes."""
        scenario, prices, ways = self._read.scenario, self._read.prices, self._read.alternatives
        return [
            lambda count: plain_reads(with_nodes(scenario, count), ways, prices),
            lambda count: shared_file_system(with_nodes(scenario, count), ways, prices),
            lambda count: prebuilt_volumes(with_nodes(scenario, count), ways, prices),
        ]


class SwarmCurve:
    """Seconds and money of the swarm for any number of nodes."""

    def __init__(self, scenario: Scenario, points: Sequence[SwarmPoint]) -> None:
        """`points` with different numbers of nodes."""
        self._scenario = scenario
        self._points = sorted(points, key=lambda point: point.node_count)
        self._logs = [math.log(point.node_count) for point in self._points]
        self._bounds = [self._bound_s(point.node_count) for point in self._points]

    def last_s(self, node_count: int) -> float:
        ratios = [p.last_s / bound for p, bound in zip(self._points, self._bounds, strict=True)]
        return self._between(ratios, node_count) * self._bound_s(node_count)

    def cost(self, node_count: int) -> Cost:
        """Requests, egress and crossings as between the simulated fleets; waiting per node."""
        points, usages = self._points, [point.cost.usage for point in self._points]
        waits = [
            usage.node_s / point.node_count / bound
            for point, usage, bound in zip(points, usages, self._bounds, strict=True)
        ]
        wait_s = self._between(waits, node_count) * self._bound_s(node_count)
        usage = Usage(
            self._between([usage.origin_requests for usage in usages], node_count),
            self._between([usage.origin_bytes for usage in usages], node_count),
            self._between([usage.cross_zone_bytes for usage in usages], node_count),
            wait_s * node_count,
        )
        return Cost(usage, points[0].cost.prices)

    def _bound_s(self, node_count: int) -> float:
        return with_nodes(self._scenario, node_count).slowest_bound_s

    def _between(self, values: Sequence[float], node_count: int) -> float:
        """Linear over the logarithm of the number of nodes; flat outside."""
        place = math.log(node_count)
        if place <= self._logs[0]:
            return values[0]
        for at in range(1, len(values)):
            low, high = self._logs[at - 1], self._logs[at]
            if place <= high:
                part = (place - low) / (high - low)
                return values[at - 1] + part * (values[at] - values[at - 1])
        return values[-1]


def fetching_count(scenario: Scenario) -> int:
    """Nodes that lack anything at their start."""
    return sum(group.count for group in scenario.groups if group.held_share < 1.0)


def with_nodes(scenario: Scenario, node_count: int) -> Scenario:
    """A fleet of the same kind with so many nodes that fetch, at least one of each group; who holds
    everything already stays as he is."""
    fetching = fetching_count(scenario)
    groups = tuple(
        replace(group, count=max(round(node_count * group.count / fetching), 1))
        if group.held_share < 1.0
        else group
        for group in scenario.groups
    )
    return replace(scenario, groups=groups)


def _break_even(
    curve: SwarmCurve, make: Callable[[int], Estimate | None], looked_up_to: int
) -> BreakEven:
    """From above: what holds for all larger fleets too."""
    time: int | None = None
    cost: int | None = None
    is_faster = is_cheaper = True
    for count in range(looked_up_to, 0, -1):
        other = make(count)
        assert other is not None
        is_faster = is_faster and curve.last_s(count) < other.last_s * (1 - MARGIN)
        is_cheaper = is_cheaper and curve.cost(count).total < other.per_load * (1 - MARGIN)
        time = count if is_faster else time
        cost = count if is_cheaper else cost
        if not is_faster and not is_cheaper:
            break
    return BreakEven(time, cost)


def _is_usable(result: CellResult) -> bool:
    """It came to an end, and somebody was done."""
    return not result.error and result.told["last_s"] is not None


def _point(node_count: int, result: CellResult, prices: Prices) -> SwarmPoint:
    told = result.told
    return SwarmPoint(
        node_count,
        _number(told, "p50_s"),
        _number(told, "p99_s"),
        _number(told, "last_s"),
        Cost(_usage(told), prices),
    )


def _usage(told: Mapping[str, object]) -> Usage:
    total = _number(told, "bytes")
    return Usage(
        _number(told, "origin_requests"),
        _number(told, "origin_copies") * total,
        _number(told, "cross_zone_copies") * total,
        _number(told, "node_s"),
    )


def _run(result: CellResult, prices: Prices) -> Run | None:
    if not _is_usable(result):
        return None
    told = result.told
    cost = Cost(_usage(told), prices).total
    return Run(_number(told, "p50_s"), _number(told, "last_s"), cost)


def _price_shares(cost: Cost) -> dict[str, float]:
    """What the bill consists of, without what is nothing."""
    if not cost.total:
        return {}
    parts = {
        "GPU time": cost.idle_gpus,
        "origin requests": cost.origin_requests,
        "origin egress": cost.origin_egress,
        "bytes between zones": cost.cross_zone,
    }
    return {name: part / cost.total for name, part in parts.items() if part}


def _number(told: Mapping[str, object], key: str) -> float:
    value = told[key]
    assert isinstance(value, int | float), f"{key} is {value!r}"
    return float(value)
