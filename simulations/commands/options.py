"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

from simulations.cells import Pool
from simulations.dask_pool import dask_pool
from simulations.local_pool import core_count, local_pool

WORKERS_MAX = 1024
"""More is a typing error."""

json_option = click.option("--json", "as_json", is_flag=True, help="One object on stdout.")
seed_option = click.option(
    "--seed", type=click.IntRange(min=0), help="Chance; instead of the file's."
)  # fmt: skip
settings_option = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE",
    help="Change the scenario: nodes.0.count=100, origin.rate=40Gbit/s.",
)  # fmt: skip
plot_option = click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Draw it too; .png or .svg. Needs weightswarm[plot].",
)  # fmt: skip
scheduler_option = click.option(
    "--scheduler", metavar="ADDRESS",
    help="Run on the workers of this Dask scheduler (tcp://host:8786). Needs weightswarm[dask].",
)  # fmt: skip
workers_option = click.option(
    "--workers", "worker_count", type=click.IntRange(1, WORKERS_MAX),
    help="Runs at once on this machine; by default one for each core.",
)  # fmt: skip


def pool_of(scheduler: str | None, worker_count: int | None) -> tuple[Pool, str]:
    """Where runs go, and how that is told."""
    if scheduler is not None:
        return dask_pool(scheduler), f"the Dask cluster at {scheduler}"
    count = worker_count or core_count()
    return local_pool(count), f"{count} processes"
