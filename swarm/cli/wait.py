"""``swarm wait``: until a version is ready on this node; prints where."""

from __future__ import annotations

import time

import click

from swarm.cli.options import common
from swarm.cli.output import emit
from swarm.cli.ready_options import ready_directory, ready_options


@click.command()
@click.argument("reference", metavar="REF")
@ready_options
@common
@click.pass_context
def wait(context: click.Context, /, reference: str, as_json: bool, **_flags: object) -> None:
    """Wait until REF is ready on this node and print its directory.

    REF is 64 hex digits, a unique prefix of 12 or more, channel:NAME, or with --tracker
    NAME@TAG. A channel gives the directory of the version it serves now, which stays that
    version when the channel moves on.
    """
    started_at = time.monotonic()
    directory = ready_directory(context, reference)
    emit(
        {
            "reference": reference,
            "ready": True,
            "directory": directory,
            "seconds": round(time.monotonic() - started_at, 3),
        },
        as_json=as_json,
        data=directory,
    )
