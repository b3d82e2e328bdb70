"""``swarm-sim plan``: what to expect, against what, and what to find out first."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from simulations.cells import gather
from simulations.commands.fleet_plan import plan_fleet
from simulations.commands.options import (
    json_option,
    plot_option,
    pool_of,
    scheduler_option,
    seed_option,
    settings_option,
    workers_option,
)
from simulations.figure import check_plot
from simulations.plan import Planner
from simulations.plan_report import plan_document, plan_lines
from simulations.plot_plan import plot_plan
from simulations.scenario_file import parse_scenario, read_document
from simulations.trial import commit_of_code, repeat_command
from swarm.errors import UsageError


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@seed_option
@settings_option
@workers_option
@scheduler_option
@click.option(
    "--slo", "objective", metavar="TEXT",
    help="Plan for serving: 'ttft p99 < 2 s, misses < 1 %'. Instead of the file's.",
)  # fmt: skip
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Requests to serve, as CSV or JSON lines. Instead of the file's traffic.",
)
@plot_option
@json_option
@click.pass_context
def plan(
    context: click.Context,
    file: Path,
    seed: int | None,
    settings: tuple[str, ...],
    worker_count: int | None,
    scheduler: str | None,
    objective: str | None,
    trace: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Plan for the fleet of the scenario FILE: time, egress and cost with the swarm and without,
    from how many nodes on it pays, and which assumption moves the answer most.

    A FILE with a [fleet] table is planned for serving its traffic instead: how many replicas, how
    many warm nodes, which scaling signal and threshold; or the grid that it asks for.
    """
    if plot is not None:
        check_plot(plot)
    document = read_document(file, settings)
    if document.table().has("fleet"):
        if scheduler is not None or worker_count is not None:
            raise UsageError("a serving fleet is planned in one process", hint="no --workers here")
        plan_fleet(
            document, settings=settings, seed=seed, objective=objective, trace=trace, plot=plot,
            as_json=as_json,
        )  # fmt: skip
        return
    if objective is not None or trace is not None:
        hint = "docs/CAPACITY.md shows its keys; simulations/scenarios/fleet_day.toml is one"
        raise UsageError(f"{file} has no [fleet] table to plan an objective for", hint=hint)
    read = parse_scenario(document)
    chosen = read.seed if seed is None else seed
    planner = Planner(read, chosen, repeat_command("plan", str(file), chosen, settings))
    began = time.monotonic()
    cells = planner.cells()
    pool, place = pool_of(scheduler, worker_count)
    click.echo(f"{len(cells)} runs on {place}", err=True)
    gathered = gather(cells, pool)
    if gathered.interrupted_code:
        context.exit(gathered.interrupted_code)
    found = planner.plan([result for result in gathered.results if result is not None])
    if as_json:
        told = {"scenario": file.stem, "commit": commit_of_code(), **plan_document(found)}
        told["wall_s"] = round(time.monotonic() - began, 2)
        click.echo(json.dumps(told, allow_nan=False))
    else:
        for line in plan_lines(found):
            click.echo(line)
    if plot is not None:
        plot_plan(plot, file.stem, planner, found)
