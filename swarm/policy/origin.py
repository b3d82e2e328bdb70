"""Reading the origin without a lease: when, which chunk, and how hard.

With a tracker that answers this never happens, for each unasked read may be the second copy of a
chunk. There are four exceptions, and all slots of all neighbours being busy is none of them:

* **Alone.** No tracker and nobody else known: there is no egress to share, so the node reads as
  much as helps. It doubles its parallel reads while that raises the rate, holds otherwise and
  probes again after a pause that doubles (an S3 connection gives about 90 MB/s, so a fast NIC needs
  many). No token bucket.
* **Without a tracker, with peers.** Rendezvous hashing of (chunk, known nodes) names one reader for
  each chunk that no neighbour holds; the next in line may step in only after a while without any
  verified byte, and so on. A token bucket caps each node.
* **Mode `origin`,** an operator's order: under the token bucket.
* **Stuck.** No peer and no lease gave a byte for `origin_after`: any missing chunk, under the token
  bucket, and the statistics say so loudly.

A throttling answer (503, 429) limits the node to one request a second, with jitter over the whole
second, until one succeeds. A chunk that failed rests, longer each time, and is counted, so that
whoever waits can tell a broken origin from a slow one.
"""

from __future__ import annotations

import enum
import hashlib
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

from swarm.policy.commands import Command, FetchFromOrigin
from swarm.policy.download import Download
from swarm.policy.events import FailureReason
from swarm.policy.nic import NicEstimate
from swarm.policy.peers import Neighbourhood
from swarm.policy.settings import NodeSettings
from swarm.policy.transfers import Transfer, TransferTable
from swarm.protocol.chunk_set import pick_bit
from swarm.protocol.ids import ChunkIndex, NodeId, VersionId
from swarm.protocol.tracker_api import Mode

CONNECTION_BYTES_PER_S = 90e6
"""What one S3 connection gives; also fair to other object stores."""
RANGE_S = 0.2
"""A range should last so long, or its first byte (30–100 ms) costs too much of it."""
CONNECTIONS_MAX = 32
FLEET_NICS = 3.0
"""Origin rate that all nodes together may ask for unasked, in NICs: the tracker's own target."""
READS_MIN = 8
"""Parallel reads of all nodes together: twice the sessions of one node, or the origin idles while a
few slow readers finish. Four each instead made eight nodes end at 1.44 times the bound."""
NODE_READS_MIN = 2
"""Lines are not equally long, so a node must be able to read faster than its part."""
FIRST_BYTE_S = 0.065
"""What a range waits for its first byte."""
BUCKET_CHUNKS = 2
"""Depth of the token bucket, in chunks: a read can always start after a wait."""
READS_MAX = 64
"""Chunks read at once by one node; with 4 connections each, more than any store gives a client."""
ALONE_GAIN = 1.1
"""Twice the reads must bring 10 % more, or they are not kept."""
PROBE_S_MIN = 1.0
PROBE_S_MAX = 16.0
NEXT_IN_LINE_S = 3.0
"""Without a verified byte for so long, the next node in a chunk's line may read it; a reader that
died is noticed in less, and a chunk takes less at any sensible rate."""
RANKED_MAX = 32
"""Chunks whose line is worked out in one step: 33 hashes each, 1 ms in all."""
REST_S = 0.5
"""After a failed read of a chunk; doubles, so that four attempts fit in ten seconds."""
REST_S_MAX = 30.0
THROTTLED_S = 2.0
"""Full jitter over this gives one request a second on average."""


class Right(enum.Enum):
    """Why a node may read the origin unasked."""

    NONE = enum.auto()
    ALONE = enum.auto()
    IN_LINE = enum.auto()
    ORDERED = enum.auto()
    STUCK = enum.auto()


@dataclass(frozen=True, slots=True)
class OriginTrouble:
    """A chunk that the origin would not give."""

    chunk: ChunkIndex
    attempt_count: int
    reason: FailureReason


@dataclass(slots=True)
class _Rest:
    """When a failed chunk may be read again."""

    trouble: OriginTrouble
    until: float


