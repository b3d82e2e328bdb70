"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

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
