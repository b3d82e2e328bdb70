"""``swarm versions``: what has been published, as the tracker knows it."""

from __future__ import annotations

import click

from swarm.cli.options import common, tracker_options
from swarm.cli.output import emit, table
from swarm.cli.times import shown_time
from swarm.cli.tracker_access import ask_tracker
from swarm.http.messages import Json
from swarm.protocol.tracker_api import PublishRecord
from swarm.units import format_size


@click.group(no_args_is_help=False)
def versions() -> None:
    """Look at the versions that the tracker knows."""


@versions.command(name="list")
@tracker_options
@common
@click.pass_context
def list_versions(context: click.Context, /, as_json: bool, **_flags: object) -> None:
    """List all versions, the latest first."""
    found = ask_tracker(context, lambda tracker: tracker.list_versions())
    rows = [
        (
            record.version.hex()[:12],
            _label(record) or "-",
            format_size(record.bytes),
            str(record.files),
            shown_time(record.published_at),
        )
        for record in found
    ]
    emit(
        {"versions": [record_document(record) for record in found]},
        as_json=as_json,
        data=table(("VERSION", "NAME", "BYTES", "FILES", "PUBLISHED"), rows),
    )


@versions.command()
@click.argument("reference", metavar="REF")
@tracker_options
@common
@click.pass_context
def show(context: click.Context, /, reference: str, as_json: bool, **_flags: object) -> None:
    """Show all that is known of one version."""
    record = ask_tracker(context, lambda tracker: tracker.show_version(reference))
    lines = [
        f"version        {record.version.hex()}",
        f"name           {_label(record) or '-'}",
        f"origin         {record.origin}",
        f"size           {format_size(record.bytes)} in {record.files} files"
        f" ({format_size(record.unique_bytes)} of unique chunks)",
        f"chunks         {record.chunks} of {record.chunk_bytes} bytes",
        f"published      {shown_time(record.published_at)} by {record.published_by or '-'}",
        f"validated      {_yes_no(record.is_validated)}",
        f"contains code  {_yes_no(record.contains_code)}",
        *(f"warning        {name}: {text}" for name, text in record.warnings),
    ]
    emit(record_document(record), as_json=as_json, data="\n".join(lines))


def record_document(record: PublishRecord) -> dict[str, Json]:
    """The JSON of one version."""
    return {
        "version": record.version.hex(),
        "name": record.name or None,
        "tag": record.tag or None,
        "origin": record.origin,
        "files": record.files,
        "bytes": record.bytes,
        "unique_bytes": record.unique_bytes,
        "chunks": record.chunks,
        "chunk_bytes": record.chunk_bytes,
        "published_at": record.published_at,
        "published_by": record.published_by,
        "validated": record.is_validated,
        "contains_code": record.contains_code,
        "warnings": [{"id": name, "message": text} for name, text in record.warnings],
    }


def _label(record: PublishRecord) -> str:
    return f"{record.name}@{record.tag}" if record.name else ""


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"
