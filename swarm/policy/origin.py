"""Reading the origin without a lease: when, which chunk, and how hard.

With a tracker that answers this never happens, for each unasked read may be the second copy of a
chunk. There are four exceptions, and all slots of all neighbours being busy is none of them:

* **Alone.** No tracker and nobody else known: there is no egress to share, so the node reads as
  much as helps. It doubles its parallel reads while that raises the rate, holds otherwise and
  probes again after a pause that doubles (an S3 connection gives about 90 MB/s, so a fast NIC needs
  many). No token bucket. Small chunks are read in runs, several with one request (`read_window`).
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
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

from swarm.policy.commands import Command, FetchFromOrigin
from swarm.policy.download import Download
from swarm.policy.events import FailureReason
from swarm.policy.nic import NicEstimate
from swarm.policy.peers import Neighbourhood
from swarm.policy.read_window import (
    FLEET_NICS,
    ReadWindow,
    connections_for,
    reads_for,
    run_bytes,
    run_length,
)
from swarm.policy.rendezvous import Lines
from swarm.policy.settings import NodeSettings
from swarm.policy.transfers import Transfer, TransferTable
from swarm.protocol.chunk_set import pick_bit
from swarm.protocol.ids import ChunkIndex, NodeId, VersionId
from swarm.protocol.tracker_api import Mode

BUCKET_CHUNKS = 2
"""Depth of the token bucket, in chunks: a read can always start after a wait."""
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
        self._lines = Lines(me)
        self._window = ReadWindow()
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
        is_needed = download.missing and download.takes_from_origin
        if not self._settings.has_origin or not is_needed:
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
            run = range(chunk, chunk + 1)
            if right is Right.ALONE and self._throttled_until is None:
                run = self._run_around(download, chunk, now)
            self._start(download, run, right, now)

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
            self._window.count = reads_for(nic_bytes_per_s, run_bytes(download.chunk_bytes), 1)
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
            allowed ^= allowed & download.availability.held
            return self._pick_in_line(download, allowed, now)
        return pick_bit(allowed, self._rng) if allowed else None

    def _pick_in_line(self, download: Download, allowed: int, now: float) -> ChunkIndex | None:
        """A chunk that nobody near holds and that is this node's to read."""
        nodes = self._neighbourhood.known_nodes()
        mine = self._lines.in_turn(download.version, allowed, nodes, download.progress_at, now)
        self._look_again(self._lines.look_at)
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

    def _run_around(self, download: Download, chunk: ChunkIndex, now: float) -> range:
        """The chunks around one that can be read with it. Runs end at multiples of their length, so
        that chance in picking leaves no crumbs between them."""
        wanted = download.wanted
        length = run_length(download.chunk_bytes, wanted.bit_count(), self._window.count)
        if length > 1:
            wanted &= ~self._resting(download, now)
        start = stop = chunk - chunk % length
        for each in range(start, start + length):
            if not wanted >> each & 1:
                if each > chunk:
                    break
                start = each + 1
            stop = each + 1
        return range(start, stop)

    def _start(self, download: Download, run: range, right: Right, now: float) -> None:
        before: Transfer | None = None
        for chunk in map(ChunkIndex, run):
            transfer = self._table.begin(download, chunk, now, after=before)
            connections = connections_for(transfer.length)
            if self._throttled_until is not None:
                connections = 1
                self._throttled_until = now + self._rng.uniform(0, THROTTLED_S)
            if right is not Right.ALONE:
                self._tokens -= transfer.length
            after = before.id if before is not None else None
            self._orders.append(
                FetchFromOrigin(transfer.id, download.version, chunk, connections, after)
            )
            before = transfer

    def verified(self, transfer: Transfer, now: float) -> None:
        """An origin read ended well, leased or not."""
        self._throttled_until = None
        self._rests.pop((transfer.download.version, transfer.chunk), None)
        assert transfer.run is not None
        live_count = self._table.origin_count + (not transfer.run.live_count)
        self._window.took(transfer.length, live_count, now)

    def failed(
        self, transfer: Transfer, reason: FailureReason, retry_after_s: float | None, now: float
    ) -> None:
        """An origin read ended without a chunk, leased or not, and not because we gave it up."""
        if reason is FailureReason.THROTTLED:
            wait_s = (retry_after_s or 0.0) + self._rng.uniform(0, THROTTLED_S)
            self._throttled_until = now + min(wait_s, REST_S_MAX)
            self._window.halve()
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
        self._lines.forget()
        self._rests = {key: rest for key, rest in self._rests.items() if key[0] != version}
