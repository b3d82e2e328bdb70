"""``swarm cache``: what this node keeps, and making room by hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from swarm.cli.local_version import is_local_reference, only_one
from swarm.cli.options import common, setting, tracker_options
from swarm.cli.output import emit, table
from swarm.cli.tracker_access import resolve
from swarm.errors import ConflictError, LockedError, NotFoundError, UsageError
from swarm.protocol.ids import version_id_from_hex
from swarm.units import format_size

if TYPE_CHECKING:
    from swarm.cli.installed import Installed

cache_option = setting("cache", "The cache directory.", parse=Path, metavar="DIR")


@click.group(no_args_is_help=False)
def cache() -> None:
    """Look into this node's cache and make room in it."""


@cache.command(name="list")
@cache_option
@common
@click.pass_context
def list_versions(context: click.Context, /, cache: Path | None, as_json: bool) -> None:
    """List the versions in a cache."""
    from swarm.cli.installed import installed_versions  # Loads the store: 40 ms.

    found = installed_versions(_named(context, cache))
    rows = [
        (
            version.version[:12],
            "ready" if version.is_ready else "partial",
            format_size(version.bytes),
            format_size(version.disk_bytes),
            ", ".join(version.channels) or "-",
        )
        for version in found
    ]
    emit(
        {"versions": [_document(version) for version in found]},
        as_json=as_json,
        data=table(("VERSION", "STATE", "BYTES", "ON DISK", "CHANNELS"), rows),
    )


@cache.command()
@click.argument("reference", metavar="REF")
@cache_option
@tracker_options
@common
@click.pass_context
def evict(
    context: click.Context, /, reference: str, cache: Path | None, as_json: bool, **_flags: object
) -> None:
    """Remove a version from a cache whose agent is stopped.

    Never one that a channel link leads to or that a process reads.
    """
    directory = _named(context, cache)
    wanted = reference if is_local_reference(reference) else resolve(context, reference)
    version = _chosen(directory, wanted)
    if version.channels:
        raise ConflictError(
            f"{version.version[:12]} is what channel {', '.join(version.channels)} serves here",
            object_name=version.version,
            hint="set the channel to another version first",
        )
    _evict(directory, version)
    emit(
        {"version": version.version, "freed_bytes": version.disk_bytes},
        as_json=as_json,
        data=version.version,
        summary=f"removed {version.version[:12]}, {format_size(version.disk_bytes)}",
    )


def _evict(directory: Path, version: Installed) -> None:
    from swarm.store.disk import DiskStore

    try:
        store = DiskStore.open_cache(str(directory))
    except LockedError as error:
        error.hint = "stop the agent first; it keeps the cache within its budget by itself"
        raise
    with store:
        store.evict(version_id_from_hex(version.version))


def _chosen(directory: Path, wanted: str) -> Installed:
    from swarm.cli.installed import installed_versions

    if wanted.startswith("channel:"):
        raise UsageError(
            "name the version itself, not a channel", object_name=wanted, hint="see `cache list`"
        )
    matching = {v.version: v for v in installed_versions(directory) if v.version.startswith(wanted)}
    if not matching:
        raise NotFoundError(
            f"no version {wanted} in {directory}", object_name=wanted, hint="see `cache list`"
        )
    return matching[only_one(list(matching), wanted)]


def _named(context: click.Context, cache: Path | None) -> Path:
    if cache is None:
        raise click.UsageError("missing option --cache", context)
    return cache


def _document(version: Installed) -> dict[str, object]:
    return {
        "version": version.version,
        "directory": version.directory,
        "ready": version.is_ready,
        "bytes": version.bytes,
        "disk_bytes": version.disk_bytes,
        "channels": list(version.channels),
    }
