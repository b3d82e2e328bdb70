"""Frames to bytes and back: u32 big-endian length, then a msgpack array ``[type, field, …]``.

An incremental decoder in the manner of h11: bytes of any cut go in, whole messages come out, and
garbage raises nothing but `PeerProtocolError`. After a Chunk header the stream carries raw payload.
The payload is not the decoder's: it stops there, says how many bytes are due, hands out the few it
already holds, and goes on with frames once its owner has received the rest by other means.

**Bombs.** A frame is at most 1 MiB, and far less before the handshake ends (`frame_bytes_max`).
That is not enough: one MiB of empty maps becomes 72 MiB of objects. So the schema has no maps and
no extension types, lists of at most 64 entries and nested once; long lists of numbers travel packed
in one byte string. The parser is told these limits and calls back for each list it closes, so that
it stops after 130 lists instead of building a million.

**Growth.** Unknown types and surplus trailing fields are dropped in silence.
"""

from __future__ import annotations

import struct
from typing import NoReturn

import msgpack

from swarm.errors import PeerProtocolError
from swarm.protocol.fields import FieldReader
from swarm.protocol.frames import READERS, fields_of
from swarm.protocol.messages import Chunk, Message

FRAME_BYTES_MAX = 1 << 20
"""Larger things are paged. A bit field of 100,000 chunks is 12.5 kB."""
HANDSHAKE_FRAME_BYTES_MAX = 4096
"""Hello, Proof and Reject: nobody unproven makes us hold more."""
LISTS_PER_FRAME_MAX = 130
"""The outer list, a list of peers, 64 rows and as many again for what a newer peer appends."""
LIST_LENGTH_MAX = 64
"""As many peers as a Peers frame may hold; no message has nearly as many fields."""
DOCUMENT_PAGE_BYTES = 512 * 1024
"""A page of a document, with room for its header."""

_LENGTH = struct.Struct(">I")


def encode(message: Message) -> bytes:
    """The whole frame of a message, length included."""
    body: bytes = msgpack.packb(fields_of(message))
    assert len(body) <= FRAME_BYTES_MAX, (type(message).__name__, len(body))
    return _LENGTH.pack(len(body)) + body


class FrameDecoder:
    """The receiving half of one connection."""

    __slots__ = ("_buffer", "frame_bytes_max", "payload_bytes")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        # Raised by the owner when the handshake is over.
        self.frame_bytes_max = frame_bytes_max
        # Raw bytes that stand between here and the next frame, those in our buffer included.
        self.payload_bytes = 0
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> list[Message]:
        """Take bytes, return what they complete; after a Chunk nothing more until its payload is
        gone. Raises PeerProtocolError, after which the connection is to be closed."""
        self.receive_data(data)
        messages: list[Message] = []
        while (message := self.next_message()) is not None:
            messages.append(message)
        return messages

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes without looking at them."""
        self._buffer += data

    def next_message(self) -> Message | None:
        """The next message that is there in full, or None: more bytes are needed, or a payload
        is due. Raises like `feed`."""
        while not self.payload_bytes and (body := self._next_body()) is not None:
            message = decode(body)
            if message is None:
                continue
            if isinstance(message, Chunk):
                self.payload_bytes = message.length
            return message
        return None

    def take_payload(self) -> bytes:
        """The payload bytes that came in with their header."""
        count = min(self.payload_bytes, len(self._buffer))
        payload = bytes(self._buffer[:count])
        del self._buffer[:count]
        self.payload_bytes -= count
        return payload

    def payload_received(self, count: int) -> None:
        """The owner took `count` payload bytes off the connection itself."""
        assert not self._buffer, "payload bytes in the decoder come first"
        assert count <= self.payload_bytes, (count, self.payload_bytes)
        self.payload_bytes -= count

    def _next_body(self) -> bytes | None:
        buffer = self._buffer
        if len(buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(buffer)
        if not 0 < length <= self.frame_bytes_max:
            raise PeerProtocolError(f"frame of {length} bytes; 1 … {self.frame_bytes_max} allowed")
        end = _LENGTH.size + length
        if len(buffer) < end:
            return None
        body = bytes(buffer[_LENGTH.size : end])
        del buffer[:end]
        return body


def decode(body: bytes) -> Message | None:
    """One frame without its length; None for a type of a newer peer. Raises PeerProtocolError."""
    fields = _unpack(body)
    if type(fields) is not list or not fields or type(fields[0]) is not int:
        raise PeerProtocolError("a frame is not a list that begins with its type")
    entry = READERS.get(fields[0])
    if entry is None:
        return None
    name, read = entry
    return read(FieldReader(fields, name))


class _Bomb(Exception):
    """More structure than any message has."""


def _refuse_map(_: object) -> NoReturn:
    raise _Bomb("no message holds a map")


def _refuse_extension(_: int, __: bytes) -> NoReturn:
    raise _Bomb("no message holds an extension type")


class _ListCounter:
    """Called by the parser for each list that it closes."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = LISTS_PER_FRAME_MAX

    def __call__(self, entries: list[object]) -> list[object]:
        self._left -= 1
        if self._left < 0:
            raise _Bomb(f"more than {LISTS_PER_FRAME_MAX} lists in a frame")
        return entries


def _unpack(body: bytes) -> object:
    try:
        fields: object = msgpack.unpackb(
            body,
            object_hook=_refuse_map,
            ext_hook=_refuse_extension,
            list_hook=_ListCounter(),
            max_array_len=LIST_LENGTH_MAX,
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, _Bomb) as error:
        # msgpack's own errors are all ValueErrors.
        raise PeerProtocolError(f"a frame cannot be read: {error}") from None
    return fields
