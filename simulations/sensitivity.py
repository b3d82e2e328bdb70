"""Which assumption moves the answer most: each varied alone, ranked by what it does.

The runs are of a smaller fleet of the same kind, for there are some thirty of them; what an
assumption does to the last node's time and to the cost is told relative to the same fleet without
the change. The unchanged fleet runs with several seeds: an effect within their spread is noise.
Prices need no run: their effect is their share of the bill.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from simulations.assumptions import Assumption, assumptions
from simulations.scenario import Scenario

BASE_SEEDS = 3
"""Enough to see how large noise is; each is one more run of some thirty."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a run said of three things: seconds of half of the nodes and of the last one, and money
    for the load."""

    p50_s: float
    last_s: float
    cost: float


@dataclass(frozen=True, slots=True)
class Change:
    """What one variant does, as a share of the unchanged fleet: 0.1 is 10 % more. None where its
    run came to nothing."""

    label: str
    p50: float | None
    last: float | None
    cost: float | None


@dataclass(frozen=True, slots=True)
class Effect:
    """What one assumption does."""

    name: str
    now: str
    changes: tuple[Change, ...]

    @property
    def last(self) -> float:
        """The largest change of the last node's time, either way."""
        return max(_size(change.last) for change in self.changes)

    @property
    def cost(self) -> float:
        """Of the bill."""
        return max(_size(change.cost) for change in self.changes)


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Largest effect first."""

    node_count: int
    # Spread of the unchanged fleet's last node over its seeds, as a share of the first.
    noise: float
    effects: tuple[Effect, ...]


class Study:
    """The runs of a sensitivity analysis, and what they say."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._scenario = scenario
        self._seed = seed
        self._assumptions = assumptions(scenario)

    def runs(self) -> list[tuple[Scenario, int]]:
        """(scenario, seed) of each; the unchanged fleet's come first."""
        base = [(self._scenario, self._seed + place) for place in range(BASE_SEEDS)]
        varied = [
            (variant.scenario, self._seed)
            for assumption in self._assumptions
            for variant in assumption.variants
        ]
        return base + varied

    def result(
        self, runs: Sequence[Run | None], price_shares: Mapping[str, float]
    ) -> Sensitivity | None:
        """From the results in the order of `runs`; None if the unchanged fleet came to nothing.
        `price_shares`: part of the bill, by what is priced."""
        base = [run for run in runs[:BASE_SEEDS] if run is not None]
        if not base:
            return None
        first = base[0]
        noise = (max(run.last_s for run in base) - min(run.last_s for run in base)) / first.last_s
        varied = iter(runs[BASE_SEEDS:])
        effects = [_effect(one, varied, first) for one in self._assumptions]
        effects += [_price_effect(name, share) for name, share in price_shares.items()]
        # What is equal to a tenth of a per cent stays in the order of the scenario.
        effects.sort(key=lambda effect: (-round(effect.last, 3), -round(effect.cost, 3)))
        return Sensitivity(self._scenario.node_count, noise, tuple(effects))


def _effect(assumption: Assumption, runs: Iterator[Run | None], base: Run) -> Effect:
    changes: list[Change] = []
    for variant in assumption.variants:
        run = next(runs)
        if run is None:
            changes.append(Change(variant.label, None, None, None))
        else:
            p50, last = run.p50_s / base.p50_s - 1, run.last_s / base.last_s - 1
            cost = run.cost / base.cost - 1 if base.cost else 0.0
            changes.append(Change(variant.label, p50, last, cost))
    return Effect(assumption.name, assumption.now, tuple(changes))


def _price_effect(name: str, share: float) -> Effect:
    changes = (Change("half", 0.0, 0.0, -share / 2), Change("double", 0.0, 0.0, share))
    return Effect(f"price of {name}", f"{share:.0%} of the bill", changes)


def _size(change: float | None) -> float:
    """A fleet that does not finish any more is the largest effect of all."""
    return float("inf") if change is None else abs(change)
