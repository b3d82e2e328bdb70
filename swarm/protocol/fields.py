"""Reads the fields of one decoded frame in order, each with its own limit.

The frame's list has been built by then, under limits that make a bomb cheap (`codec.py`); here
every value gets its type and range, so that past this door a record is well-formed. Anything else
is a `PeerProtocolError` that names the field. Surplus fields stay unread: a newer peer may append.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

from swarm.errors import PeerProtocolError
from swarm.protocol.ids import (
    DIGEST_BYTES,
    NODE_ID_BYTES,
    Address,
    ChunkIndex,
    NodeId,
    VersionId,
)
from swarm.protocol.manifest import CHUNKS_MAX

UINT64_MAX = 2**64 - 1
"""msgpack has no larger number."""
HOST_CHARACTERS_MAX = 255
"""A DNS name has at most 253."""
LABEL_CHARACTERS_MAX = 128
"""Zone and rack names; the longest seen in a cloud has 40."""
DETAIL_CHARACTERS_MAX = 200
"""A reason for a human."""


class FieldReader:
    """One pass over the fields of a frame; made for one frame and dropped."""

    __slots__ = ("_fields", "_next", "_what")

    def __init__(self, fields: Sequence[object], what: str, *, skip: int = 1) -> None:
        self._fields = fields
        self._next = skip
        self._what = what

    def _take(self) -> object:
        if self._next >= len(self._fields):
            raise PeerProtocolError(f"{self._what} ends after {self._next} fields")
        value = self._fields[self._next]
        self._next += 1
        return value

    def _wrong(self, value: object, wanted: str) -> PeerProtocolError:
        return PeerProtocolError(
            f"{self._what}: field {self._next - 1} is {type(value).__name__}, not {wanted}"
        )

    def uint(self, limit: int = UINT64_MAX) -> int:
        """A number in [0, limit]."""
        value = self._take()
        # bool is an int to Python and a type of its own to msgpack.
        if type(value) is not int or not 0 <= value <= limit:
            raise self._wrong(value, f"a number up to {limit}")
        return value

    def flag(self) -> bool:
        value = self._take()
        if type(value) is not bool:
            raise self._wrong(value, "a boolean")
        return value

    def raw(self, *, exactly: int) -> bytes:
        value = self._take()
        if type(value) is not bytes or len(value) != exactly:
            raise self._wrong(value, f"{exactly} bytes")
        return value

    def blob(self) -> bytes:
        """Bytes of any length; the frame's size is their limit."""
        value = self._take()
        if type(value) is not bytes:
            raise self._wrong(value, "bytes")
        return value

    def text(self, limit: int) -> str:
        value = self._take()
        if type(value) is not str or len(value) > limit:
            raise self._wrong(value, f"text of up to {limit} characters")
        return value

    def rows(self, limit: int) -> tuple[Sequence[object], ...]:
        """A list of up to `limit` lists."""
        value = self._take()
        if not isinstance(value, list) or len(value) > limit:
            raise self._wrong(value, f"a list of up to {limit} entries")
        if not all(isinstance(row, list) for row in value):
            raise self._wrong(value, "a list of lists")
        return tuple(value)

    def version(self) -> VersionId:
        return VersionId(self.raw(exactly=DIGEST_BYTES))

    def node_id(self) -> NodeId:
        return NodeId(self.raw(exactly=NODE_ID_BYTES))

    def chunk(self) -> ChunkIndex:
        return ChunkIndex(self.uint(CHUNKS_MAX - 1))

    def chunks(self) -> tuple[ChunkIndex, ...]:
        """A packed list of chunk indices."""
        packed = self.blob()
        if len(packed) % 4:
            raise PeerProtocolError(f"{self._what}: chunk list of {len(packed)} bytes")
        indices = array("I", packed)
        if sys.byteorder == "little":
            indices.byteswap()
        if indices and max(indices) >= CHUNKS_MAX:
            raise PeerProtocolError(f"{self._what}: chunk {max(indices)}")
        return tuple(map(ChunkIndex, indices))

    def address(self) -> Address:
        host = self.text(HOST_CHARACTERS_MAX)
        return Address(host, self.uint(0xFFFF))


def pack_chunks(chunks: Sequence[int]) -> bytes:
    """Chunk indices as u32 big-endian, one after another."""
    indices = array("I", chunks)
    if sys.byteorder == "little":
        indices.byteswap()
    return indices.tobytes()
