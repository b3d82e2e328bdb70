"""The object store: a total rate, a rate per connection, a wait for the first byte, and its temper.

A chunk is read over k connections on split ranges, all of them requests of their own: the chunk is
there when the last range is, so its first byte counts as the latest of k draws. Above its rate of
requests the store answers 503 (a bucket of one second's worth, as S3 counts), and a part of the
requests may hang: they never get an answer, and the reader gives up by itself.

What it is asked and what it sends is counted here, as its owner would be billed for it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from simulations.network import Flow, Link, Network
from simulations.scenario import OriginShape


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request for a chunk comes to, before any byte of it."""

    # Until the first byte, or the refusal, is at the reader.
    wait_s: float
    is_throttled: bool = False
    is_hung: bool = False


class Origin:
    """One store. `link` is its total rate of payload; `sent_bytes` what it sent, wasted or not."""

    def __init__(self, shape: OriginShape, payload_bytes_per_s: float, rng: random.Random) -> None:
        self.shape = shape
        self.link = Link("origin", payload_bytes_per_s)
        self.connection_bytes_per_s = shape.connection_bytes_per_s
        self.sent_bytes = 0
        # Requests are ranges; reads are chunks.
        self.request_count = 0
        self.read_count = 0
        self.throttled_count = 0
        self.hung_count = 0
        # Reads under way.
        self.flows: dict[Flow, None] = {}
        self._rng = rng
        self._tokens = shape.requests_per_s
        self._tokens_at = 0.0

    def ask(self, connections: int, now: float) -> Answer:
        """A reader opens `connections` ranges of a chunk."""
        shape = self.shape
        self.request_count += connections
        self.read_count += 1
        if not self._has_tokens(connections, now):
            self.throttled_count += 1
            return Answer(shape.rtt_s, is_throttled=True)
        if shape.hung_share and self._rng.random() < shape.hung_share:
            self.hung_count += 1
            return Answer(shape.rtt_s, is_hung=True)
        first_byte_s = max(
            self._rng.uniform(shape.first_byte_s_min, shape.first_byte_s_max)
            for _ in range(connections)
        )
        return Answer(shape.rtt_s + first_byte_s)

    def slow(self, network: Network, total_factor: float, connection_factor: float) -> None:
        """It gives so much of its rates from now on."""
        network.resize(self.link, self.link.bytes_per_s * total_factor)
        self.connection_bytes_per_s *= connection_factor
        for flow in self.flows:
            network.recap(flow, self.connection_bytes_per_s)

    def _has_tokens(self, connections: int, now: float) -> bool:
        rate = self.shape.requests_per_s
        if rate == float("inf"):
            return True
        self._tokens = min(self._tokens + (now - self._tokens_at) * rate, max(rate, connections))
        self._tokens_at = now
        if self._tokens < connections:
            return False
        self._tokens -= connections
        return True
