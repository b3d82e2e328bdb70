"""What a file is by its first bytes, whatever its name says.

Names lie in the field: an error page saved as a shard, a pointer that version control left in place
of the weights, a torch archive renamed to please a loader.
"""

from __future__ import annotations

import enum
import re

HEAD_BYTES = 4096
"""Enough for every magic below; one page."""
POINTER_BYTES_MAX = 1024
"""A pointer of the LFS format is smaller than this, so says its specification."""

_POINTER_STARTS = (
    b"version https://git-lfs.github.com/spec/v1",
    b"version https://hawser.github.com/spec/v1",
)
_PAGE = re.compile(rb"(\xef\xbb\xbf)?\s*<(!doctype html|html|head|body|\?xml|error)\b", re.I)
_QUOTED_BYTES = 40
_PICKLE_PROTOCOLS = range(2, 6)  # 0 and 1 have no mark; nothing wrote them for ten years.
_ARRAY_OF_OBJECTS = re.compile(rb"'descr':\s*'\|O")


class Content(enum.Enum):
    """The value completes "looks like …"."""

    UNKNOWN = "nothing known here"
    EMPTY = "an empty file"
    LFS_POINTER = "an LFS pointer"
    PAGE = "HTML/XML"
    ZIP = "ZIP, probably a torch checkpoint"
    GGUF = "GGUF"
    PICKLE = "a pickle, probably a torch checkpoint"
    HDF5 = "HDF5"
    GZIP = "gzip"


_MAGICS = (
    (b"PK\x03\x04", Content.ZIP),
    (b"GGUF", Content.GGUF),
    (b"\x89HDF\r\n\x1a\n", Content.HDF5),
    (b"\x1f\x8b", Content.GZIP),
)


def sniff(head: bytes, size: int) -> Content:
    """Judge by the first `HEAD_BYTES` of a file of `size` bytes."""
    if not size:
        return Content.EMPTY
    if _is_pointer(head, size):
        return Content.LFS_POINTER
    if _PAGE.match(head):
        return Content.PAGE
    if _is_pickle(head):
        return Content.PICKLE
    return next((kind for magic, kind in _MAGICS if head.startswith(magic)), Content.UNKNOWN)


def quote(head: bytes) -> str:
    """The start of a file for a message: at most 40 printable characters."""
    text = head[:_QUOTED_BYTES].decode("ascii", "replace")
    return "".join(char if char.isprintable() else "." for char in text).replace("\ufffd", ".")


def _is_pointer(head: bytes, size: int) -> bool:
    # Size alone cannot tell a pointer: a small JSON file is as small.
    return size < POINTER_BYTES_MAX and head.startswith(_POINTER_STARTS) and b"\noid " in head


def _is_pickle(head: bytes) -> bool:
    if head.startswith(b"\x93NUMPY"):
        return bool(_ARRAY_OF_OBJECTS.search(head))
    return len(head) > 1 and head[0] == 0x80 and head[1] in _PICKLE_PROTOCOLS
