"""One connection as a stream of frames: a socket, its decoder, and a count of what was read."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import trio

from swarm.agent import sockets
from swarm.errors import PeerProtocolError
from swarm.protocol.codec import HANDSHAKE_FRAME_BYTES_MAX, FrameDecoder, encode
from swarm.protocol.messages import Message


class LinkClosedError(Exception):
    """The peer closed the connection, or we did; nothing is wrong with anybody."""


LINK_FAULTS = (OSError, LinkClosedError, PeerProtocolError, trio.TooSlowError)
"""All that ends a link by the peer's or the network's doing."""


async def run_until_fault(*tasks: Callable[[], Awaitable[None]]) -> None:
    """Run the tasks of one link side by side until one meets a fault; raises that, bare."""
    faults: list[Exception] = []

    async def guarded(task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except LINK_FAULTS as error:
            faults.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for task in tasks[1:]:
            nursery.start_soon(guarded, task)
        await guarded(tasks[0])
    raise faults[0]


class FrameStream:
    """Owns the socket. Reading and writing may each be used by one task at a time."""

    __slots__ = ("consumed_bytes", "decoder", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.decoder = FrameDecoder(HANDSHAKE_FRAME_BYTES_MAX)
        # Everything read off the socket, payload included; the kernel's own count less this is what
        # waits unread.
        self.consumed_bytes = 0

    async def receive(self, read_bytes: int = 4096) -> Message:
        """The next message, read in portions of at most `read_bytes`; raises LinkClosedError,
        OSError, PeerProtocolError."""
        while (message := self.decoder.next_message()) is None:
            assert not self.decoder.payload_bytes, "a payload is due, not a frame"
            self.decoder.receive_data(await self.receive_some(read_bytes))
        return message

    async def receive_some(self, count: int) -> bytes:
        while True:
            try:
                data = self.sock.recv(count)
            except BlockingIOError:
                await self.wait_readable()
                continue
            if not data:
                raise LinkClosedError
            self.consumed_bytes += len(data)
            return data

    async def wait_readable(self) -> None:
        try:
            await trio.lowlevel.wait_readable(self.fd)
        except trio.ClosedResourceError as error:
            raise LinkClosedError from error

    async def wait_writable(self) -> None:
        try:
            await trio.lowlevel.wait_writable(self.fd)
        except trio.ClosedResourceError as error:
            raise LinkClosedError from error

    @property
    def fd(self) -> int:
        """Asked for each time: the number of a closed socket soon names another connection."""
        fd = self.sock.fileno()
        if fd < 0:
            raise LinkClosedError
        return fd

    async def send(self, messages: list[Message]) -> None:
        """All of it, in one piece where the kernel takes it; raises LinkClosedError, OSError."""
        data = memoryview(b"".join(map(encode, messages)))
        while data:
            try:
                data = data[self.sock.send(data) :]
            except BlockingIOError:
                await self.wait_writable()

    def close(self) -> None:
        sockets.close(self.sock)
