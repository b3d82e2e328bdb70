"""Frames there and back, in any cut, and what bombs cost."""

from __future__ import annotations

import struct
import tracemalloc

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.errors import PeerProtocolError
from swarm.protocol.codec import FRAME_BYTES_MAX, FrameDecoder, decode, encode
from swarm.protocol.ids import Address, ChunkIndex, NodeId, SessionId, VersionId
from swarm.protocol.messages import (
    PROTOCOL_VERSION,
    BadChunk,
    Bitfield,
    Bye,
    Cancel,
    Chunk,
    Claim,
    Document,
    DocumentKind,
    DocumentRequest,
    Have,
    Hello,
    LinkKind,
    Message,
    PeerInfo,
    Peers,
    Ping,
    Proof,
    Refuse,
    RefuseReason,
    Reject,
    RejectReason,
    Request,
    Retract,
)

VERSION = VersionId(bytes(range(32)))
NODE = NodeId(bytes(16))
HELLO = Hello(
    PROTOCOL_VERSION, LinkKind.DATA, NODE, 3, b"n" * 16, Address("fd00::7", 7000), "a", "b", 10**9
)
EXAMPLES: tuple[Message, ...] = (
    HELLO,
    Proof(b"m" * 32),
    Reject(RejectReason.SELF, "it is me"),
    Bye("leaving"),
    Ping(2**64 - 1, is_reply=True),
    Bitfield(VERSION, 12, b"\xff\x0f", 3),
    Bitfield(VERSION, 0, b"", 0),
    Have(VERSION, (ChunkIndex(0), ChunkIndex(70_000)), 2),
    Retract(VERSION, ()),
    Claim(VERSION, ChunkIndex(9)),
    BadChunk(VERSION, ChunkIndex(9)),
    Peers((PeerInfo(NODE, 1, Address("10.0.0.1", 7000), "zone", "rack"),) * 64),
    Request(SessionId(5), 1, 4, VERSION, ChunkIndex(7), 0, 1 << 26),
    Refuse(SessionId(5), VERSION, ChunkIndex(7), RefuseReason.BUSY, 3),
    Cancel(SessionId(5), VERSION, ChunkIndex(7)),
    DocumentRequest(VERSION, DocumentKind.MANIFEST, 10**6),
    Document(VERSION, DocumentKind.LOCATIONS, 0, 5, b"hello"),
)


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def one_byte_at_a_time(stream: bytes) -> list[Message]:
    decoder = FrameDecoder()
    return [
        message
        for index in range(len(stream))
        for message in decoder.feed(stream[index : index + 1])
    ]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_message_survives_the_wire(message: Message) -> None:
    assert FrameDecoder().feed(encode(message)) == [message]


def test_stream_reads_the_same_in_any_cut() -> None:
    stream = b"".join(map(encode, EXAMPLES))
    assert FrameDecoder().feed(stream) == list(EXAMPLES)
    assert one_byte_at_a_time(stream) == list(EXAMPLES)


def test_payload_is_handed_over_and_frames_follow_it() -> None:
    header = Chunk(SessionId(1), VERSION, ChunkIndex(2), 0, 10)
    decoder = FrameDecoder()
    assert decoder.feed(encode(header) + b"0123") == [header]
    assert decoder.payload_bytes == 10
    assert decoder.take_payload() == b"0123"
    decoder.payload_received(6)
    assert decoder.payload_bytes == 0
    assert decoder.feed(encode(HELLO)) == [HELLO]


def test_frame_behind_a_payload_in_the_same_bytes_waits_for_it() -> None:
    header = Chunk(SessionId(1), VERSION, ChunkIndex(2), 0, 3)
    decoder = FrameDecoder()
    assert decoder.feed(encode(header) + b"abc" + encode(HELLO)) == [header]
    assert decoder.take_payload() == b"abc"
    assert decoder.feed(b"") == [HELLO]


def test_owner_may_not_overtake_payload_in_the_decoder() -> None:
    decoder = FrameDecoder()
    decoder.feed(encode(Chunk(SessionId(1), VERSION, ChunkIndex(2), 0, 3)) + b"a")
    with pytest.raises(AssertionError):
        decoder.payload_received(1)


def test_unknown_types_and_surplus_fields_are_ignored() -> None:
    newer = msgpack.packb([4, "bye", 7, [[1, 2]]])
    unknown = msgpack.packb([99, "what", b"ever"])
    assert FrameDecoder().feed(frame(unknown) + frame(newer)) == [Bye("bye")]


def test_hello_of_another_protocol_shows_its_number_whatever_follows() -> None:
    message = decode(msgpack.packb([1, PROTOCOL_VERSION + 1, "nothing", "we", "know"]))
    assert isinstance(message, Hello)
    assert message.protocol == PROTOCOL_VERSION + 1


def test_unknown_reasons_read_as_other() -> None:
    assert decode(msgpack.packb([3, 200, "new"])) == Reject(RejectReason.OTHER, "new")
    refusal = decode(msgpack.packb([34, 1, VERSION, 2, 200, 4]))
    assert refusal == Refuse(SessionId(1), VERSION, ChunkIndex(2), RefuseReason.OTHER, 4)


