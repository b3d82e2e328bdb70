"""Which policy, which threshold, how many warm: every candidate runs over the same trace.

1. One replica alone tells what it carries (`capacity`), from which each signal's thresholds follow:
   a share of its requests in flight, of its rate, of the promised time to the first token.
2. Every signal runs at every threshold without warm capacity.
3. What does not keep the objective is given warm nodes, and instead a floor of running replicas:
   the fewest of each that do, found by doubling and halving, as long as their standing by alone is
   not a quarter dearer than what keeps it already. A signal that needs neither is run with one warm
   node for comparison.
4. The cheapest that keeps the objective wins. It is tried with other steps of scaling out, and the
   recommendation is challenged: more traffic, slower cold starts, no swarm.

A rule like that can only find what it tries; the table shows all that was tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from simulations.fleet.capacity import Capacity, find_capacity
from simulations.fleet.fleet import Fleet, Setup
from simulations.fleet.nodes import LoadTimes
from simulations.fleet.outcome import FleetPrices, Outcome, measure
from simulations.fleet.requests import Request
from simulations.fleet.scaling import Forecast, Policy, Signal, scheduled
from simulations.fleet.slo import Metric, Slo

ALONE_FACTOR = 4.0
"""Where no time to the first token is promised: so many times that of a request that is alone."""
SIGNALS = (Signal.QUEUE, Signal.LATENCY, Signal.SCHEDULE, Signal.UTILISATION)
"""In the order in which they are tried: what is cheap early saves the search for what is dear."""
STEPS = (1, 2, 4, 8)
WORTH_TELLING = 1.25
"""Times the cheapest: what is within it may be the runner-up."""
CHALLENGE_MORE = 4
"""Warm nodes more than twice the recommendation are another plan, not a correction of this one."""
VAIN_SHARE = 0.99
"""Of the misses left after doubling what was added: it changed nothing."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked."""

    setup: Setup
    requests: Sequence[Request]
    slo: Slo
    prices: FleetPrices
    # For schedules, and for how many replicas there are at the start.
    forecast: Forecast
    signals: tuple[Signal, ...] = SIGNALS
    # Thresholds, as shares of what a replica carries or of what is promised.
    shares: tuple[float, ...] = (0.6, 0.8)
    floor: int = 1
    warm_max: int = 16
    replicas_max: int = 100
    step: int = 4
    interval_s: float = 15.0
    calm_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    policy: Policy
    share: float
    outcome: Outcome

    @property
    def rank(self) -> tuple[bool, float, float]:
        """The lower the better: kept and cheap, else few misses."""
        outcome = self.outcome
        if outcome.is_met:
            return (False, outcome.cost, 0.0)
        return (True, outcome.miss_share, outcome.cost)


@dataclass(frozen=True, slots=True)
class Challenge:
    """The recommendation under another assumption, and what it would then take."""

    what: str
    outcome: Outcome
    # Warm nodes that keep the objective then; None: not as many as `warm_tried`.
    warm: int | None
    warm_tried: int


@dataclass(slots=True)
class Plan:
    """All that was tried, and what came out."""

    case: Case
    capacity: Capacity
    rows: list[Row] = field(default_factory=list)
    best: Row | None = None
    runner_up: Row | None = None
    challenges: list[Challenge] = field(default_factory=list)


def make_plan(case: Case, no_swarm: LoadTimes | None, progress: Progress) -> Plan:
    """`no_swarm`: load times if every node read the origin itself, to tell what the swarm does."""
    return _Planner(case, progress).plan(no_swarm)


