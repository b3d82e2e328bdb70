"""How many reads of the origin at once, and how many chunks in each.

One S3 connection gives about 90 MB/s after 65 ms, however fast the NIC, so the number of
connections decides the rate. A node among others takes its part of what draws three NICs for the
fleet. A node that is alone starts there too and then doubles while that raises the rate: nobody
else's egress is at stake. It probes upwards only, because in a brown-out of the origin fewer reads
look just as good and recovery would start from nothing.

A request costs the wait for its first byte and about 1 ms of CPU, whatever it brings. So a node
that is alone reads small chunks in runs: with one request as many bytes as one connection brings in
the time that a range should last. Towards the end runs become shorter, or the last of them would
keep one connection busy while the others are idle.
"""

from __future__ import annotations

import math

CONNECTION_BYTES_PER_S = 90e6
"""What one S3 connection gives; also fair to other object stores."""
RANGE_S = 0.2
"""A range should last so long, or its first byte costs too much of it."""
RUNS_PER_READ = 2
"""Of what is left, so many runs for each parallel read: half of it is read in long runs, half of
the rest in runs half as long, and so on."""
CONNECTIONS_MAX = 32
FIRST_BYTE_S = 0.065
"""What a range waits for its first byte."""
FLEET_NICS = 3.0
"""Origin rate that all nodes together may ask for unasked, in NICs: the tracker's own target."""
ALONE_NICS = 1.1
"""Of what fewer than three nodes could take."""
READS_MIN = 8
"""Parallel reads of all nodes together: twice the sessions of one node, or the origin idles while a
few slow readers finish."""
NODE_READS_MIN = 2
"""Lines are not equally long, so a node must be able to read faster than its part. Four made eight
nodes end at 1.32 times the bound, two at 1.21 (simulated)."""
NODE_READS_MAX = 64
"""With 4 connections each, more than any store gives one client."""
GAIN = 1.1
"""Twice the reads must bring 10 % more, or they are not kept."""
JUDGE_S = 0.5
"""A rate is taken over so long at least."""
PROBE_S_MIN = 1.0
PROBE_S_MAX = 16.0


def connections_for(length: int) -> int:
    """k: connections that keep each range of a chunk at about 0.2 s."""
    return min(max(math.ceil(length / (CONNECTION_BYTES_PER_S * RANGE_S)), 1), CONNECTIONS_MAX)


def run_bytes(chunk_bytes: int) -> int:
    """Bytes of one read, of one chunk or of several."""
    return max(int(CONNECTION_BYTES_PER_S * RANGE_S) // chunk_bytes, 1) * chunk_bytes


def run_length(chunk_bytes: int, wanted_count: int, read_count: int) -> int:
    """How many chunks to read with one request, a power of two, while `read_count` reads share
    `wanted_count` chunks."""
    most = min(run_bytes(chunk_bytes) // chunk_bytes, wanted_count // (RUNS_PER_READ * read_count))
    return 1 << max(most.bit_length() - 1, 0)


def reads_for(nic_bytes_per_s: float, read_bytes: int, node_count: int) -> int:
    """One node's part of the parallel reads, of `read_bytes` each, that draw the fleet's target
    rate, first bytes included; the least while the NIC is unknown (0)."""
    target = min(FLEET_NICS, ALONE_NICS * node_count) * nic_bytes_per_s
    read_bytes_per_s = connections_for(read_bytes) * CONNECTION_BYTES_PER_S
    transfer_s = read_bytes / read_bytes_per_s
    reads = target / read_bytes_per_s * (transfer_s + FIRST_BYTE_S) / transfer_s
    part = math.ceil(max(reads, READS_MIN) / node_count)
    return min(max(part, NODE_READS_MIN), NODE_READS_MAX)


class ReadWindow:
    """Reads at once of a node that is alone."""

    def __init__(self) -> None:
        # 0 until the first read.
        self.count = 0
        # Chunks and bytes that came since; infinite while the window is not full.
        self._since = math.inf
        self._bytes = 0
        self._chunk_count = 0
        # Rate before the last doubling; None while none is on trial.
        self._rate_before: float | None = None
        self._probe_at = -math.inf
        self._probe_s = PROBE_S_MIN

    def halve(self) -> None:
        """The origin asked for less."""
        self.count = max(self.count // 2, 1)
        self._rate_before = None
        self._since = math.inf

    def took(self, length: int, live_count: int, now: float) -> None:
        """A chunk came while `live_count` reads ran; judged once as many came as run at once."""
        if live_count < self.count or self._since == math.inf:
            # Either something else limits the rate, and there is nothing to learn, or we begin.
            self._begin(math.inf if live_count < self.count else now)
            return
        self._bytes += length
        self._chunk_count += 1
        elapsed = now - self._since
        if elapsed >= JUDGE_S and self._chunk_count >= self.count:
            self._judge(self._bytes / elapsed, now)
            self._begin(now)

    def _begin(self, since: float) -> None:
        self._since, self._bytes, self._chunk_count = since, 0, 0

    def _judge(self, rate: float, now: float) -> None:
        if self._rate_before is not None and rate < GAIN * self._rate_before:
            self.count = max(self.count // 2, 1)
            self._probe_at = now + self._probe_s
            self._probe_s = min(2 * self._probe_s, PROBE_S_MAX)
        self._rate_before = None
        if now >= self._probe_at and self.count < NODE_READS_MAX:
            self._rate_before = rate
            self.count *= 2
