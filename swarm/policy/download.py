"""One version at this node: which chunks are held, missing and on their way, who else holds them,
and what is still to be announced.

Whole sets are integers (bit c is chunk c), so that every question is a few operations on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swarm.policy.settings import NodeSettings
from swarm.protocol.availability import Availability
from swarm.protocol.ids import ChunkIndex, LeaseId, VersionId
from swarm.protocol.tracker_api import Mode

if TYPE_CHECKING:
    from swarm.policy.transfers import Transfer

HAVE_INTERVAL_S = 0.05
"""At 2,000 chunks and 25 Gbit/s the same completion time as 10 ms with half the messages."""
SHORT_HAVE_INTERVAL_S = 0.02
"""For versions of few chunks, where a late have is a larger part of the whole: twelve nodes and
384 chunks end at 1.060 of the bound instead of 1.064 (simulated)."""
RACK_HAVE_INTERVAL_S = 0.01
"""In racks, where a late have is an import too many."""
FEW_CHUNKS = 500
COMMON_HOLDERS = 5
LAZY_HAVE_INTERVAL_S = 0.2
"""A chunk that so many neighbours hold is news of little worth: its have waits for this, or rides
along with a rarer one's. Twelve nodes, 384 chunks, narrow origin: 4.1 haves a chunk instead of 5.2,
each a wake-up at both ends, at the same 1.058-1.059 of the bound (simulated, three seeds). With two
holders it is 2.9 haves for 1.065."""
ORIGIN_AFTER_S = 120.0
"""Longer than a tracker takes to restart and re-grant everything."""


@dataclass(slots=True)
class BytesBySource:
    """Where verified bytes came from, what was received in vain, and what got lost again."""

    origin: int = 0
    peer_same_zone: int = 0
    peer_other_zone: int = 0
    local: int = 0
    wasted: int = 0
    # Held once and damaged since.
    lost: int = 0


class Download:
    """Owned by the node, one per version, complete ones included.

    Invariant: `missing` and `held` split all chunks; `in_flight` ⊆ `missing` is kept by the
    transfer table; `availability` counts what linked neighbours announced, `rack_availability` what
    the rack mates among them did.
    """

    def __init__(
        self,
        version: VersionId,
        lengths: tuple[int, ...],
        have_bits: int,
        settings: NodeSettings,
        now: float,
    ) -> None:
        self.version = version
        self.lengths = lengths
        self.all_bits = (1 << len(lengths)) - 1
        self.held = have_bits & self.all_bits
        self.missing = self.all_bits ^ self.held
        self.in_flight = 0
        self.availability = Availability()
        # The same of rack mates only.
        self.rack_availability = Availability()
        self.mode = Mode.AUTO
        # The tracker brings each chunk into our zone by a zone lease.
        self.is_zoned = False
        # Live leases → their chunk; `over` are those that ended here and that the tracker may
        # still name until it has heard.
        self.leases: dict[LeaseId, ChunkIndex] = {}
        self.leases_over: dict[LeaseId, None] = {}
        self.bytes = BytesBySource(local=sum(lengths) - self._bytes_of_missing(lengths))
        self.total_bytes = sum(lengths)
        # When bytes last arrived and fitted, or when the wait for them began; and the same without
        # what the origin gave unasked, for that proves that peers and tracker do not supply us.
        self.progress_at = now
        self.supplied_at = now
        self.chunk_bytes = max(lengths, default=1)
        self._is_in_rack = bool(settings.rack)
        few_interval_s = SHORT_HAVE_INTERVAL_S if len(lengths) < FEW_CHUNKS else HAVE_INTERVAL_S
        self._interval_s = settings.have_interval_s or (
            RACK_HAVE_INTERVAL_S if settings.rack else few_interval_s
        )
        self._unannounced = 0
        self._announced_at = -math.inf
        # When the next batch of haves is due; infinite while there is nothing to say.
        self.announce_at = math.inf

    def _bytes_of_missing(self, lengths: tuple[int, ...]) -> int:
        return sum(length for chunk, length in enumerate(lengths) if self.missing >> chunk & 1)

    @property
    def wanted(self) -> int:
        """Chunks neither held nor on their way."""
        return self.missing ^ self.in_flight

    @property
    def takes_from_peers(self) -> bool:
        return self.mode is Mode.AUTO or self.mode is Mode.PEERS_ONLY

    @property
    def takes_from_origin(self) -> bool:
        return self.mode is Mode.AUTO or self.mode is Mode.ORIGIN

    def origin_after_s(self, setting: float | None, nic_bytes_per_s: float) -> float:
        """How long to wait for a verified byte before the origin is read unasked."""
        if setting is not None:
            return setting
        return max(ORIGIN_AFTER_S, 3 * self.total_bytes / nic_bytes_per_s)

    def hold(self, chunk: ChunkIndex, now: float) -> None:
        """A missing chunk is verified: count it and have it announced, the first one after a
        silence at once unless it is a common one."""
        bit = 1 << chunk
        assert self.missing & bit, chunk
        self.missing ^= bit
        self.held |= bit
        self.in_flight &= self.missing
        self._unannounced |= bit
        self.progress_at = now
        holders = self.rack_availability if self._is_in_rack else self.availability
        is_common = holders.count(chunk) >= COMMON_HOLDERS
        interval_s = LAZY_HAVE_INTERVAL_S if is_common else self._interval_s
        self.announce_at = min(self.announce_at, max(self._announced_at + interval_s, now))

    def account(self, chunk: ChunkIndex, transfer: Transfer | None, now: float) -> None:
        """Count a verified chunk by its source; no transfer means the local disk."""
        if transfer is None or transfer.session is not None or transfer.lease is not None:
            self.supplied_at = now
        length = self.lengths[chunk]
        if transfer is None:
            self.bytes.local += length
        elif transfer.session is None:
            self.bytes.origin += length
        elif transfer.session.is_same_zone:
            self.bytes.peer_same_zone += length
        else:
            self.bytes.peer_other_zone += length

    def lose(self, chunk: ChunkIndex, now: float) -> None:
        """A held chunk is damaged: it is missing again."""
        bit = 1 << chunk
        assert self.held & bit, chunk
        self.held ^= bit
        self.missing |= bit
        if self._unannounced & bit:
            self._unannounced ^= bit
            if not self._unannounced:
                self.announce_at = math.inf
        self.bytes.lost += self.lengths[chunk]
        self.progress_at = now

    def take_batch(self, now: float) -> int:
        """The chunks to announce now; the next batch is due an interval later at the earliest."""
        batch, self._unannounced = self._unannounced, 0
        self._announced_at = now
        self.announce_at = math.inf
        return batch

    def check_invariants(self) -> None:
        assert self.held | self.missing == self.all_bits
        assert not self.held & self.missing
        assert not self.in_flight & ~self.missing
        assert not self._unannounced & ~self.held
        assert (self.announce_at == math.inf) or self._unannounced
