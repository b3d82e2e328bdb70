"""Publishes a version: scan, judge, hash, upload, and write the manifest last.

A version exists when its manifest does, so the order is the whole protocol: files, locations,
manifest, and then, by the caller, the tracker. A run that ends anywhere before the manifest leaves
objects that are named by their content and that the next run finds; it never leaves half a version.
Publishing what is already there writes nothing, and mends a version whose objects were lost.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

import trio

from swarm.errors import InputError, ManifestError, NotFoundError, SwarmError, UsageError
from swarm.origin.origin import Origin
from swarm.protocol.ids import FileDigest, VersionId
from swarm.protocol.locations import (
    LOCATIONS_BYTES_MAX,
    Location,
    Locations,
    decode_locations,
    encode_locations,
    locations_key,
    manifest_key,
)
from swarm.protocol.manifest import (
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    FileEntry,
    Manifest,
    choose_chunk_bytes,
    decode_manifest,
    encode_manifest,
)
from swarm.protocol.tracker_api import PublishRecord
from swarm.publish.directory import scan_directory
from swarm.publish.in_place import list_bucket
from swarm.publish.progress import ProgressMeter
from swarm.publish.record import Phase, PublishOptions, PublishProgress, PublishResult
from swarm.publish.source import Source
from swarm.publish.upload import Uploaded
from swarm.publish.validate import Validation, validate

Admission = Callable[[PublishRecord], Awaitable[None]]
"""Raises if a version must not be published under its name."""

KEPT_CHUNK_COUNTS = range(500, 20_001)
"""An earlier version's chunk size is kept while it gives so many: fewer make the end of a download
slow, more cost control traffic, and in between equal chunks are worth more than either."""


async def publish(
    directory: str,
    origin: Origin,
    options: PublishOptions,
    report: Callable[[PublishProgress], None],
    *,
    admit: Admission | None = None,
) -> PublishResult:
    """Publish `directory` (with `is_in_place`: a prefix of the origin). The caller registers
    `result.record` with the tracker; `admit` is asked before the first byte is uploaded and may
    raise, as when the name already stands for another version.

    Raises InputError, PermissionDeniedError, ChangedError, IntegrityError, StoreError, UsageError
    and what the origin raises; after any of them no new version exists.
    """
    _check_options(origin, options)
    meter = ProgressMeter(report)
    failure: SwarmError | None = None
    result: PublishResult | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(meter.tell_regularly)
        try:
            result = await _publish(directory, origin, options, meter, admit)
        except SwarmError as error:
            # Raised below, outside the nursery, which would wrap it in a group.
            failure = error
        nursery.cancel_scope.cancel()
    if failure:
        raise failure
    assert result is not None
    return result


async def _publish(
    directory: str,
    origin: Origin,
    options: PublishOptions,
    meter: ProgressMeter,
    admit: Admission | None,
) -> PublishResult:
    started_at = time.monotonic()
    meter.begin(Phase.SCAN)
    source = await _find(directory, origin, options)
    meter.begin(Phase.VALIDATE)
    validation = await _validate(source, options)
    total_bytes = sum(source.sizes.values())
    chunk_bytes = pick_chunk_bytes(total_bytes, options)
    meter.begin(Phase.HASH, total_bytes)
    entries = await source.hash(validation.data_starts, chunk_bytes, meter.add)
    await source.check_unchanged()
    manifest_bytes = _encode(entries, chunk_bytes)
    manifest = decode_manifest(manifest_bytes)
    record = _record(manifest, origin, options, validation)
    if admit is not None:
        await admit(record)
    meter.begin(Phase.UPLOAD, total_bytes)
    uploaded = await _store(source, origin, manifest, manifest_bytes, record, meter)
    return PublishResult(
        version=manifest.version,
        name=options.name,
        tag=options.tag,
        files=len(manifest.files),
        total_bytes=manifest.total_bytes,
        unique_bytes=manifest.unique_bytes,
        chunks=len(manifest.chunks),
        chunk_bytes=chunk_bytes,
        uploaded_bytes=uploaded.sent_bytes,
        reused_bytes=uploaded.reused_bytes,
        seconds=time.monotonic() - started_at,
        warnings=validation.warnings,
        skipped=source.skipped,
        record=record,
        manifest_bytes=manifest_bytes,
    )


def pick_chunk_bytes(total_bytes: int, options: PublishOptions) -> int:
    """The caller's choice, else the earlier version's while it suits, else by size."""
    if options.chunk_bytes is not None:
        return options.chunk_bytes
    previous = options.previous_chunk_bytes
    if previous and -(-total_bytes // previous) in KEPT_CHUNK_COUNTS:
        return previous
    return choose_chunk_bytes(total_bytes)


def _check_options(origin: Origin, options: PublishOptions) -> None:
    if not origin.is_writable:
        raise UsageError(
            f"{origin.url} can only be read", hint="publish to s3://bucket/prefix or file:///dir"
        )
    size = options.chunk_bytes
    if size is not None and not CHUNK_BYTES_MIN <= size <= CHUNK_BYTES_MAX:
        raise UsageError(
            f"chunk size {size} is not between {CHUNK_BYTES_MIN} and {CHUNK_BYTES_MAX} bytes",
            hint="leave --chunk-size out, or give 64KiB to 256MiB",
        )


async def _find(directory: str, origin: Origin, options: PublishOptions) -> Source:
    if options.is_in_place:
        return await list_bucket(origin, directory, options.skip)
    return await scan_directory(origin, directory, options.skip)


async def _validate(source: Source, options: PublishOptions) -> Validation:
    judge = partial(
        validate,
        list(source.sizes),
        source.open,
        options.validation,
        trio.from_thread.check_cancelled,
    )
    return await trio.to_thread.run_sync(judge)


def _encode(entries: list[FileEntry], chunk_bytes: int) -> bytes:
    try:
        return encode_manifest(entries, chunk_bytes)
    except ManifestError as error:
        raise InputError(
            error.message,
            object_name=error.object_name,
            hint="choose a larger --chunk-size, or publish fewer files",
        ) from error


async def _store(
    source: Source,
    origin: Origin,
    manifest: Manifest,
    manifest_bytes: bytes,
    record: PublishRecord,
    meter: ProgressMeter,
) -> Uploaded:
    """Bring everything that is missing to the origin, in order; documents count as sent."""
    known = await _known_locations(origin, manifest.version)
    uploaded = await source.store(manifest, known or {}, meter.add)
    await source.check_unchanged()
    meter.begin(Phase.FINISH)
    if known is not None and known == uploaded.locations:
        return uploaded
    locations_bytes = encode_locations(Locations(uploaded.locations, record))
    await origin.put_document(locations_key(manifest.version), locations_bytes)
    sent_bytes = uploaded.sent_bytes + len(locations_bytes)
    if known is None:
        key = manifest_key(manifest.version)
        # Two publishers of the same bytes write the same document: whoever comes second is done.
        await origin.put_document(key, manifest_bytes, is_create_only=True)
        sent_bytes += len(manifest_bytes)
    return replace(uploaded, sent_bytes=sent_bytes)


async def _known_locations(
    origin: Origin, version: VersionId
) -> Mapping[FileDigest, Location] | None:
    """Where an existing version's files lie; None if the version does not exist, nothing if its
    locations are lost or damaged."""
    if await origin.head(manifest_key(version)) is None:
        return None
    try:
        raw = await origin.read_document(locations_key(version), limit_bytes=LOCATIONS_BYTES_MAX)
        return decode_locations(raw).files
    except (NotFoundError, ManifestError):
        return {}


def _record(
    manifest: Manifest, origin: Origin, options: PublishOptions, validation: Validation
) -> PublishRecord:
    return PublishRecord(
        version=manifest.version,
        name=options.name,
        tag=options.tag,
        origin=origin.url,
        files=len(manifest.files),
        bytes=manifest.total_bytes,
        unique_bytes=manifest.unique_bytes,
        chunks=len(manifest.chunks),
        chunk_bytes=manifest.chunk_bytes,
        published_at=time.time(),
        published_by=options.published_by,
        is_validated=options.validation.is_enabled,
        contains_code=validation.contains_code,
        warnings=validation.warnings,
    )
