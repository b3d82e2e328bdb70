"""Brings files to the origin, each under its digest, once.

What is stored already with the right size is not sent again: by a version that shares the file, or
by a run that was killed (the origin goes on with the parts of an unfinished object itself). For a
few files the origin is asked object by object, for many by one listing, a thousand names a request.

After the upload every object's size is asked for again, before anything names it: a store between
us and the disk that keeps other bytes than it was given is caught while the version does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from swarm.errors import IntegrityError
from swarm.origin.origin import PART_BYTES_DEFAULT, ObjectInfo, Origin
from swarm.protocol.ids import FileDigest
from swarm.protocol.locations import Location, file_key
from swarm.protocol.manifest import FILE_BYTES_MAX, MIB, Manifest
from swarm.publish.crew import work_through
from swarm.publish.file_parts import FileParts
from swarm.publish.scan import SourceFile

LISTED_ABOVE = 500
"""Objects from which a listing is cheaper than a request for each. A bucket of a million objects
lists in a thousand requests."""
FILES_PREFIX = "files/"
_LANES = ((MIB, 16), (PART_BYTES_DEFAULT, 8), (FILE_BYTES_MAX, 2))
"""Files up to so many bytes, so many at a time. The smallest wait for the store, not the network;
the largest have four parts in flight of their own. Each lane holds 128 MiB at most."""
HEADS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Upload:
    """One file to bring to the origin."""

    key: str
    file: SourceFile
    # Index in the manifest.
    file_index: int


@dataclass(frozen=True, slots=True)
class Uploaded:
    """Where all files of a version lie, and what that took."""

    locations: Mapping[FileDigest, Location]
    # Bytes that went to the store.
    sent_bytes: int
    # Bytes that need not go there: whole objects, and parts of one whose upload was interrupted.
    reused_bytes: int


async def upload_files(
    origin: Origin,
    manifest: Manifest,
    files: Mapping[str, SourceFile],
    known: Mapping[FileDigest, Location],
    progress: Callable[[int], None],
) -> Uploaded:
    """Store every file that is missing. `known` are locations of an earlier publication, believed
    where the object is still there. `progress` is told of further bytes that are stored.
    """
    locations = _planned_locations(manifest, known)
    stored = await stored_objects(origin, {location.key for location in locations.values()})
    missing: list[Upload] = []
    reused_bytes = 0
    planned: set[FileDigest] = set()
    for index, digest in enumerate(manifest.file_digests):
        location = locations.get(digest)
        if location is None or digest in planned:
            continue
        planned.add(digest)
        if is_stored(location, stored.get(location.key)):
            progress(location.size)
            reused_bytes += location.size
            continue
        locations[digest] = Location(file_key(digest), location.size, None)
        missing.append(Upload(file_key(digest), files[manifest.files[index].path], index))
    stored_bytes, resumed_bytes = await _send(origin, manifest, missing, progress)
    await _check_sizes(origin, missing)
    return Uploaded(locations, stored_bytes - resumed_bytes, reused_bytes + resumed_bytes)


async def stored_objects(origin: Origin, keys: set[str]) -> dict[str, ObjectInfo]:
    """Those of `keys` that exist."""
    if len(keys) > LISTED_ABOVE and all(key.startswith(FILES_PREFIX) for key in keys):
        return {
            info.key: info async for info in origin.list_objects(FILES_PREFIX) if info.key in keys
        }
    found: dict[str, ObjectInfo] = {}

    async def ask(key: str) -> None:
        info = await origin.head(key)
        if info:
            found[key] = info

    await work_through(sorted(keys), ask, at_once=HEADS_AT_ONCE)
    return found


def is_stored(location: Location, info: ObjectInfo | None) -> bool:
    """The object at `location` is the one that was published there."""
    return info is not None and info.size == location.size and location.etag in (None, info.etag)


def _planned_locations(
    manifest: Manifest, known: Mapping[FileDigest, Location]
) -> dict[FileDigest, Location]:
    """One for each different file; empty files have no bytes to find."""
    return {
        digest: known.get(digest) or Location(file_key(digest), entry.size, None)
        for digest, entry in zip(manifest.file_digests, manifest.files, strict=True)
        if entry.size
    }


async def _send(
    origin: Origin,
    manifest: Manifest,
    missing: Sequence[Upload],
    progress: Callable[[int], None],
) -> tuple[int, int]:
    """Store all of `missing`; (bytes stored, bytes of them that were there already)."""
    stored_bytes = resumed_bytes = 0

    def stored(size: int) -> None:
        nonlocal stored_bytes
        stored_bytes += size
        progress(size)

    def resumed(size: int) -> None:
        nonlocal resumed_bytes
        resumed_bytes += size

    async def send(job: Upload) -> None:
        entry = manifest.files[job.file_index]
        parts = FileParts(job.file, entry, manifest.chunk_bytes)
        await origin.upload(job.key, parts, progress=stored, resumed=resumed)

    above = -1
    for limit, at_once in _LANES:
        lane = [job for job in missing if above < job.file.size <= limit]
        await work_through(lane, send, at_once=at_once)
        above = limit
    return stored_bytes, resumed_bytes


async def _check_sizes(origin: Origin, uploads: Iterable[Upload]) -> None:
    sizes = {upload.key: upload for upload in uploads}
    stored = await stored_objects(origin, set(sizes))
    for key, upload in sizes.items():
        info = stored.get(key)
        if info is None or info.size != upload.file.size:
            found = "no object" if info is None else f"{info.size} bytes"
            raise IntegrityError(
                f"{origin.url}/{key}: {upload.file.size} bytes of {upload.file.path} were sent,"
                f" the store keeps {found}",
                object_name=key,
                hint="the store alters uploads (a proxy or a checksum setting); nothing was"
                " published",
            )
