"""The XML that S3 speaks: listings, upload ids, parts, and the request that completes an upload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote_plus
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from swarm.errors import OriginError
from swarm.origin.origin import ObjectInfo


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of objects."""

    objects: tuple[ObjectInfo, ...]
    # Asks for the next page; "" after the last.
    next_token: str


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One part of an unfinished upload."""

    # From 1, as S3 counts.
    number: int
    size: int
    # Without quotes; the MD5 of the part in hex on most stores.
    etag: str


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """An upload that was begun and neither completed nor aborted."""

    key: str
    upload_id: str
    # ISO 8601, so that the order of texts is the order of times.
    initiated: str


def parse_listing(body: bytes, shown: str) -> Listing:
    """An answer to ListObjectsV2 with encoding-type=url; raises OriginError. Keys are whole."""
    root = _parse(body, shown)
    is_url_encoded = _text(root, "EncodingType") == "url"
    objects = tuple(
        ObjectInfo(
            key=unquote_plus(key) if is_url_encoded else key,
            size=_number(entry, "Size", shown),
            etag=_text(entry, "ETag").strip('"'),
        )
        for entry in _children(root, "Contents")
        if (key := _text(entry, "Key"))
    )
    is_truncated = _text(root, "IsTruncated").lower() == "true"
    return Listing(objects, _text(root, "NextContinuationToken") if is_truncated else "")


def parse_upload_id(body: bytes, shown: str) -> str:
    """The id of an upload that was just begun; raises OriginError."""
    upload_id = _text(_parse(body, shown), "UploadId")
    if not upload_id:
        raise OriginError(f"{shown}: the origin gave no upload id", object_name=shown)
    return upload_id


def parse_uploads(body: bytes, shown: str) -> list[UnfinishedUpload]:
    """An answer to ListMultipartUploads; raises OriginError."""
    return [
        UnfinishedUpload(_text(entry, "Key"), _text(entry, "UploadId"), _text(entry, "Initiated"))
        for entry in _children(_parse(body, shown), "Upload")
    ]


def parse_parts(body: bytes, shown: str) -> tuple[list[StoredPart], str]:
    """An answer to ListParts, and the marker of the next page, "" after the last; raises
    OriginError."""
    root = _parse(body, shown)
    parts = [
        StoredPart(
            number=_number(entry, "PartNumber", shown),
            size=_number(entry, "Size", shown),
            etag=_text(entry, "ETag").strip('"'),
        )
        for entry in _children(root, "Part")
    ]
    is_truncated = _text(root, "IsTruncated").lower() == "true"
    return parts, _text(root, "NextPartNumberMarker") if is_truncated else ""


def completion_document(etags: Sequence[str]) -> bytes:
    """The body of CompleteMultipartUpload for parts 1, 2, …"""
    parts = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>&quot;{escape(etag)}&quot;</ETag></Part>"
        for number, etag in enumerate(etags, start=1)
    )
    return f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()


def is_error_document(body: bytes) -> bool:
    """Whether a 200 answer carries an error after all, as a completed upload may."""
    return b"<Error>" in body or body.strip() == b""


def _parse(body: bytes, shown: str) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise OriginError(
            f"{shown}: the origin's answer is not the XML of S3",
            object_name=shown,
            hint="is this an S3 endpoint?",
            is_retryable=False,
        ) from error


def _children(root: ElementTree.Element, name: str) -> Iterator[ElementTree.Element]:
    """Children by local name: some stores leave the namespace out."""
    return (child for child in root if child.tag.rpartition("}")[2] == name)


def _text(root: ElementTree.Element, name: str) -> str:
    return next((child.text or "" for child in _children(root, name)), "")


def _number(root: ElementTree.Element, name: str, shown: str) -> int:
    text = _text(root, name)
    if not text.isdecimal():
        raise OriginError(
            f"{shown}: no {name} in the origin's answer", object_name=shown, is_retryable=False
        )
    return int(text)
