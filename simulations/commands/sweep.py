"""``swarm-sim sweep``: one scenario at many points."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from simulations.cells import Gathered, gather
from simulations.commands.options import (
    json_option,
    plot_option,
    pool_of,
    scheduler_option,
    settings_option,
    workers_option,
)
from simulations.cost import money
from simulations.figure import check_plot
from simulations.plot_sweep import plot_sweep
from simulations.sweep import (
    Failure,
    Grid,
    PointResult,
    Spread,
    failures,
    lay_out,
    parse_axis,
    point_results,
)
from simulations.text_table import table_lines
from simulations.trial import commit_of_code
from swarm.units import format_duration

SEEDS_MAX = 1000
"""More is a typing error."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--vary", "varied", multiple=True, required=True, metavar="KEY=A,B,C",
    help="Values of a key; several keys make a grid.",
)  # fmt: skip
@settings_option
@click.option(
    "--seeds", "seed_count", type=click.IntRange(1, SEEDS_MAX), default=1, show_default=True,
    help="Runs of each point, with consecutive seeds.",
)  # fmt: skip
@workers_option
@scheduler_option
@plot_option
@json_option
@click.pass_context
def sweep(
    context: click.Context,
    file: Path,
    varied: tuple[str, ...],
    settings: tuple[str, ...],
    seed_count: int,
    worker_count: int | None,
    scheduler: str | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Simulate the scenario FILE at every combination of the values that are varied.

    Runs that fail do not stop the others; they are listed at the end, with 1 as the exit code.
    Ctrl-C prints what is done and ends with 130, SIGTERM with 143.
    """
    if plot is not None:
        check_plot(plot)
    grid = lay_out(file, settings, tuple(parse_axis(text) for text in varied), seed_count)
    began = time.monotonic()
    pool, place = pool_of(scheduler, worker_count)
    click.echo(f"{len(grid.cells)} runs on {place}", err=True)
    gathered = gather(grid.cells, pool)
    points = point_results(grid, gathered)
    failed = failures(grid, gathered.results)
    if as_json:
        told = _document(file, grid, points, failed, gathered)
        told["wall_s"] = round(time.monotonic() - began, 2)
        click.echo(json.dumps(told, allow_nan=False))
    else:
        for line in _lines(grid, points):
            click.echo(line)
    for failure in failed:
        words = ", ".join(f"{key}={value}" for key, value in failure.settings.items())
        click.echo(f"failed: {words}, seed {failure.seed}: {failure.error}", err=True)
        click.echo(f"  repeat with: {failure.command}", err=True)
    if plot is not None and any(point.runs for point in points):
        plot_sweep(plot, file.stem, grid, points)
    if gathered.interrupted_code:
        done = sum(result is not None for result in gathered.results)
        click.echo(f"interrupted: {done} of {len(grid.cells)} runs are done", err=True)
        context.exit(gathered.interrupted_code)
    if failed:
        context.exit(1)


def _document(
    file: Path,
    grid: Grid,
    points: list[PointResult],
    failed: list[Failure],
    gathered: Gathered,
) -> dict[str, object]:
    return {
        "scenario": file.stem,
        "commit": commit_of_code(),
        "vary": {axis.key: list(axis.values) for axis in grid.axes},
        "seeds": list(grid.seeds),
        "is_interrupted": bool(gathered.interrupted_code),
        "points": [
            {
                "settings": grid.settings(point.values),
                **{
                    name: {"mean": one.mean, "min": one.least, "max": one.most}
                    for name, one in point.spreads.items()
                },
                "runs": list(point.runs),
            }
            for point in points
        ],
        "failed": [
            {
                "settings": one.settings, "seed": one.seed, "error": one.error,
                "command": one.command,
            }
            for one in failed
        ],
    }  # fmt: skip


def _lines(grid: Grid, points: list[PointResult]) -> list[str]:
    """A table of the means, with the range over the seeds where there are several."""
    has_zones = any(point.spreads["cross_zone_copies"].most for point in points if point.spreads)
    heads = [axis.key for axis in grid.axes]
    heads += ["p50/T*", "p99/T*", "last/T*", "last", "direct", "origin copies"]
    heads += ["cross-zone copies"] if has_zones else []
    heads += [f"{_currency(grid)} a load"]
    rows: list[list[str]] = []
    for point in points:
        row = list(point.values)
        ratios = ("p50_ratio", "p99_ratio", "last_ratio")
        row += [_ratio(point.spreads.get(name)) for name in ratios]
        for name in ("last_s", "direct_s"):
            one = point.spreads.get(name)
            row.append(format_duration(one.mean) if one else "-")
        copies = ("origin_copies", *(["cross_zone_copies"] if has_zones else []))
        row += [_ratio(point.spreads.get(name)) for name in copies]
        cost = point.spreads.get("cost")
        row.append(money(cost.mean) if cost else "-")
        rows.append(row)
    return table_lines(heads, rows)


def _ratio(one: Spread | None) -> str:
    if one is None:
        return "-"
    if one.most - one.least < 0.0005:
        return f"{one.mean:.3f}"
    return f"{one.mean:.3f} ({one.least:.3f}-{one.most:.3f})"


def _currency(grid: Grid) -> str:
    return grid.cells[0].prices.currency
