"""``swarm control``: the escape hatch of an operator."""

from __future__ import annotations

import click

from swarm.cli.options import common, tracker_options
from swarm.cli.output import emit
from swarm.cli.tracker_access import ask_tracker, caller_name
from swarm.protocol.tracker_api import Mode


@click.group(no_args_is_help=False)
def control() -> None:
    """Overrule what the swarm would do."""


@control.command()
@click.argument("reference", metavar="REF")
@click.argument("mode", type=click.Choice([mode.value for mode in Mode]))
@click.option("--reason", required=True, metavar="TEXT", help="Why; it is recorded and shown.")
@tracker_options
@common
@click.pass_context
def mode(
    context: click.Context,
    /,
    reference: str,
    mode: str,
    reason: str,
    as_json: bool,
    **_flags: object,
) -> None:
    """Say where the chunks of the version REF may come from.

    auto: as the swarm decides. origin: every node reads the origin, at a capped rate. peers-only:
    nobody reads the origin. stop: nobody fetches; what is ready goes on serving.
    """
    change = ask_tracker(
        context,
        lambda tracker: tracker.set_mode(reference, Mode(mode), reason, changed_by=caller_name()),
    )
    emit(
        {
            "version": change.version.hex(),
            "mode": change.mode.value,
            "reason": change.reason,
            "changed_by": change.changed_by,
        },
        as_json=as_json,
        data=change.mode.value,
        summary=f"{change.version.hex()[:12]} is in mode {change.mode.value}",
    )
