"""``swarm-sim``: ask the simulator.

Data goes to stdout, words to stderr; with ``--json`` stdout gets exactly one object. A run that
breaks a rule, or in which somebody is left without the version, ends with 1 and the command that
repeats it.
"""

from __future__ import annotations

import gc
import json
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from simulations.checks import CheckFailed, Checks
from simulations.cluster import Cluster
from simulations.measure import Outcome
from simulations.report import document, lines
from simulations.scenario_file import ScenarioFile, read_scenario
from swarm.errors import SwarmError, UsageError

PROGRESS_S = 10.0
"""Between two lines of progress on a long run."""
LOOKS_PER_BOUND = 50


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def cli() -> None:
    """Whole fleets in virtual time, decided by the very policy that production runs."""


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--seed", type=click.IntRange(min=0), help="Chance; instead of the file's.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE",
    help="Change the scenario: nodes.0.count=100, origin.rate=40Gbit/s.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One object on stdout.")
def run(file: Path, seed: int | None, settings: tuple[str, ...], as_json: bool) -> None:
    """Simulate the scenario FILE until every node has the version."""
    read = read_scenario(file, settings)
    chosen = read.seed if seed is None else seed
    words = [f"--set={setting}" for setting in settings]
    command = shlex.join(["swarm-sim", "run", str(file), f"--seed={chosen}", *words])
    begun = time.monotonic()
    try:
        outcome = _simulate(read, chosen)
    except (CheckFailed, AssertionError) as error:
        raise FailedRun(str(error) or repr(error), command) from error
    told = document(read.scenario, chosen, outcome)
    told |= {
        "scenario": file.stem,
        "commit": _commit(),
        "wall_s": round(time.monotonic() - begun, 2),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }
    if as_json:
        click.echo(json.dumps(told, allow_nan=False))
    else:
        for line in lines(read.scenario, outcome):
            click.echo(line)
        click.echo(f"simulated in {told['wall_s']} s, {told['peak_rss_mb']} MB", err=True)


class FailedRun(SwarmError):
    """A rule of the simulation is broken: a bug of ours, with the command that shows it."""

    def __init__(self, message: str, command: str) -> None:
        super().__init__(message, object_name=command, hint=f"repeat with: {command}")


def _simulate(read: ScenarioFile, seed: int) -> Outcome:
    cluster = Cluster(read.scenario, seed, checks=Checks(is_sparse=True))
    _report_progress(cluster)
    # Nothing of a run is garbage before its end, and looking for some costs a tenth of the time.
    gc.freeze()
    gc.disable()
    outcome = cluster.run()
    cluster.require_finished()
    return outcome


def _report_progress(cluster: Cluster) -> None:
    """A line now and then on stderr. It looks at the clock and changes nothing of the run."""
    scenario, world = cluster.scenario, cluster.world
    step_s = scenario.slowest_bound_s / LOOKS_PER_BOUND
    wanted = scenario.node_count * scenario.version.chunk_count
    told_at = time.monotonic()

    def look() -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= PROGRESS_S:
            told_at = time.monotonic()
            share = world.tally.transfer_count / wanted
            click.echo(f"{world.timeline.now:.1f} s simulated, {share:.0%} of all chunks", err=True)
        world.timeline.after(step_s, look)

    world.timeline.after(step_s, look)


def _commit() -> str:
    """Of the code that runs; "" outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script: one line and one exit code for each class of error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        cli.main(given, "swarm-sim", standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as error:
        _fail(UsageError(error.format_message(), hint="see `swarm-sim --help`"), given)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except SwarmError as error:
        _fail(error, given)
    sys.exit(0)


def _fail(error: SwarmError, given: Sequence[str]) -> NoReturn:
    hint = f" — {error.hint}" if error.hint else ""
    click.echo(f"error: {error.code}: {error.message}{hint}", err=True)
    if "--json" in given:
        told = {
            "class": error.code,
            "code": error.exit_code,
            "message": error.message,
            "object": error.object_name,
            "hint": error.hint,
        }
        click.echo(json.dumps({"error": told}))
    sys.exit(error.exit_code)
