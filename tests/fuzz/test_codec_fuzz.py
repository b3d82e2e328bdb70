"""Garbage in, `PeerProtocolError` or messages out, and nothing else."""

from __future__ import annotations

import contextlib
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.errors import PeerProtocolError
from swarm.protocol.codec import FrameDecoder, encode
from swarm.protocol.ids import Address, ChunkIndex, NodeId, SessionId, VersionId
from swarm.protocol.messages import Bitfield, Have, Message, PeerInfo, Peers, Request

VERSION = VersionId(b"v" * 32)
SEEDS: tuple[Message, ...] = (
    Have(VERSION, (ChunkIndex(1), ChunkIndex(2)), 3),
    Bitfield(VERSION, 16, b"\x01\x02", 0),
    Request(SessionId(1), 0, 1, VERSION, ChunkIndex(3), 0, 65536),
    Peers((PeerInfo(NodeId(b"n" * 16), 1, Address("10.0.0.1", 7000)),)),
)


def swallow(stream: bytes) -> None:
    decoder = FrameDecoder()
    with contextlib.suppress(PeerProtocolError):
        decoder.feed(stream)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_garbage_in_a_frame(body: bytes) -> None:
    swallow(len(body).to_bytes(4, "big") + body)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_garbage_as_a_stream(stream: bytes) -> None:
    swallow(stream)


def test_real_frames_with_flipped_bytes() -> None:
    """20,000 mutants of real frames, the same ones in every run."""
    rng = random.Random(7)
    for _ in range(20_000):
        mutant = bytearray(encode(rng.choice(SEEDS)))
        for _ in range(rng.randint(1, 4)):
            mutant[rng.randrange(4, len(mutant))] = rng.randrange(256)
        swallow(bytes(mutant))
