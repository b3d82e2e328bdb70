"""A token bucket in bytes/s, shared by all that moves in one direction (`--uplink-limit`,
`--downlink-limit`): what comes from peers and what comes from the origin are one downlink.

Tokens are bytes; the bucket may go into debt by one slice, so that a caller takes after it has
moved the bytes, when it knows how many there were, and the next caller waits the debt off. The
long-run rate is exact; the burst is bounded by 50 ms of the rate, so that inference traffic on the
same NIC never waits longer than that behind us."""

from __future__ import annotations

from collections.abc import Callable

import trio

BURST_S = 0.05
SLICE_BYTES_MIN = 4096
SLICE_BYTES_MAX = 256 * 1024


class RateLimit:
    """One direction's bucket. `rate` 0 or None means no limit."""

    __slots__ = ("_at", "_clock", "_tokens", "rate", "slice_bytes")

    def __init__(
        self, rate: float | None, *, clock: Callable[[], float] = trio.current_time
    ) -> None:
        self.rate = rate or 0.0
        # How much one caller should move at a time: a tenth of the burst, so that links alternate.
        burst = self.rate * BURST_S
        self.slice_bytes = int(min(max(burst / 10, SLICE_BYTES_MIN), SLICE_BYTES_MAX))
        self._clock = clock
        self._tokens = burst
        self._at: float | None = None

    @property
    def is_limited(self) -> bool:
        return self.rate > 0

    def delay_s(self) -> float:
        """Seconds until the bucket is out of debt; 0 means go. Immediate."""
        if not self.is_limited:
            return 0.0
        now = self._clock()
        if self._at is not None:
            burst = self.rate * BURST_S
            self._tokens = min(burst, self._tokens + (now - self._at) * self.rate)
        self._at = now
        # Less than a byte is rounding; a clock that only moves by sleeps would never sleep it off.
        return -self._tokens / self.rate if self._tokens <= -1 else 0.0

    def take(self, count: int) -> None:
        """`count` bytes were moved. Immediate."""
        if self.is_limited:
            self._tokens -= count

    async def wait(self) -> None:
        """Until the bucket is out of debt. Callers that wait together wake together and may each
        add a slice of debt, which the next round pays."""
        delay = self.delay_s()
        while delay > 0:
            await trio.sleep(delay)
            delay = self.delay_s()
