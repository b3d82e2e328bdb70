"""``swarm versions``: what has been published, as the tracker knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from swarm.cli.options import common, tracker_options
from swarm.cli.output import emit, table
from swarm.cli.times import shown_time
from swarm.cli.tracker_access import ask_tracker
from swarm.http.messages import Json
from swarm.protocol.ids import VersionId
from swarm.protocol.tracker_api import PublishRecord
from swarm.units import format_size

if TYPE_CHECKING:
    from swarm.agent.tracker_client import TrackerClient


@click.group(no_args_is_help=False)
def versions() -> None:
    """Look at the versions that the tracker knows."""


@versions.command(name="list")
@tracker_options
@common
@click.pass_context
def list_versions(context: click.Context, /, as_json: bool, **_flags: object) -> None:
    """List all versions, the latest first."""
    found, served_by = ask_tracker(context, _versions_and_channels)
    rows = [
        (
            record.version.hex()[:12],
            ", ".join(_labels(record)) or "-",
            ", ".join(served_by.get(record.version, ())) or "-",
            format_size(record.bytes),
            str(record.files),
            shown_time(record.published_at),
        )
        for record in found
    ]
    documents: list[Json] = [
        {**record_document(record), "channels": list(served_by.get(record.version, ()))}
        for record in found
    ]
    emit(
        {"versions": documents},
        as_json=as_json,
        data=table(("VERSION", "NAMES", "CHANNELS", "BYTES", "FILES", "PUBLISHED"), rows),
    )


async def _versions_and_channels(
    tracker: TrackerClient,
) -> tuple[tuple[PublishRecord, ...], dict[VersionId, list[str]]]:
    """All versions, and the channels that point at each."""
    found = await tracker.list_versions()
    served_by: dict[VersionId, list[str]] = {}
    for target in await tracker.list_channels():
        if target.version is not None:
            served_by.setdefault(target.version, []).append(target.channel)
    return found, served_by


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
        f"names          {', '.join(_labels(record)) or '-'}",
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
        "names": list(_labels(record)),
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


def _labels(record: PublishRecord) -> tuple[str, ...]:
    """All names; of a tracker of an earlier release the one that it tells."""
    if record.names or not record.name:
        return record.names
    return (f"{record.name}@{record.tag}",)


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"
