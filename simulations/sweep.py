"""A grid of scenarios: every combination of the values that are varied, each with several seeds.

A point is one combination; its cells are its seeds. What is said of a point is the mean over its
seeds with the least and the most, because a difference smaller than that spread is none.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulations.cells import Cell, CellResult, Gathered
from simulations.scenario_file import ScenarioFile, parse_scenario, read_text
from simulations.toml_table import Document
from simulations.trial import repeat_command
from swarm.errors import UsageError

CELLS_MAX = 10_000
"""More is a typing error; at a second each it is three hours."""
METRICS = (
    "p50_ratio", "p99_ratio", "last_ratio", "last_s", "direct_s", "origin_copies",
    "cross_zone_copies",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Axis:
    """One key and its values, as they are written."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """Points in the order of the command line, the last key changing fastest; cells are all seeds
    of the first point, then of the second."""

    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    # The values of each point, one for each axis.
    points: tuple[tuple[str, ...], ...]
    cells: tuple[Cell, ...]

    def settings(self, point: Sequence[str]) -> dict[str, str]:
        return {axis.key: value for axis, value in zip(self.axes, point, strict=True)}


@dataclass(frozen=True, slots=True)
class Spread:
    """Over the seeds of a point."""

    mean: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class PointResult:
    """What came of a point; no spread where no seed has landed or nobody finished."""

    values: tuple[str, ...]
    runs: tuple[dict[str, object], ...]
    spreads: Mapping[str, Spread]


@dataclass(frozen=True, slots=True)
class Failure:
    """A cell that came to nothing."""

    settings: dict[str, str]
    seed: int
    error: str
    command: str


def parse_axis(text: str) -> Axis:
    """``KEY=A,B,C``; commas within brackets or quotes belong to a value."""
    key, separator, rest = text.partition("=")
    values = tuple(part.strip() for part in re.findall(r'(?:\[[^\]]*\]|"[^"]*"|[^,])+', rest))
    if not separator or not key or not all(values) or not values:
        raise UsageError(f"not KEY=A,B,C: {text!r}", hint="--vary nodes.0.count=10,100,1000")
    if len(set(values)) < len(values):
        raise UsageError(f"--vary {key}: a value is there twice: {rest}")
    return Axis(key, values)


def lay_out(file: Path, settings: tuple[str, ...], axes: tuple[Axis, ...], seed_count: int) -> Grid:
    """Read the scenario at every point, so that what cannot be is refused before anything runs;
    raises UsageError."""
    keys = [axis.key for axis in axes]
    if len(set(keys)) < len(keys):
        raise UsageError(f"--vary: a key is there twice: {', '.join(keys)}")
    points = tuple(itertools.product(*(axis.values for axis in axes)))
    if len(points) * seed_count > CELLS_MAX:
        raise UsageError(f"{len(points) * seed_count} runs; {CELLS_MAX} at most")
    text = read_text(file)
    cells: list[Cell] = []
    seeds: tuple[int, ...] = ()
    for point in points:
        varied = tuple(f"{key}={value}" for key, value in zip(keys, point, strict=True))
        read = _read(text, str(file), settings, varied)
        seeds = seeds or tuple(range(read.seed, read.seed + seed_count))
        for seed in seeds:
            command = repeat_command("run", str(file), seed, (*settings, *varied))
            cells.append(Cell(read.scenario, seed, read.prices, command))
    return Grid(axes, seeds, points, tuple(cells))


def _read(text: str, name: str, settings: Sequence[str], varied: Sequence[str]) -> ScenarioFile:
    document = Document(text, name)
    for setting in settings:
        document.change(setting)
    for setting in varied:
        document.change(setting, "--vary")
    return parse_scenario(document)


def point_results(grid: Grid, gathered: Gathered) -> list[PointResult]:
    """One for each point, in its order."""
    seed_count = len(grid.seeds)
    told: list[PointResult] = []
    for number, point in enumerate(grid.points):
        results = gathered.results[number * seed_count : (number + 1) * seed_count]
        runs = tuple(result.told for result in results if result is not None and result.told)
        spreads = {metric: _spread([run.get(metric) for run in runs]) for metric in METRICS}
        spreads["cost"] = _spread([_total_cost(run) for run in runs])
        told.append(
            PointResult(point, runs, {key: one for key, one in spreads.items() if one is not None})
        )
    return told


def _total_cost(run: Mapping[str, object]) -> object:
    cost = run["cost"]
    assert isinstance(cost, dict)
    total: object = cost["total"]
    return total


def _spread(values: Sequence[object]) -> Spread | None:
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if not numbers:
        return None
    return Spread(sum(numbers) / len(numbers), min(numbers), max(numbers))


def failures(grid: Grid, results: Sequence[CellResult | None]) -> list[Failure]:
    found: list[Failure] = []
    for index, result in enumerate(results):
        if result is not None and result.error:
            point = grid.points[index // len(grid.seeds)]
            cell = grid.cells[index]
            found.append(Failure(grid.settings(point), cell.seed, result.error, cell.command))
    return found
