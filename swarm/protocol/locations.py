"""Where a version's bytes lie at the origin, and who published it: everything that may differ
between two publications of the same files, and is therefore outside the version id.

Layout below an origin's URL::

    versions/<id>/manifest      written last: a version exists when its manifest does
    versions/<id>/locations     this document
    files/<file digest>         one object a file, unless it was published in place

The document is msgpack::

    {"format": 1, "files": [[file digest, key, size, etag | nil]], "record": {…PublishRecord…}}

An ETag is kept only for objects that were published in place, which somebody may replace: reads of
them must be conditional. An object under ``files/`` is named by its content, and a second upload of
the same content may change its ETag, so a condition there could only do harm.

Nothing here is trusted: a wrong location yields bytes with another digest. Keys are checked so that
they cannot lead out of the origin's prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgpack

from swarm.errors import NotFoundError
from swarm.protocol.ids import DIGEST_BYTES, ChunkIndex, FileDigest, VersionId
from swarm.protocol.manifest import CHUNKS_MAX, FILE_BYTES_MAX, FILES_MAX, MIB, Manifest
from swarm.protocol.paths import path_problem
from swarm.protocol.strict_reader import StrictReader, show
from swarm.protocol.tracker_api import PublishRecord

FORMAT = 1
LOCATIONS_BYTES_MAX = 64 * MIB
"""100,000 files with keys of 400 bytes and the longest ETags."""
WARNINGS_MAX = 1000
"""Warnings kept with a version; a publisher summarises before it comes to this."""

_KEY_CHARS_MAX = 4096
_ETAG_CHARS_MAX = 256  # S3's are at most 38; others are free to be longer.
_NAME_CHARS_MAX = 128
_TEXT_CHARS_MAX = 4096
_RECORD_FIELDS = 14


@dataclass(frozen=True, slots=True)
class Location:
    """One object at the origin."""

    # Relative to the origin's URL.
    key: str
    # Bytes; the file's size.
    size: int
    # The object must still have this ETag; None: its key says its content.
    etag: str | None


class Place(NamedTuple):
    """Where one chunk can be read."""

    key: str
    offset: int
    length: int
    etag: str | None


@dataclass(frozen=True, slots=True)
class Locations:
    """The document, checked."""

    files: Mapping[FileDigest, Location]
    record: PublishRecord

    def place(self, manifest: Manifest, chunk: ChunkIndex) -> Place:
        """Where the chunk's bytes lie; raises NotFoundError if no file that holds it has a
        location of the right size."""
        unique = manifest.chunks[chunk]
        for position in unique.positions:
            location = self.files.get(manifest.file_digests[position.file_index])
            if location and location.size == manifest.files[position.file_index].size:
                return Place(location.key, position.offset, unique.length, location.etag)
        path = manifest.files[unique.positions[0].file_index].path
        raise NotFoundError(
            f"no location is known for chunk {chunk} of {path!r}",
            object_name=path,
            hint="publish the version again",
        )


def manifest_key(version: VersionId) -> str:
    return f"versions/{version.hex()}/manifest"


def locations_key(version: VersionId) -> str:
    return f"versions/{version.hex()}/locations"


def file_key(digest: FileDigest) -> str:
    return f"files/{digest.hex()}"


def encode_locations(locations: Locations) -> bytes:
    files = [
        (digest, location.key, location.size, location.etag)
        for digest, location in sorted(locations.files.items())
    ]
    record = {
        "version": locations.record.version,
        "name": locations.record.name,
        "tag": locations.record.tag,
        "origin": locations.record.origin,
        "files": locations.record.files,
        "bytes": locations.record.bytes,
        "unique_bytes": locations.record.unique_bytes,
        "chunks": locations.record.chunks,
        "chunk_bytes": locations.record.chunk_bytes,
        "published_at": float(locations.record.published_at),
        "published_by": locations.record.published_by,
        "is_validated": locations.record.is_validated,
        "contains_code": locations.record.contains_code,
        "warnings": locations.record.warnings,
    }
    return msgpack.packb({"format": FORMAT, "files": files, "record": record})


def decode_locations(raw: bytes) -> Locations:
    """Check a document from anywhere; raises ManifestError."""
    reader = StrictReader(raw, "locations")
    if len(raw) > LOCATIONS_BYTES_MAX:
        raise reader.error(f"{len(raw)} bytes, at most {LOCATIONS_BYTES_MAX} are allowed")
    reader.enter_map(3)
    reader.key("format")
    if reader.integer("format", 0, 1 << 32) != FORMAT:
        raise reader.error(f"its format is not {FORMAT}, the only one known here; upgrade")
    reader.key("files")
    files = dict(_decode_files(reader))
    reader.key("record")
    record = _decode_record(reader)
    reader.end()
    return Locations(files, record)


def _decode_files(reader: StrictReader) -> Iterator[tuple[FileDigest, Location]]:
    for _ in range(reader.array_length(FILES_MAX)):
        reader.enter_array(4)
        digest = _decode_digest(reader, "file digest")
        key = reader.text("key", _KEY_CHARS_MAX)
        problem = path_problem(key)
        if problem:
            raise reader.error(f"key {show(key)} {problem}")
        size = reader.integer("size", 0, FILE_BYTES_MAX)
        etag = reader.text_or_none("etag", _ETAG_CHARS_MAX)
        yield FileDigest(digest), Location(key, size, etag)


def _decode_record(reader: StrictReader) -> PublishRecord:
    """Fields in the order in which `encode_locations` writes them."""
    reader.enter_map(_RECORD_FIELDS)

    def text(name: str, chars_max: int = _TEXT_CHARS_MAX) -> str:
        reader.key(name)
        return reader.text(name, chars_max)

    def integer(name: str, maximum: int) -> int:
        reader.key(name)
        return reader.integer(name, 0, maximum)

    def flag(name: str) -> bool:
        reader.key(name)
        return reader.flag(name)

    reader.key("version")
    return PublishRecord(
        version=VersionId(_decode_digest(reader, "version")),
        name=text("name", _NAME_CHARS_MAX),
        tag=text("tag", _NAME_CHARS_MAX),
        origin=text("origin"),
        files=integer("files", FILES_MAX),
        bytes=integer("bytes", FILE_BYTES_MAX),
        unique_bytes=integer("unique_bytes", FILE_BYTES_MAX),
        chunks=integer("chunks", CHUNKS_MAX),
        chunk_bytes=integer("chunk_bytes", FILE_BYTES_MAX),
        published_at=_decode_instant(reader),
        published_by=text("published_by"),
        is_validated=flag("is_validated"),
        contains_code=flag("contains_code"),
        warnings=_decode_warnings(reader),
    )


def _decode_instant(reader: StrictReader) -> float:
    reader.key("published_at")
    return reader.number("published_at")


def _decode_warnings(reader: StrictReader) -> tuple[tuple[str, str], ...]:
    reader.key("warnings")
    warnings = []
    for _ in range(reader.array_length(WARNINGS_MAX)):
        reader.enter_array(2)
        warning_id = reader.text("warning id", _NAME_CHARS_MAX)
        warnings.append((warning_id, reader.text("warning", _TEXT_CHARS_MAX)))
    return tuple(warnings)


def _decode_digest(reader: StrictReader, name: str) -> bytes:
    raw = reader.blob(name)
    if len(raw) != DIGEST_BYTES:
        raise reader.error(f"{name} of {len(raw)} bytes")
    return raw
