"""``swarm channel``: which version a name stands for, now and before."""

from __future__ import annotations

import click

from swarm.cli.options import common, tracker_options
from swarm.cli.output import emit, table
from swarm.cli.times import shown_time
from swarm.cli.tracker_access import ask_tracker, caller_name
from swarm.http.messages import Json
from swarm.protocol.tracker_api import ChannelChange, ChannelTarget


@click.group(no_args_is_help=False)
def channel() -> None:
    """Say which version a channel's nodes serve."""


@channel.command(name="set")
@click.argument("name", metavar="NAME")
@click.argument("reference", metavar="REF")
@click.option("--reason", default="", metavar="TEXT", help="Why; kept in the history.")
@click.option(
    "--if-revision",
    "expected_revision",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only if the channel is still at this revision; E_CONFLICT otherwise.",
)
@tracker_options
@common
@click.pass_context
def set_channel(
    context: click.Context,
    /,
    name: str,
    reference: str,
    reason: str,
    expected_revision: int | None,
    as_json: bool,
    **_flags: object,
) -> None:
    """Point the channel NAME at the version REF, and make the channel if there is none.

    Nodes on the channel fetch the version, serve the old one meanwhile, and switch when every
    byte is verified. A version that is still on the nodes is switched to at once.
    """
    target = ask_tracker(
        context,
        lambda tracker: tracker.set_channel(
            name,
            reference,
            reason,
            changed_by=caller_name(),
            expected_revision=expected_revision,
        ),
    )
    emit(
        _target_document(target),
        as_json=as_json,
        data=target.version.hex() if target.version is not None else "",
        summary=f"channel {name} is at revision {target.revision}",
    )


@channel.command(name="list")
@tracker_options
@common
@click.pass_context
def list_channels(context: click.Context, /, as_json: bool, **_flags: object) -> None:
    """List the channels and the versions they stand for."""
    found = ask_tracker(context, lambda tracker: tracker.list_channels())
    rows = [(t.channel, str(t.revision), t.version.hex() if t.version else "-") for t in found]
    emit(
        {"channels": [_target_document(target) for target in found]},
        as_json=as_json,
        data=table(("CHANNEL", "REVISION", "VERSION"), rows),
    )


@channel.command()
@click.argument("name", metavar="NAME")
@tracker_options
@common
@click.pass_context
def history(context: click.Context, /, name: str, as_json: bool, **_flags: object) -> None:
    """Show what a channel stood for, who changed it and why; the latest first."""
    changes = ask_tracker(context, lambda tracker: tracker.channel_history(name))
    rows = [
        (
            str(change.revision),
            change.version.hex()[:12] if change.version else "-",
            shown_time(change.changed_at),
            change.changed_by,
            change.reason or "-",
        )
        for change in changes
    ]
    emit(
        {"channel": name, "changes": [_change_document(change) for change in changes]},
        as_json=as_json,
        data=table(("REVISION", "VERSION", "WHEN", "WHO", "WHY"), rows),
    )


def _target_document(target: ChannelTarget) -> dict[str, Json]:
    return {
        "channel": target.channel,
        "version": target.version.hex() if target.version is not None else None,
        "revision": target.revision,
    }


def _change_document(change: ChannelChange) -> dict[str, Json]:
    return {
        "revision": change.revision,
        "version": change.version.hex() if change.version is not None else None,
        "changed_at": change.changed_at,
        "changed_by": change.changed_by,
        "reason": change.reason,
    }
