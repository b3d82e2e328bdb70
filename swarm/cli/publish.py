"""``swarm publish``: a directory becomes a version at the origin and, with a tracker, a name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from swarm.cli.interrupts import Interrupts
from swarm.cli.options import common, progress_option, setting, together, tracker_options
from swarm.cli.output import emit, note, one_line, warn
from swarm.cli.progress import TransferProgress
from swarm.cli.progress_printer import open_printer
from swarm.cli.tracker_access import caller_name, open_tracker
from swarm.errors import ConflictError, NotFoundError, SwarmError, UsageError
from swarm.http.messages import Json
from swarm.units import format_duration, format_size, parse_size

if TYPE_CHECKING:
    from swarm.agent.tracker_client import TrackerClient
    from swarm.protocol.tracker_api import PublishRecord
    from swarm.publish.record import PublishOptions, PublishProgress, PublishResult

_PHASES = {
    "scan": "scanning",
    "validate": "checking",
    "hash": "hashing",
    "upload": "uploading",
    "finish": "writing the manifest",
}


@click.command()
@click.argument("directory", metavar="DIR")
@together(
    setting("origin", "Where to: s3://bucket/prefix or file:///dir.", metavar="URL"),
    setting("name", "Call the version NAME@TAG, once and for ever.", metavar="NAME"),
    setting("tag", "See --name.", metavar="TAG"),
    setting(
        "chunk-size",
        "Bytes of a chunk, 64KiB to 256MiB [default: by size].",
        parse=parse_size,
        metavar="SIZE",
    ),
    setting("in-place", "DIR is a prefix of the origin; publish its objects where they lie."),
    setting("strict", "Treat warnings as errors."),
    setting("no-validate", "Publish byte for byte, whatever is in the files."),
    setting("forbid-pickle", "Refuse files whose loading runs code."),
    setting("exclude", "Leave out paths that match; repeatable.", metavar="GLOB"),
    setting("include-hidden", "Publish also what is skipped by default (see above)."),
    tracker_options,
    progress_option,
)
@common
@click.pass_context
def publish(
    context: click.Context,
    /,
    directory: str,
    origin: str | None,
    progress: str,
    as_json: bool,
    **_flags: object,
) -> None:
    """Hash DIR, upload what the origin lacks, and print the version's id.

    Skipped by default, and nothing else: .git/ .cache/huggingface/ .DS_Store *.incomplete *.lock
    *.aria2, and .swarm/ always. Publishing the same bytes again uploads nothing.
    """
    if origin is None:
        raise click.UsageError("missing option --origin", context)
    if bool(context.params["name"]) != bool(context.params["tag"]):
        raise UsageError("--name and --tag go together", object_name="swarm publish")
    interrupts = context.find_object(Interrupts)
    assert interrupts is not None
    with open_printer(progress) as printer:

        def report(seen: PublishProgress) -> None:
            phase = _PHASES[seen.phase.value]
            printer.show(TransferProgress(phase, seen.done_bytes, seen.total_bytes))

        result = interrupts.run(lambda: _publish(context, directory, origin, report))
    _tell(result)
    emit(
        publish_document(result),
        as_json=as_json,
        data=result.version.hex(),
        summary=_summary(result),
    )


async def _publish(
    context: click.Context,
    directory: str,
    origin_url: str,
    report: Callable[[PublishProgress], None],
) -> PublishResult:
    """Publish, then register; the tracker is asked first, so that a wrong address or key is found
    before an hour of hashing."""
    from swarm.origin.origin import open_origin
    from swarm.publish.publish import publish as publish_directory

    origin = open_origin(origin_url)
    try:
        async with open_tracker(context) as tracker:
            name: str = context.params["name"] or ""
            previous = await _previous_chunk_bytes(tracker, name) if tracker is not None else None
            options = _options(context, name, previous)
            admit = None if tracker is None else partial(_check_name, tracker)
            result = await publish_directory(directory, origin, options, report, admit=admit)
            if tracker is not None:
                await _registered(tracker.register_version(result.record, result.manifest_bytes))
            return result
    finally:
        await origin.aclose()


def _options(context: click.Context, name: str, previous: int | None) -> PublishOptions:
    from swarm.publish.record import PublishOptions
    from swarm.publish.skip_rules import SkipRules
    from swarm.publish.validate import ValidationRules

    given = context.params
    return PublishOptions(
        name=name,
        tag=given["tag"] or "",
        chunk_bytes=given["chunk_size"],
        previous_chunk_bytes=previous,
        is_in_place=given["in_place"],
        skip=SkipRules(excludes=given["exclude"], includes_hidden=given["include_hidden"]),
        validation=ValidationRules(
            is_enabled=not given["no_validate"],
            is_strict=given["strict"],
            forbids_pickle=given["forbid_pickle"],
        ),
        published_by=caller_name(),
    )


async def _previous_chunk_bytes(tracker: TrackerClient, name: str) -> int | None:
    """The chunk size of the latest version of `name`, so that equal chunks stay equal."""
    records = [
        record
        for record in await tracker.list_versions()
        if name and any(label.rpartition("@")[0] == name for label in record.names)
    ]
    return max(records, key=lambda r: r.published_at).chunk_bytes if records else None


async def _check_name(tracker: TrackerClient, record: PublishRecord) -> None:
    """Names are given once: better refused now than after the upload. A name that is taken in
    between is refused by the registration."""
    if not record.name or not record.tag:
        return
    reference = f"{record.name}@{record.tag}"
    try:
        known = await tracker.show_version(reference)
    except NotFoundError:
        return
    if known.version != record.version:
        raise ConflictError(
            f"{reference} is version {known.version.hex()} and stays it",
            object_name=reference,
            hint="publish under another tag; nothing was uploaded",
        )


async def _registered(call: Awaitable[object]) -> None:
    """Await the registration; its failure says what is already done."""
    try:
        await call
    except SwarmError as error:
        if not error.hint:
            error.hint = (
                "the version is at the origin; publish again to register it (nothing is uploaded)"
            )
        raise


def publish_document(result: PublishResult) -> dict[str, Json]:
    """The JSON of a publication."""
    return {
        "version": result.version.hex(),
        "name": result.name or None,
        "tag": result.tag or None,
        "files": result.files,
        "bytes": result.total_bytes,
        "chunks": result.chunks,
        "chunk_bytes": result.chunk_bytes,
        "uploaded_bytes": result.uploaded_bytes,
        "seconds": round(result.seconds, 3),
        "warnings": [{"id": name, "message": text} for name, text in result.warnings],
    }


def _tell(result: PublishResult) -> None:
    for skipped in result.skipped:
        note(one_line(str(skipped)))
    for warning_id, text in result.warnings:
        warn(warning_id, text)


def _summary(result: PublishResult) -> str:
    label = f" as {result.name}@{result.tag}" if result.name else ""
    return (
        f"published {result.version.hex()[:12]}{label}: {result.files} files, "
        f"{format_size(result.total_bytes)} in {result.chunks} chunks, "
        f"{format_size(result.uploaded_bytes)} uploaded in {format_duration(result.seconds)}"
    )
