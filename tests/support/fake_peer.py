"""A peer that speaks the wire and obeys a script: it proves itself like any agent, then lies,
stalls or talks rubbish."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from swarm.agent import sockets
from swarm.agent.frame_stream import LINK_FAULTS, FrameStream
from swarm.agent.handshaking import DIAL_FAULTS, HandshakeDesk
from swarm.agent.network_settings import NetworkSettings
from swarm.protocol.codec import encode
from swarm.protocol.ids import Address, Identity, NodeId
from swarm.protocol.messages import Chunk, Hello, LinkKind, PeerInfo, Request
from tests.support.peers import KEY, node_id

Script = Callable[[FrameStream, Hello], Awaitable[None]]


@dataclass
class FakePeer:
    """Where it is, and what came in."""

    info: PeerInfo
    requests: list[Request] = field(default_factory=list)
    # Connections per kind, since the start.
    opened: dict[LinkKind, int] = field(default_factory=dict)


@asynccontextmanager
async def fake_peer(
    name: str, data_script: Callable[[FakePeer, FrameStream], Awaitable[None]]
) -> AsyncIterator[FakePeer]:
    """Listens and proves itself; control links are kept and ignored, data links follow the
    script."""
    listener = sockets.listen(Address("127.0.0.1", 0))
    host, port = listener.getsockname()
    identity = Identity(node_id(name), 1)
    made = FakePeer(PeerInfo(identity.node_id, 1, Address(host, port)))
    desk = HandshakeDesk(identity, KEY, NetworkSettings())
    desk.address = made.info.address

    async def serve(connection: socket.socket) -> None:
        connection.setblocking(False)
        stream = FrameStream(connection)
        try:
            hello = await desk.accept(stream, None)
            made.opened[hello.kind] = made.opened.get(hello.kind, 0) + 1
            if hello.kind is LinkKind.DATA:
                await data_script(made, stream)
            while True:
                await stream.receive_some(4096)
        except DIAL_FAULTS:
            pass
        finally:
            stream.close()

    async with trio.open_nursery() as nursery:

        async def accept() -> None:
            while True:
                await trio.lowlevel.wait_readable(listener.fileno())
                connection, _ = listener.accept()
                nursery.start_soon(serve, connection)

        nursery.start_soon(accept)
        yield made
        nursery.cancel_scope.cancel()
    listener.close()


async def next_request(peer: FakePeer, stream: FrameStream) -> Request:
    while True:
        message = await stream.receive()
        if isinstance(message, Request):
            peer.requests.append(message)
            return message


def header_of(request: Request) -> bytes:
    return encode(
        Chunk(request.session, request.version, request.chunk, request.offset, request.length)
    )


async def send_raw(stream: FrameStream, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[stream.sock.send(view) :]
        except BlockingIOError:
            await stream.wait_writable()


@asynccontextmanager
async def stranger(
    address: Address, name: str, kind: LinkKind, *, expected: NodeId, generation: int = 1
) -> AsyncIterator[FrameStream]:
    """A connection to a real agent, proven, and then the test's to misuse."""
    desk = HandshakeDesk(Identity(node_id(name), generation), KEY, NetworkSettings())
    stream = FrameStream(await sockets.dial(address, 2.0))
    try:
        await desk.open(stream, kind, Identity(expected, 1))
        yield stream
    finally:
        stream.close()


async def wait_closed(stream: FrameStream) -> None:
    """Until the other side ends the connection."""
    with trio.fail_after(5.0):
        try:
            while True:
                await stream.receive_some(65536)
        except LINK_FAULTS:
            return