class OriginReads:
    """Owned by the node; starts every origin read that has no lease."""

    def __init__(
        self,
        settings: NodeSettings,
        me: NodeId,
        rng: random.Random,
        neighbourhood: Neighbourhood,
        table: TransferTable,
        nic: NicEstimate,
        orders: list[Command],
    ) -> None:
        self._settings = settings
        self._rng = rng
        self._neighbourhood = neighbourhood
        self._table = table
        self._nic = nic
        self._orders = orders
        self._line = _Line(me)
        self._window = _Window()
        self.is_tracker_lost = not settings.has_tracker
        self.is_leaving = False
        # When `act` has something to do; infinite while only an event can change that.
        self.act_at = math.inf
        self._tokens = 0.0
        self._tokens_at = -math.inf
        # After a throttling answer: when the next request may start; None while not throttled.
        self._throttled_until: float | None = None
        self._rests: dict[tuple[VersionId, ChunkIndex], _Rest] = {}

    def right(self, download: Download, now: float) -> Right:
        """Why this version may be read from the origin unasked."""
        if not self._settings.has_origin or not download.takes_from_origin:
            return Right.NONE
        if download.mode is Mode.ORIGIN:
            return Right.ORDERED
        if self.is_tracker_lost:
            return Right.IN_LINE if self._neighbourhood.known_count else Right.ALONE
        return Right.STUCK if now >= self._stuck_at(download) else Right.NONE

    def _stuck_at(self, download: Download) -> float:
        patience_s = download.origin_after_s(self._settings.origin_after_s, self._nic.bytes_per_s)
        return download.supplied_at + patience_s

    def act(self, downloads: Iterable[Download], now: float, rest_until: float) -> None:
        """Start the reads that are allowed now, none before `rest_until`, and note when to look
        again."""
        self.act_at = math.inf
        if self.is_leaving:
            return
        if rest_until > now:
            self.act_at = rest_until
            return
        for download in downloads:
            if download.missing:
                self._act_for(download, now)

    def _act_for(self, download: Download, now: float) -> None:
        right = self.right(download, now)
        if right is Right.NONE:
            if self._settings.has_origin and download.takes_from_origin:
                self._look_again(self._stuck_at(download))
            return
        while self._table.origin_count < self._reads_max(download, right):
            if not self._may_start(download, right, now):
                return
            chunk = self._pick(download, right, now)
            if chunk is None:
                return
            self._start(download, chunk, right, now)

    def _look_again(self, at: float) -> None:
        self.act_at = min(self.act_at, at)

    def _reads_max(self, download: Download, right: Right) -> int:
        """How many chunks to read at once: this node's part of what fills three NICs, or, alone,
        what has been found to help."""
        nodes = 1 + self._neighbourhood.known_count
        nic_bytes_per_s = self._nic.bytes_per_s if self._nic.is_known else 0.0
        if right is not Right.ALONE:
            return reads_for(nic_bytes_per_s, download.chunk_bytes, nodes)
        if not self._window.count:
            self._window.count = reads_for(nic_bytes_per_s, download.chunk_bytes, 1)
        return self._window.count

    def _may_start(self, download: Download, right: Right, now: float) -> bool:
        if self._throttled_until is not None and now < self._throttled_until:
            self._look_again(self._throttled_until)
            return False
        if right is Right.ALONE:
            return True
        rate = self._cap_bytes_per_s()
        depth = BUCKET_CHUNKS * download.chunk_bytes
        elapsed = min(now - self._tokens_at, depth / rate)
        self._tokens = min(self._tokens + elapsed * rate, depth)
        self._tokens_at = now
        lacking = download.chunk_bytes - self._tokens
        if lacking > 0.5:
            self._look_again(now + lacking / rate)
            return False
        return True

    def _cap_bytes_per_s(self) -> float:
        """This node's part of what the fleet may ask of the origin."""
        nodes = 1 + self._neighbourhood.known_count
        return self._settings.origin_cap_bytes_per_s or (
            min(FLEET_NICS / nodes, 1.0) * self._nic.bytes_per_s
        )

    def _pick(self, download: Download, right: Right, now: float) -> ChunkIndex | None:
        allowed = download.wanted ^ (download.wanted & self._resting(download, now))
        if right is Right.STUCK and not allowed:
            allowed = download.missing & ~self._resting(download, now) & ~self._own(download)
        if right is Right.IN_LINE:
            allowed ^= allowed & download.availability.held()
            return self._pick_in_line(download, allowed, now)
        return pick_bit(allowed, self._rng) if allowed else None

    def _pick_in_line(self, download: Download, allowed: int, now: float) -> ChunkIndex | None:
        """A chunk that nobody near holds and that is this node's to read."""
        waited_s = max(now - download.progress_at, 0.0)
        rank_max = int(waited_s / NEXT_IN_LINE_S)
        self._look_again(download.progress_at + (rank_max + 1) * NEXT_IN_LINE_S)
        nodes = self._neighbourhood.known_nodes()
        mine = self._line.mine(download.version, allowed, nodes, rank_max)
        if self._line.has_more:
            self._look_again(now)
        return pick_bit(mine, self._rng) if mine else None

    def _own(self, download: Download) -> int:
        """Chunks that are being read from the origin already."""
        bits = 0
        for transfer in self._table.live.values():
            if transfer.download is download and transfer.session is None:
                bits |= 1 << transfer.chunk
        return bits

    def _resting(self, download: Download, now: float) -> int:
        """Chunks that failed a moment ago."""
        bits = 0
        for (version, chunk), rest in self._rests.items():
            if version == download.version and rest.until > now:
                bits |= 1 << chunk
                self._look_again(rest.until)
        return bits

    def _start(self, download: Download, chunk: ChunkIndex, right: Right, now: float) -> None:
        transfer = self._table.begin(download, chunk, now)
        connections = connections_for(transfer.length)
        if self._throttled_until is not None:
            connections = 1
            self._throttled_until = now + self._rng.uniform(0, THROTTLED_S)
        if right is not Right.ALONE:
            self._tokens -= transfer.length
        self._orders.append(FetchFromOrigin(transfer.id, download.version, chunk, connections))

    def verified(self, transfer: Transfer, now: float) -> None:
        """An origin read ended well, leased or not."""
        self._throttled_until = None
        self._rests.pop((transfer.download.version, transfer.chunk), None)
        self._window.took(transfer.length, self._table.origin_count + 1, now)

    def failed(
        self, transfer: Transfer, reason: FailureReason, retry_after_s: float | None, now: float
    ) -> None:
        """An origin read ended without a chunk, leased or not, and not because we gave it up."""
        if reason is FailureReason.THROTTLED:
            wait_s = (retry_after_s or 0.0) + self._rng.uniform(0, THROTTLED_S)
            self._throttled_until = now + min(wait_s, REST_S_MAX)
            self._window.count = max(self._window.count // 2, 1)
            return
        key = (transfer.download.version, transfer.chunk)
        former = self._rests.get(key)
        attempts = 1 + (former.trouble.attempt_count if former else 0)
        rest_s = min(REST_S * 2 ** min(attempts - 1, 16), REST_S_MAX)
        self._rests[key] = _Rest(OriginTrouble(transfer.chunk, attempts, reason), now + rest_s)

    def trouble(self, version: VersionId) -> OriginTrouble | None:
        """The chunk of a version that failed most often and is still missing."""
        troubles = [rest.trouble for key, rest in self._rests.items() if key[0] == version]
        return max(troubles, key=lambda trouble: trouble.attempt_count, default=None)

    def settled(self, download: Download, chunk: ChunkIndex) -> None:
        """The chunk is held, from wherever; its failures are history."""
        if self._rests:
            self._rests.pop((download.version, chunk), None)

    def forget(self, version: VersionId) -> None:
        self._line.forget()
        self._rests = {key: rest for key, rest in self._rests.items() if key[0] != version}


def connections_for(length: int) -> int:
    """k: connections that keep each range of a chunk at about 0.2 s."""
    return min(max(math.ceil(length / (CONNECTION_BYTES_PER_S * RANGE_S)), 1), CONNECTIONS_MAX)


def reads_for(nic_bytes_per_s: float, chunk_bytes: int, node_count: int) -> int:
    """One node's part of the parallel reads that draw the fleet's target rate, first bytes
    included, if a connection gives what it usually does; the least while the NIC is unknown (0)."""
    target = min(FLEET_NICS, 1.1 * node_count) * nic_bytes_per_s
    chunk_rate = connections_for(chunk_bytes) * CONNECTION_BYTES_PER_S
    transfer_s = chunk_bytes / chunk_rate
    reads = 1.1 * target / chunk_rate * (transfer_s + FIRST_BYTE_S) / transfer_s
    part = math.ceil(max(reads, READS_MIN) / node_count)
    return min(max(part, NODE_READS_MIN), READS_MAX)


class _Line:
    """Who may read a chunk first, second, third: the order of hash(node, version, chunk) over the
    known nodes, so that all who know the same nodes agree without a word. Worked out once per chunk
    and membership, a few chunks at a time."""

    def __init__(self, me: NodeId) -> None:
        self._me = me
        self._nodes: list[NodeId] = []
        # This node's rank → chunks, by version, and the chunks that have been ranked.
        self._ranks: dict[VersionId, dict[int, int]] = {}
        self._ranked: dict[VersionId, int] = {}
        # The last question left chunks unranked.
        self.has_more = False

    def mine(self, version: VersionId, allowed: int, nodes: list[NodeId], rank_max: int) -> int:
        """The members of `allowed` in whose line this node stands at `rank_max` or before."""
        if nodes != self._nodes:
            self.forget()
            self._nodes = nodes
        ranks = self._ranks.setdefault(version, {})
        unranked = allowed & ~self._ranked.get(version, 0)
        mine = self._among(ranks, allowed, rank_max)
        for _ in range(RANKED_MAX):
            if mine or not unranked:
                break
            low = unranked & -unranked
            unranked ^= low
            rank = self._rank(version, ChunkIndex(low.bit_length() - 1))
            ranks[rank] = ranks.get(rank, 0) | low
            self._ranked[version] = self._ranked.get(version, 0) | low
            mine |= low if rank <= rank_max else 0
        self.has_more = bool(unranked) and not mine
        return mine

    def _among(self, ranks: dict[int, int], allowed: int, rank_max: int) -> int:
        mine = 0
        for rank, bits in ranks.items():
            if rank <= rank_max:
                mine |= bits & allowed
        return mine

    def _rank(self, version: VersionId, chunk: ChunkIndex) -> int:
        tail = version + chunk.to_bytes(4, "big")
        own = _weight(self._me, tail)
        return sum(_weight(node, tail) > own for node in self._nodes)

    def forget(self) -> None:
        self._ranks.clear()
        self._ranked.clear()


def _weight(node: NodeId, tail: bytes) -> bytes:
    return hashlib.blake2b(node + tail, digest_size=8).digest()


class _Window:
    """How many chunks a lone node reads at once: doubled while that raises the rate."""

    def __init__(self) -> None:
        # 0 until the first read.
        self.count = 0
        self._since = -math.inf
        self._bytes = 0
        # Rate before the last doubling; None while none is on trial.
        self._rate_before: float | None = None
        self._probe_at = -math.inf
        self._probe_s = PROBE_S_MIN

    def took(self, length: int, live_count: int, now: float) -> None:
        """A chunk came while `live_count` reads ran; judge once as many came as run at once."""
        if live_count < self.count:
            # The window is not what limits; nothing to learn.
            self._since = -math.inf
            return
        if self._since == -math.inf:
            self._since, self._bytes = now, 0
            return
        self._bytes += length
        elapsed = now - self._since
        if elapsed < PROBE_S_MIN / 2 or self._bytes < self.count * length:
            return
        self._judge(self._bytes / elapsed, now)
        self._since, self._bytes = now, 0

    def _judge(self, rate: float, now: float) -> None:
        if self._rate_before is not None:
            if rate < ALONE_GAIN * self._rate_before:
                self.count = max(self.count // 2, 1)
                self._probe_at = now + self._probe_s
                self._probe_s = min(2 * self._probe_s, PROBE_S_MAX)
            self._rate_before = None
        if now >= self._probe_at and self.count < READS_MAX:
            self._rate_before = rate
            self.count *= 2