MALFORMED = {
    "empty": b"",
    "not a list": msgpack.packb(7),
    "empty list": msgpack.packb([]),
    "type is text": msgpack.packb(["Hello"]),
    "type is true": msgpack.packb([True, 1]),
    "map": msgpack.packb([4, {}]),
    "filled map": msgpack.packb([4, {"a": 1}]),
    "extension": msgpack.packb([4, msgpack.ExtType(1, b"")]),
    "timestamp": b"\x92\x04\xd6\xff\x00\x00\x00\x00",
    "reserved byte": b"\x92\x04\xc1",
    "bad utf-8": b"\x92\x04\xa1\xff",
    "two values": msgpack.packb([4, "a"]) + b"\x00",
    "cut": msgpack.packb([4, "abcdef"])[:-1],
    "field missing": msgpack.packb([5, 1]),
    "text for number": msgpack.packb([5, "1", False]),
    "number for flag": msgpack.packb([5, 1, 0]),
    "negative": msgpack.packb([5, -1, False]),
    "flag for number": msgpack.packb([5, True, False]),
    "text for bytes": msgpack.packb([2, "m" * 32]),
    "short MAC": msgpack.packb([2, b"m" * 31]),
    "long detail": msgpack.packb([4, "x" * 201]),
    "list for bytes": msgpack.packb([17, VERSION, [1, 2], 0]),
    "chunk list of 3 bytes": msgpack.packb([17, VERSION, b"abc", 0]),
    "chunk of a list too high": msgpack.packb([17, VERSION, b"\xff" * 4, 0]),
    "chunk too high": msgpack.packb([19, VERSION, 1 << 18]),
    "bit field too long": msgpack.packb([16, VERSION, 8, b"\xff\xff", 0]),
    "bit field with a high bit": msgpack.packb([16, VERSION, 4, b"\x10", 0]),
    "link kind": msgpack.packb([1, PROTOCOL_VERSION, 9, NODE, 1, b"n" * 16, "h", 1, "", "", 0]),
    "document kind": msgpack.packb([36, VERSION, 9, 0]),
    "stripe past stripes": msgpack.packb([32, 1, 2, 2, VERSION, 0, 0, 1]),
    "nothing requested": msgpack.packb([32, 1, 0, 1, VERSION, 0, 0, 0]),
    "payload past the limit": msgpack.packb([33, 1, VERSION, 0, 1, 1 << 32]),
    "too many peers": msgpack.packb([21, [[]] * 65]),
    "peers of numbers": msgpack.packb([21, [1, 2]]),
    "peers is a number": msgpack.packb([21, 7]),
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_frame_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        FrameDecoder().feed(frame(body))


@pytest.mark.parametrize("length", [0, FRAME_BYTES_MAX + 1, 2**31, 2**32 - 1])
def test_impossible_length_is_refused_before_anything_is_buffered(length: int) -> None:
    with pytest.raises(PeerProtocolError, match="frame of"):
        FrameDecoder().feed(struct.pack(">I", length))


def test_limit_before_the_handshake_is_lower() -> None:
    with pytest.raises(PeerProtocolError):
        FrameDecoder(frame_bytes_max=100).feed(frame(bytes(101)))


BOMBS = {
    "array of 2^32": b"\xdd\xff\xff\xff\xff",
    "map of 2^32": b"\xdf\xff\xff\xff\xff",
    "bytes of 2^32": b"\xc6\xff\xff\xff\xff",
    "nested 100,000 deep": b"\x91" * 100_000,
    "a MiB of empty maps": b"\xdd\x00\x0f\xff\xfb" + b"\x80" * (FRAME_BYTES_MAX - 5),
    "a MiB of empty lists": b"\xdd\x00\x0f\xff\xfb" + b"\x90" * (FRAME_BYTES_MAX - 5),
    "lists within every limit but their number": b"\xdc\x00\x40"
    + (b"\xdc\x00\x40" + (b"\xdc\x00\x40" + b"\x90" * 64) * 64) * 64,
    "maps within every limit but their number": b"\xdc\x00\x40" + (b"\xdc\x00\x40" + b"\x80" * 64),
}


@pytest.mark.parametrize("body", BOMBS.values(), ids=BOMBS.keys())
def test_bomb_costs_no_memory(body: bytes) -> None:
    """The peak while it is refused holds the frame in the buffer, its copy, and little else."""
    stream = frame(body)
    tracemalloc.start()
    try:
        with pytest.raises(PeerProtocolError):
            FrameDecoder().feed(stream)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * FRAME_BYTES_MAX


chunks = st.integers(0, (1 << 18) - 1).map(ChunkIndex)
sessions = st.integers(0, 2**64 - 1).map(SessionId)
versions = st.binary(min_size=32, max_size=32).map(VersionId)
haves = st.builds(Have, versions, st.lists(chunks, max_size=40).map(tuple), st.integers(0, 99))
requests = st.builds(
    Request, sessions, st.integers(0, 3), st.integers(4, 64), versions, chunks,
    st.integers(0, 1 << 31), st.integers(1, 1 << 31),
)  # fmt: skip
refusals = st.builds(
    Refuse, sessions, versions, chunks, st.sampled_from(RefuseReason), st.integers(0, 99)
)
byes = st.builds(Bye, st.text(max_size=200))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(haves, requests, refusals, byes), max_size=8), st.integers(1, 50))
def test_any_conversation_survives_any_cut(messages: list[Message], cut: int) -> None:
    stream = b"".join(map(encode, messages))
    decoder = FrameDecoder()
    received: list[Message] = []
    for start in range(0, len(stream), cut):
        received += decoder.feed(stream[start : start + cut])
    assert received == messages
