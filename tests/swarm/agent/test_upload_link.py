"""The pace of an upload: set in the kernel, kept while it changes little, harmless once the link is
gone."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from swarm.agent import sockets
from swarm.agent.frame_stream import FrameStream
from swarm.agent.rate_limit import RateLimit
from swarm.agent.upload_link import UploadLink, UploadParts
from swarm.protocol.ids import NodeId


@pytest.fixture
def near() -> Iterator[socket.socket]:
    """One end of a connection whose other end is silent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        with near, far:
            yield near


def link_over(sock: socket.socket) -> UploadLink:
    def unexpected(*_: object) -> None:
        raise AssertionError("nothing is asked for")

    parts = UploadParts(
        uplink=RateLimit(None),
        requested=unexpected,
        cancelled=unexpected,
        document=unexpected,
        problem=unexpected,
        unreadable=unexpected,
        count_bytes=unexpected,
    )
    return UploadLink(NodeId(bytes(16)), "", FrameStream(sock), parts)


def pace_of(sock: socket.socket) -> int:
    raw = sock.getsockopt(socket.SOL_SOCKET, sockets.SO_MAX_PACING_RATE, 8)
    number: int = struct.unpack("Q", raw)[0]
    return number


async def test_an_upload_is_paced_and_set_free(near: socket.socket) -> None:
    link = link_over(near)
    link.pace(3_000_000)
    assert pace_of(near) == 3_000_000
    link.pace(0)
    assert pace_of(near) == sockets.NO_PACE


async def test_a_small_change_of_pace_costs_no_call(near: socket.socket) -> None:
    link = link_over(near)
    link.pace(1_000_000)
    link.pace(1_200_000)
    assert pace_of(near) == 1_000_000
    link.pace(1_300_000)
    assert pace_of(near) == 1_300_000


async def test_a_pace_that_comes_after_the_end_is_ignored(near: socket.socket) -> None:
    link = link_over(near)
    near.close()
    link.pace(3_000_000)
