"""How fast this machine's NIC is: told, or learned from the traffic.

The rate enters three rules (what a fair share of a source is, how many sessions a fast node runs,
what the tracker aims at), and link speed is no guide: a veth says 10 Gbit/s, a cloud NIC says
nothing. So the estimate is the highest half-second rate, in or out, of the last 20 busy half
seconds; a burst raises it at once and it falls when the rates stay lower for ten busy seconds.
Idle time teaches nothing and is left out.
"""

from __future__ import annotations

import math
from collections import deque

GIGABIT_BYTES_PER_S = 125_000_000.0
"""First guess, where neither the operator nor the link says less: the slowest NIC that a GPU node
has."""
WINDOW_S = 0.5
"""Long enough to average over a burst of a socket buffer."""
WINDOW_COUNT = 20
"""Ten busy seconds: an origin brown-out of a few seconds does not shrink the NIC."""
LEARNED_COUNT = 6
"""Three seconds of traffic; before that the first guess may be far too high."""

STRIPES_MAX = 16
"""Data links of one session; past it one would rather raise the flow cap."""
SPEED_FACTOR_MAX = 8
"""How many times faster than the slowest common NIC a node may be treated."""


class NicEstimate:
    """Owned by the node and fed by each progress sample."""

    __slots__ = ("_given", "_initial", "_mark", "_rates")

    def __init__(self, given_bytes_per_s: float, link_bytes_per_s: float) -> None:
        self._given = given_bytes_per_s
        self._initial = min(link_bytes_per_s or GIGABIT_BYTES_PER_S, GIGABIT_BYTES_PER_S)
        self._rates: deque[float] = deque(maxlen=WINDOW_COUNT)
        # (instant, bytes in, bytes out) where the running window began.
        self._mark: tuple[float, int, int] | None = None

    @property
    def is_known(self) -> bool:
        """Given, or learned for long enough to judge others by."""
        return self._given > 0 or len(self._rates) >= LEARNED_COUNT

    @property
    def bytes_per_s(self) -> float:
        if self._given > 0:
            return self._given
        highest = max(self._rates, default=0.0)
        return max(highest, 1.0) if self.is_known else max(highest, self._initial)

    def stripes(self, session_count: int, flow_cap_bytes_per_s: float) -> int:
        """How many data links each of so many sessions takes where a flow is capped; cap 0: it
        is not."""
        if not flow_cap_bytes_per_s or not self.is_known:
            return 1  # A guess of the NIC opened sixteen links for each session of a slow node.
        rate = self.bytes_per_s / session_count
        return min(max(math.ceil(rate / flow_cap_bytes_per_s), 1), STRIPES_MAX)

    def sample(self, bytes_in: int, bytes_out: int, *, is_busy: bool, now: float) -> bool:
        """Take the running totals of bytes received and sent; True if that changed the estimate."""
        mark = self._mark
        if mark is None or not is_busy:
            self._mark = (now, bytes_in, bytes_out)
            return False
        elapsed = now - mark[0]
        if elapsed < WINDOW_S:
            return False
        former = (self.is_known, self.bytes_per_s)
        self._rates.append(max(bytes_in - mark[1], bytes_out - mark[2]) / elapsed)
        self._mark = (now, bytes_in, bytes_out)
        return former != (self.is_known, self.bytes_per_s)


def slot_count(usual_count: int, nic_bytes_per_s: float, base_bytes_per_s: float) -> int:
    """D = U of a node with this NIC: the usual count, times how much faster it is than the slowest
    common one; just the usual count where a rate is unknown (0)."""
    if not nic_bytes_per_s or not base_bytes_per_s:
        return usual_count
    factor = min(max(nic_bytes_per_s / base_bytes_per_s, 1.0), SPEED_FACTOR_MAX)
    return round(usual_count * factor)