class _Planner:
    """Runs candidates and remembers them."""

    def __init__(self, case: Case, progress: Progress) -> None:
        self._case = case
        self._progress = progress
        progress("how much one replica carries")
        self._plan = Plan(case, find_capacity(case.setup, case.requests, case.slo))
        self._run: dict[Policy, Row] = {}

    def plan(self, no_swarm: LoadTimes | None) -> Plan:
        plan = self._plan
        if not plan.capacity.per_s:
            return plan
        bests = [self._best_of(signal) for signal in self._case.signals]
        plan.best = self._best_step(min(bests, key=_rank))
        others = [row for row in bests if row.policy.signal is not plan.best.policy.signal]
        plan.runner_up = min(others, key=_rank, default=None)
        plan.rows = list(self._run.values())
        self._challenge(plan.best, no_swarm)
        return plan

    # -- candidates

    def _try(self, signal: Signal, share: float) -> Row:
        case = self._case
        policy = Policy(
            signal, self._target(signal, share), case.floor, case.replicas_max,
            step_max=case.step, interval_s=case.interval_s, calm_s=case.calm_s,
            schedule=self._schedule(share) if signal is Signal.SCHEDULE else (),
        )  # fmt: skip
        return self._of(policy, share)

    def _target(self, signal: Signal, share: float) -> float:
        capacity = self._plan.capacity
        match signal:
            case Signal.UTILISATION:
                return share
            case Signal.QUEUE:
                return capacity.in_flight * share
            case Signal.LATENCY:
                promised_s = self._case.slo.limit_s(Metric.TTFT)
                return (promised_s or ALONE_FACTOR * capacity.alone_ttft_s) * share
            case Signal.SCHEDULE:
                return 0.0

    def _schedule(self, share: float) -> tuple[tuple[float, int], ...]:
        """Ordered as long before a slot as one node takes to come up cold."""
        setup = self._case.setup
        lead_s = setup.boot_s + setup.load_times(1)[-1] + setup.engine_s
        return self._case.forecast.schedule(self._plan.capacity.per_s * share, lead_s)

    def _best_of(self, signal: Signal) -> Row:
        """At any threshold, with as much capacity as it takes."""
        rows: list[Row] = []
        for share in self._case.shares:
            plain = self._try(signal, share)
            rows += [plain] if plain.outcome.is_met else self._with_capacity(plain)
        best = min(rows, key=_rank)
        if not best.policy.warm and best.outcome.is_met:
            self._of(replace(best.policy, warm=1), best.share)
        return best

    def _with_capacity(self, plain: Row) -> list[Row]:
        """With the fewest warm nodes and with the lowest floor that keep the objective."""
        case = self._case

        def with_warm(count: int) -> Row:
            return self._of(replace(plain.policy, warm=count), plain.share)

        def with_floor(count: int) -> Row:
            return self._of(replace(plain.policy, floor=case.floor + count), plain.share)

        rows = [plain, *_fewest(with_warm, self._affordable(case.prices.per_warm_node_s))]
        most = min(self._affordable(case.prices.per_node_s), case.replicas_max - case.floor)
        return rows + _fewest(with_floor, most)

    def _affordable(self, per_node_s: float) -> int:
        """So many nodes more, standing by all the time, cost no more than `WORTH_TELLING` of what
        keeps the objective already; never more than `warm_max`."""
        case = self._case
        span_s = case.requests[-1].arrival_s
        left = WORTH_TELLING * self._cheapest - case.floor * case.prices.per_node_s * span_s
        left, each = max(left, 0.0), per_node_s * span_s
        return case.warm_max if left >= case.warm_max * each else int(left / each)

    @property
    def _cheapest(self) -> float:
        """What keeps the objective at least cost so far."""
        kept = [row.outcome.cost for row in self._run.values() if row.outcome.is_met]
        return min(kept, default=math.inf)

    def _best_step(self, row: Row) -> Row:
        if row.policy.signal is Signal.SCHEDULE:
            return row
        steps = [step for step in STEPS if step != row.policy.step_max]
        rows = [self._of(replace(row.policy, step_max=step), row.share) for step in steps]
        return min([row, *rows], key=_rank)

    # -- what would change the answer

    def _challenge(self, best: Row, no_swarm: LoadTimes | None) -> None:
        case = self._case
        setup, requests = case.setup, case.requests
        more = [replace(request, arrival_s=request.arrival_s / 1.2) for request in requests]
        self._add_challenge("20 % more requests a second", best, setup, more)
        slow = replace(
            setup,
            boot_s=2 * setup.boot_s,
            engine_s=2 * setup.engine_s,
            load_times=lambda count: [2 * each for each in setup.load_times(count)],
        )
        self._add_challenge("cold starts take twice as long", best, slow, requests)
        if no_swarm is not None:
            plain = replace(setup, load_times=no_swarm)
            self._add_challenge("no swarm: every node reads the origin", best, plain, requests)

    def _add_challenge(
        self, what: str, best: Row, setup: Setup, requests: Sequence[Request]
    ) -> None:
        self._progress(what)
        outcome = self._simulate(best.policy, setup, requests)
        warm: int | None = best.policy.warm
        tried = best.policy.warm
        if not outcome.is_met:

            def with_warm(count: int) -> Row:
                policy = replace(best.policy, warm=best.policy.warm + count)
                return Row(policy, best.share, self._simulate(policy, setup, requests))

            # As many again, and a few.
            most = min(best.policy.warm + CHALLENGE_MORE, self._case.warm_max)
            rows = _fewest(with_warm, most)
            kept = [row for row in rows if row.outcome.is_met]
            tried = max(row.policy.warm for row in rows)
            warm = min((row.policy.warm for row in kept), default=None)
        self._plan.challenges.append(Challenge(what, outcome, warm, tried))

    # -- runs

    def _of(self, policy: Policy, share: float) -> Row:
        if policy not in self._run:
            row = Row(policy, share, self._simulate(policy, self._case.setup, self._case.requests))
            self._progress(
                f"{policy.signal} at {policy.target:g}, floor {policy.floor}, warm {policy.warm}: "
                f"{row.outcome.miss_share:.2%} missed"
            )
            self._run[policy] = row
        return self._run[policy]

    def _simulate(self, policy: Policy, setup: Setup, requests: Sequence[Request]) -> Outcome:
        fleet = Fleet(setup, requests, policy, replicas=self._replicas(policy))
        fleet.run()
        return measure(fleet, self._case.slo, self._case.prices)

    def _replicas(self, policy: Policy) -> int:
        """At the start as many as the first slot takes: no plan begins with an overload."""
        table = policy.schedule or self._schedule(min(self._case.shares))
        return min(max(scheduled(table, 0.0), policy.floor), policy.replicas_max)


def _rank(row: Row) -> tuple[bool, float, float]:
    return row.rank


def _fewest(build: Callable[[int], Row], most: int) -> list[Row]:
    """The rows tried on the way to the fewest that keep the objective, by doubling and halving.

    Where twice as many miss just as much, more are no help and no more are tried.
    """
    rows: list[Row] = []
    if most < 1:
        return rows
    low, high = 0, 1
    while True:
        row = build(high)
        is_vain = bool(rows) and row.outcome.miss_share >= rows[-1].outcome.miss_share * VAIN_SHARE
        rows.append(row)
        if row.outcome.is_met or high >= most or is_vain:
            break
        low, high = high, min(high * 2, most)
    is_kept = row.outcome.is_met
    while is_kept and high - low > 1:
        middle = (low + high) // 2
        rows.append(build(middle))
        if rows[-1].outcome.is_met:
            high = middle
        else:
            low = middle
    return rows
