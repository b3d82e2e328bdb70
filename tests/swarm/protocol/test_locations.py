"""Where a version's bytes lie, and the record beside it."""

from __future__ import annotations

import dataclasses

import msgpack
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.errors import ManifestError, NotFoundError
from swarm.protocol.ids import ChunkDigest, ChunkIndex, FileDigest, VersionId
from swarm.protocol.locations import (
    LOCATIONS_BYTES_MAX,
    WARNINGS_MAX,
    Location,
    Locations,
    Place,
    decode_locations,
    encode_locations,
    file_key,
    locations_key,
    manifest_key,
)
from swarm.protocol.manifest import KIB, FileEntry, decode_manifest, encode_manifest
from swarm.protocol.tracker_api import PublishRecord

CB = 64 * KIB
VERSION = VersionId(bytes(range(32)))
RECORD = PublishRecord(
    version=VERSION,
    name="acme/tiny",
    tag="r1",
    origin="s3://models/w",
    files=2,
    bytes=100,
    unique_bytes=90,
    chunks=3,
    chunk_bytes=CB,
    published_at=1.8e9,
    published_by="ci@host",
    is_validated=True,
    contains_code=False,
    warnings=(("pickle", "x.bin: loading it runs code"),),
)
DIGEST = FileDigest(bytes(32))


def digest(number: int) -> ChunkDigest:
    return ChunkDigest(blake3(bytes([number])).digest())


MANIFEST = decode_manifest(
    encode_manifest(
        [
            FileEntry("a", CB + 5, False, 0, (digest(0), digest(1))),
            FileEntry("b", 10, False, 5, (digest(2), digest(1))),
        ],
        CB,
    )
)


def locations(files: dict[FileDigest, Location]) -> Locations:
    return Locations(files, RECORD)


def test_a_document_survives_the_round_trip() -> None:
    document = locations({DIGEST: Location("files/x", 5, None)})
    assert decode_locations(encode_locations(document)) == document


@given(
    st.dictionaries(
        st.binary(min_size=32, max_size=32).map(FileDigest),
        st.builds(
            Location,
            key=st.text("abc-é", min_size=1, max_size=8),
            size=st.integers(0, 1 << 40),
            etag=st.none() | st.text(max_size=40),
        ),
        max_size=5,
    ),
    st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9)), max_size=3).map(tuple),
)
def test_any_document_survives_the_round_trip(
    files: dict[FileDigest, Location], warnings: tuple[tuple[str, str], ...]
) -> None:
    document = Locations(files, dataclasses.replace(RECORD, warnings=warnings))
    assert decode_locations(encode_locations(document)) == document


def test_keys_follow_the_layout() -> None:
    assert manifest_key(VERSION) == f"versions/{VERSION.hex()}/manifest"
    assert locations_key(VERSION) == f"versions/{VERSION.hex()}/locations"
    assert file_key(DIGEST) == "files/" + "0" * 64


def test_a_chunk_lies_where_its_first_located_file_lies() -> None:
    first, second = MANIFEST.file_digests
    both = locations(
        {first: Location("files/one", CB + 5, None), second: Location("in/place", 10, "tag")}
    )
    assert both.place(MANIFEST, ChunkIndex(0)) == Place("files/one", 0, CB, None)
    assert both.place(MANIFEST, ChunkIndex(1)) == Place("files/one", CB, 5, None)
    assert both.place(MANIFEST, ChunkIndex(2)) == Place("in/place", 0, 5, "tag")
    only_second = locations({second: Location("in/place", 10, "tag")})
    assert only_second.place(MANIFEST, ChunkIndex(1)) == Place("in/place", 5, 5, "tag")


@pytest.mark.parametrize("size", [None, 9])
def test_a_missing_location_or_one_of_another_size_is_not_used(size: int | None) -> None:
    second = MANIFEST.file_digests[1]
    files = {} if size is None else {second: Location("in/place", size, None)}
    with pytest.raises(NotFoundError, match="chunk 2 of 'b'"):
        locations(files).place(MANIFEST, ChunkIndex(2))


def _document(**changes: object) -> bytes:
    """A document with one part replaced."""
    whole = msgpack.unpackb(encode_locations(locations({DIGEST: Location("k", 5, None)})))
    return msgpack.packb({**whole, **changes})


def _record(**changes: object) -> bytes:
    whole = msgpack.unpackb(encode_locations(locations({})))
    return msgpack.packb({**whole, "record": {**whole["record"], **changes}})


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "a map expected"),
        (bytes(LOCATIONS_BYTES_MAX + 1), "at most"),
        (_document(format=2), "upgrade"),
        (_document() + b"\xc0", "1 bytes follow"),
        (_document(files=[[bytes(31), "k", 5, None]]), "file digest of 31 bytes"),
        (_document(files=[[bytes(32), "../k", 5, None]]), "key '../k'"),
        (_document(files=[[bytes(32), "/k", 5, None]]), "absolute"),
        (_document(files=[[bytes(32), "k", -1, None]]), "size"),
        (_document(files=[[bytes(32), "k", 5, 7]]), "etag is neither"),
        (_document(files=[[bytes(32), "k", 5, "e" * 300]]), "etag is neither"),
        (_document(files=[[bytes(32), "k", 5]]), "should have 4 members"),
        (_document(record={}), "map of 0 pairs"),
        (_record(version=b"x"), "version of 1 bytes"),
        (_record(name="n" * 129), "name is not a text"),
        (_record(published_at=float("nan")), "published_at is not a number"),
        (_record(published_at=float("inf")), "published_at is not a number"),
        (_record(published_at=3), "published_at is not a number"),
        (_record(is_validated=1), "true or false"),
        (_record(warnings=[["a", "b"]] * (WARNINGS_MAX + 1)), "at most"),
        (_record(warnings=[["a"]]), "should have 2 members"),
        (_record(more=1), "map of 15 pairs"),
    ],
)
def test_a_broken_document_is_refused(raw: bytes, why: str) -> None:
    with pytest.raises(ManifestError, match=why):
        decode_locations(raw)


@given(st.binary(max_size=100))
def test_garbage_is_refused_and_nothing_else_happens(raw: bytes) -> None:
    with pytest.raises(ManifestError):
        decode_locations(raw)


WHOLE = _document()


@settings(max_examples=300)
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_damage_is_refused_or_read_without_harm(at: int, byte: int) -> None:
    try:
        decode_locations(WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :])
    except ManifestError:
        return
