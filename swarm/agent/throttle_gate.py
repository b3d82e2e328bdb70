"""How an agent that nobody coordinates treats an origin that said "slow down".

With a tracker the lease controller answers throttling for the whole fleet. Without one each agent
keeps to one request a second on average, at random instants so that a fleet does not beat in time,
from the first such answer until the next success.
"""

from __future__ import annotations

import random

import trio

INTERVAL_S = 1.0


class ThrottleGate:
    """Requests pass one after the other while it is closed, freely while it is open."""

    def __init__(self) -> None:
        self.is_closed = False
        self._lock = trio.Lock()
        self._next_at = 0.0

    async def pass_through(self) -> None:
        """Wait for this request's turn."""
        if not self.is_closed:
            return
        async with self._lock:
            if self.is_closed:
                await trio.sleep_until(self._next_at)
                self._next_at = trio.current_time() + random.uniform(0, 2 * INTERVAL_S)

    def close(self, retry_after_s: float | None) -> None:
        """The origin said slow down, and perhaps for how long."""
        pause_s = (retry_after_s or 0.0) + random.uniform(0, 2 * INTERVAL_S)
        self._next_at = max(self._next_at, trio.current_time() + pause_s)
        self.is_closed = True

    def open(self) -> None:
        """A request succeeded."""
        self.is_closed = False
