"""``swarm-sim run``: one scenario, one seed."""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from pathlib import Path

import click

from simulations.cluster import Cluster
from simulations.commands.calibrate import profile_words
from simulations.commands.options import json_option, plot_option, seed_option, settings_option
from simulations.cost import cost_document, cost_lines, cost_of
from simulations.figure import check_plot
from simulations.plot_run import plot_run
from simulations.progress import tell_progress
from simulations.report import document, lines
from simulations.scenario_file import read_scenario
from simulations.series import Recorder
from simulations.trial import commit_of_code, repeat_command, simulate


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@seed_option
@settings_option
@click.option(
    "--profile", type=click.Path(path_type=Path), metavar="FILE",
    help="Use what was measured (`swarm bench fleet`); --set wins over it.",
)  # fmt: skip
@click.option("--group", metavar="NAME", help="The group of nodes that the profile measured.")
@plot_option
@json_option
def run(
    file: Path,
    seed: int | None,
    settings: tuple[str, ...],
    profile: Path | None,
    group: str | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Simulate the scenario FILE until every node has the version."""
    if plot is not None:
        check_plot(plot)
    if profile is not None:
        settings = (*profile_words(file, profile, group), *settings)
    read = read_scenario(file, settings)
    chosen = read.seed if seed is None else seed
    command = repeat_command("run", str(file), chosen, settings)
    begun = time.monotonic()
    recorders: list[Recorder] = []

    def watch(cluster: Cluster) -> None:
        tell_progress(cluster)
        if plot is not None:
            recorders.append(Recorder(cluster))

    outcome = simulate(read.scenario, chosen, command, watch=watch)
    cost = cost_of(read.scenario, outcome, read.prices)
    told = document(read.scenario, chosen, outcome)
    told |= {
        "cost": cost_document(cost),
        "scenario": file.stem,
        "commit": commit_of_code(),
        "wall_s": round(time.monotonic() - begun, 2),
        "peak_rss_mb": round(_peak_rss_bytes() / 2**20, 1),
    }
    if as_json:
        click.echo(json.dumps(told, allow_nan=False))
    else:
        for line in (*lines(read.scenario, outcome), *cost_lines(cost)):
            click.echo(line)
        click.echo(f"simulated in {told['wall_s']} s, {told['peak_rss_mb']} MB", err=True)
    if plot is not None:
        plot_run(plot, file.stem, read.scenario, outcome, recorders[0].finish())


def _peak_rss_bytes() -> int:
    """Of this program, where the kernel keeps it. `ru_maxrss` begins with the memory of the process
    that started it, and counts KiB but on macOS."""
    try:
        status = Path("/proc/self/status").read_text(errors="replace")
    except OSError:
        status = ""
    peak = re.search(r"^VmHWM:\s*([0-9]+) kB$", status, re.MULTILINE)
    if peak is not None:
        return int(peak[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
