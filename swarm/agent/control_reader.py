"""Reads all control links with one task.

An agent hears a few hundred small frames a second from its neighbours. A task for each link would
wake the loop for each frame, and the decider behind it. Here all links stand in one epoll set,
which is itself what one task waits for: a wake-up reads every link that has something, with one
system call each. After a burst the task rests, so that a steady stream is read in batches; the
first frame after silence is read at once. Most of what comes meanwhile is read without a wake-up of
its own, because the decider looks here (`read`) whenever it is awake.
"""

from __future__ import annotations

import select
from collections.abc import Callable

import trio

REST_S = 0.02
"""The shortest interval at which neighbours announce."""
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

    def read(self) -> None:
        """Read what is there from every link that has something; never blocks."""
        if self._epoll.closed:
            return
        for fd, _ in self._epoll.poll(0, LINKS_PER_TURN):
            read = self._readers.get(fd)
            if read is not None:
                read()

    async def run(self) -> None:
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                self.read()
                await trio.sleep(REST_S)
        finally:
            self._epoll.close()
            self._readers.clear()
