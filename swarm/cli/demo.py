"""``swarm demo``: a whole fleet on this machine, held to the bound."""

from __future__ import annotations

from pathlib import Path

import click

from swarm.cli.interrupts import Interrupts
from swarm.cli.options import common, parsed, progress_option
from swarm.cli.output import emit
from swarm.units import parse_rate, parse_size

NODES_MAX = 64
"""More Python processes than this measure the machine and not the swarm."""


@click.command()
@click.option(
    "--nodes",
    type=click.IntRange(1, NODES_MAX),
    default=8,
    show_default=True,
    help="How many agents.",
)
@click.option(
    "--size",
    type=parsed(parse_size),
    default="256MiB",
    show_default=True,
    metavar="SIZE",
    help="Bytes of the random model that is made up.",
)
@click.option(
    "--rate",
    type=parsed(parse_rate),
    default="400Mbit/s",
    show_default=True,
    metavar="RATE",
    help="Of the origin, of each node's uplink and of each node's downlink.",
)
@click.option("--model", type=Path, metavar="DIR", help="Publish this directory instead.")
@click.option("--s3", "is_s3", is_flag=True, help="Use a real S3 server (SeaweedFS) as origin.")
@progress_option
@common
@click.pass_context
def demo(
    context: click.Context,
    /,
    nodes: int,
    size: int,
    rate: int,
    model: Path | None,
    is_s3: bool,
    progress: str,
    as_json: bool,
) -> None:
    """Run a fleet on this machine: publish a model, start nodes, watch them fetch it.

    Everything lives in a temporary directory and is gone afterwards.
    """
    from swarm.cli.demo_fleet import DemoPlan, run_demo
    from swarm.cli.demo_report import demo_document, demo_table

    interrupts = context.find_object(Interrupts)
    assert interrupts is not None
    result = run_demo(DemoPlan(nodes, size, rate, model, is_s3, progress), interrupts)
    emit(demo_document(result), as_json=as_json, data=demo_table(result))
