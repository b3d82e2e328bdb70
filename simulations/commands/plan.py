"""``swarm-sim plan``: what to expect, against what, and what to find out first."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from simulations.cells import gather
from simulations.commands.options import (
    plot_option,
    pool_of,
    scheduler_option,
    settings_option,
    workers_option,
)
from simulations.figure import check_plot
from simulations.plan import Planner
from simulations.plan_report import plan_document, plan_lines
from simulations.plot_plan import plot_plan
from simulations.scenario_file import read_scenario
from simulations.trial import commit_of_code, repeat_command


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--seed", type=click.IntRange(min=0), help="Chance; instead of the file's.")
@settings_option
@workers_option
@scheduler_option
@plot_option
@click.option("--json", "as_json", is_flag=True, help="One object on stdout.")
def plan(
    file: Path,
    seed: int | None,
    settings: tuple[str, ...],
    worker_count: int | None,
    scheduler: str | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Plan for the fleet of the scenario FILE: time, egress and cost with the swarm and without,
    from how many nodes on it pays, and which assumption moves the answer most."""
    if plot is not None:
        check_plot(plot)
    read = read_scenario(file, settings)
    chosen = read.seed if seed is None else seed
    planner = Planner(read, chosen, repeat_command("plan", str(file), chosen, settings))
    began = time.monotonic()
    cells = planner.cells()
    pool, place = pool_of(scheduler, worker_count)
    click.echo(f"{len(cells)} runs on {place}", err=True)
    gathered = gather(cells, pool)
    if gathered.is_interrupted:
        raise KeyboardInterrupt
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
