"""Accepts connections and finds out who is there, before anything is promised.

A stranger costs one task, one socket and at most 4 KiB of buffer for at most two seconds, and only
so many strangers are heard at once; the rest wait in the kernel's queue.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Awaitable, Callable

import trio

from swarm.agent import sockets
from swarm.agent.frame_stream import FrameStream
from swarm.agent.handshaking import DIAL_FAULTS, HandshakeDesk
from swarm.protocol.messages import Hello, RejectReason

logger = logging.getLogger(__name__)

STRANGERS_MAX = 256
"""Connections in their handshake. A fleet that boots at once brings a few dozen a second to
each."""
LINKS_MAX = 1024
"""Accepted links of both kinds: 48 neighbours with some sessions each, and room for many more."""
FULL_PAUSE_S = 0.2
"""Out of descriptors: wait for links to end instead of spinning on accept."""

Serve = Callable[[FrameStream, Hello], Awaitable[None]]


class Listener:
    """The one port of an agent."""

    def __init__(self, desk: HandshakeDesk, serve: Serve) -> None:
        """`serve` runs a link from the end of its handshake to its own."""
        self.is_leaving = False
        self._desk = desk
        self._serve = serve
        self._link_count = 0
        self._strangers = trio.Semaphore(STRANGERS_MAX)

    async def run(self, sock: socket.socket, nursery: trio.Nursery) -> None:
        """Accept until cancelled; owns `sock`."""
        try:
            while True:
                await self._strangers.acquire()
                connection = await self._accept(sock)
                nursery.start_soon(self._welcome, connection)
        finally:
            sockets.close(sock)

    async def _accept(self, sock: socket.socket) -> socket.socket:
        while True:
            try:
                connection, _ = sock.accept()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(sock.fileno())
            except OSError as error:
                # The connection died in the queue, or descriptors are short.
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    logger.warning("cannot accept a connection: %s", error)
                    await trio.sleep(FULL_PAUSE_S)
            else:
                connection.setblocking(False)
                return connection

    async def _welcome(self, connection: socket.socket) -> None:
        stream = FrameStream(connection)
        self._link_count += 1
        try:
            sockets.tune(connection)
            try:
                hello = await self._desk.accept(stream, self._refusal())
            finally:
                self._strangers.release()
            await self._serve(stream, hello)
        except DIAL_FAULTS as error:
            logger.debug("accepted link ended: %r", error)
        finally:
            self._link_count -= 1
            stream.close()

    def _refusal(self) -> tuple[RejectReason, str] | None:
        if self.is_leaving:
            return RejectReason.LEAVING, "this agent is shutting down"
        if self._link_count > LINKS_MAX:
            return RejectReason.TOO_MANY_LINKS, f"{LINKS_MAX} links are open here"
        return None
