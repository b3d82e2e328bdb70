"""Reads all control links with one task.

An agent hears a few hundred small frames a second from its neighbours. A task for each link would
wake the loop for each frame, and the decider behind it. Here all links stand in one epoll set,
which is itself what one task waits for: a wake-up reads every link that has something, with one
system call each. After a burst the task rests for a few milliseconds, so that a steady stream is
read in batches; the first frame after silence is read at once.
"""

from __future__ import annotations

import select
from collections.abc import Callable

import trio

REST_S = 0.004
"""A fifth of the shortest interval at which neighbours announce."""
LINKS_PER_TURN = 64


class ControlReader:
    """One per running network; closed with it."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        # By descriptor; a link removes itself before it closes its socket.
        self._readers: dict[int, Callable[[], None]] = {}

    def add(self, fd: int, read: Callable[[], None]) -> None:
        """Call `read` whenever `fd` has something; it must not block or raise."""
        self._readers[fd] = read
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        if self._readers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    async def run(self) -> None:
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                for fd, _ in self._epoll.poll(0, LINKS_PER_TURN):
                    read = self._readers.get(fd)
                    if read is not None:
                        read()
                await trio.sleep(REST_S)
        finally:
            self._epoll.close()
            self._readers.clear()
