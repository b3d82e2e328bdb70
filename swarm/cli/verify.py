"""``swarm verify``: read every byte of a version again and compare it with its manifest."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from swarm.cli.local_version import is_local_reference, versions_in_cache
from swarm.cli.options import common, setting, tracker_options
from swarm.cli.output import emit
from swarm.cli.tracker_access import resolve
from swarm.errors import IntegrityError, NotFoundError, UsageError
from swarm.units import format_duration, format_size

_SHOWN_MAX = 20
"""Damages named in the one line; the rest is counted."""


@click.command()
@click.argument("target", metavar="DIR|REF")
@setting("cache", "Where to look for REF.", parse=Path, metavar="DIR")
@tracker_options
@common
@click.pass_context
def verify(
    context: click.Context, /, target: str, cache: Path | None, as_json: bool, **_flags: object
) -> None:
    """Hash every file of a version on this node; E_INTEGRITY names what is wrong.

    The target is a version's directory, or with --cache a reference. Nothing that an earlier run
    noted is believed, and nothing is changed.
    """
    from swarm.cli.installed import installed_manifest
    from swarm.store.verify import verify_directory

    directory = target if os.path.isdir(target) else _directory_of(context, target, cache)
    manifest = installed_manifest(directory)
    started_at = time.monotonic()
    damages = verify_directory(directory, manifest)
    if damages:
        places = [
            f"{damage.path} at {damage.offset}: {damage.problem}"
            if damage.chunk is not None
            else f"{damage.path} {damage.problem}"
            for damage in damages[:_SHOWN_MAX]
        ]
        more = len(damages) - len(places)
        raise IntegrityError(
            f"{len(damages)} places of {manifest.version.hex()[:12]} in {directory} are wrong: "
            + "; ".join(places)
            + (f"; and {more} more" if more else ""),
            object_name=directory,
            hint="pull the version again; what is right is kept",
        )
    seconds = time.monotonic() - started_at
    emit(
        {
            "version": manifest.version.hex(),
            "directory": directory,
            "ok": True,
            "files": len(manifest.files),
            "bytes": manifest.total_bytes,
            "chunks": len(manifest.chunks),
            "seconds": round(seconds, 3),
        },
        as_json=as_json,
        data=manifest.version.hex(),
        summary=f"{directory} is right: {len(manifest.files)} files, "
        f"{format_size(manifest.total_bytes)} in {format_duration(seconds)}",
    )


def _directory_of(context: click.Context, reference: str, cache: Path | None) -> str:
    if cache is None:
        raise UsageError(
            f"{reference} is no directory here",
            object_name=reference,
            hint="name a directory, or give --cache DIR to look for a reference",
        )
    if not is_local_reference(reference):
        reference = resolve(context, reference)
    if reference.startswith("channel:"):
        return os.path.realpath(cache / "channels" / reference.removeprefix("channel:"))
    names = versions_in_cache(cache, reference)
    if not names:
        raise NotFoundError(
            f"no version {reference} in {cache}",
            object_name=reference,
            hint="see `swarm cache list`",
        )
    return str(cache / "versions" / names[0])
