"""How far transfers have come, and which of them come too slowly.

A chunk from a peer is slow when it is not half done after 2·D chunk times and comes at less than a
third of our fair share, (NIC − origin intake) / D. Until the NIC is known the share is the
median of the current sources. Forgetting the origin intake made a four-node swarm cut healthy
sources and end at 1.5 times the bound.

Where uplinks are the scarce thing, many flows are slow and no source is to blame: a node that cut
them had fewer sessions, so a larger fair share, so cut more, and sat on half its downlink for two
seconds while it avoided the sources it needed. So a slow source is given up only for one that has
a free slot, as far as is known; one that crawls, for any.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable

from swarm.policy.download import Download
from swarm.policy.events import TransferId
from swarm.policy.nic import NicEstimate
from swarm.policy.peers import Neighbour
from swarm.policy.picker import other_sources
from swarm.policy.transfers import Transfer, TransferTable
from swarm.protocol.chunk_set import iter_bits

SLOW_AGE_S_MIN = 0.25
"""No source is judged earlier: two samples of progress, and the start of a TCP flow."""
SLOW_SHARE = 1 / 3
"""Below this part of the fair share a source is slow."""
HEALTHY_SHARE = 1 / 2
"""Healthy flows stay above this part; one that gets there again is avoided no more."""
CRAWL_SHARE = 1 / 10
"""Below this part it is worth a queue elsewhere to be rid of it: a node at a twentieth of the
common rate gives less, the least flow of a crowded uplink more. With a quarter slow nodes cost as
much, and swarms whose racks share a narrow uplink cut each other's flows."""


class Progress:
    """Owned by `Requests`; reads the table, changes only what transfers have received."""

    def __init__(self, table: TransferTable, nic: NicEstimate) -> None:
        self._table = table
        self._nic = nic
        self._sampled_at = -math.inf
        # Payload rate over the last sample of all that comes beside the sessions: origin reads and
        # zone leases.
        self._origin_bytes_per_s = 0.0

    def sample(self, received: Iterable[tuple[TransferId, int]], now: float) -> None:
        """Take how many bytes each live transfer has received in all."""
        from_origin = 0
        for transfer_id, received_bytes in received:
            transfer = self._table.live.get(transfer_id)
            if transfer is not None:
                if transfer.session is None or transfer.lease is not None:
                    from_origin += received_bytes - transfer.received
                transfer.received = received_bytes
        if now > self._sampled_at:
            self._origin_bytes_per_s = max(from_origin, 0) / (now - self._sampled_at)
            self._sampled_at = now

    def fair_bytes_per_s(self, heads: list[Transfer], limit: int, now: float) -> float:
        """What each of the sources should give; `heads` are the transfers that are running, at most
        `limit` of them."""
        if self._nic.is_known:
            left = self._nic.bytes_per_s - self._origin_bytes_per_s
            return max(left, 0.0) / max(len(heads), limit)
        return statistics.median(head.bytes_per_s(now) for head in heads) if heads else 0.0

    def is_healthy(self, transfer: Transfer, heads: list[Transfer], limit: int, now: float) -> bool:
        """A transfer that has ended came about as fast as it should."""
        rate = transfer.length / max(now - transfer.begun_at, 1e-9)
        return rate >= self.fair_bytes_per_s(heads, limit, now) * HEALTHY_SHARE

    def slow_ones(
        self, heads: list[Transfer], limit: int, now: float
    ) -> list[tuple[Transfer, bool]]:
        """The running transfers that come too slowly, each with whether it crawls; `limit` is
        D."""
        fair_bytes_per_s = self.fair_bytes_per_s(heads, limit, now)
        return [
            (head, head.bytes_per_s(now) < fair_bytes_per_s * CRAWL_SHARE)
            for head in heads
            if 2 * head.received < head.length
            and now - head.begun_at >= self._patience_s(head, limit)
            and head.bytes_per_s(now) < fair_bytes_per_s * SLOW_SHARE
        ]

    def last_to_come(
        self, download: Download, links: Collection[Neighbour], longest_s: float, now: float
    ) -> Transfer | None:
        """The missing chunk that has longest to go, if that is more than `longest_s`, it is asked
        for once and one of `links` could give it too."""
        last = None
        for chunk in iter_bits(download.missing):
            flights = self._table.of_chunk(download, chunk)
            if len(flights) == 1:
                remaining_s = flights[0].remaining_s(now)
                if remaining_s > longest_s and other_sources(flights[0], links):
                    last, longest_s = flights[0], remaining_s
        return last

    def _patience_s(self, transfer: Transfer, limit: int) -> float:
        return max(2 * limit * transfer.length / self._nic.bytes_per_s, SLOW_AGE_S_MIN)
