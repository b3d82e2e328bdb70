"""Who may read a chunk from the origin, or bring it into a zone, when nobody grants leases.

For each chunk the known nodes stand in line in the order of hash(node, version, chunk), so all who
know the same nodes agree on the line without a word, and each node is first in about as many lines.
A change of membership moves only the lines in which the node that came or went stands first, which
is why this is hashing by weight and not by position. The next in line may step in only after a
while without any verified byte, and so on.

A node's rank in a line is worked out once per chunk and membership, some chunks at a time.
"""

from __future__ import annotations

import hashlib
import math

from swarm.protocol.chunk_set import iter_bits
from swarm.protocol.ids import ChunkIndex, NodeId, VersionId

RANKED_MAX = 32
"""Chunks whose line is worked out in one step: 33 hashes each, 1 ms in all."""

NEXT_IN_LINE_S = 3.0
"""Without a verified byte for so long, the next node in a chunk's line may fetch it; a node that
died is noticed in less, and a chunk takes less at any sensible rate."""


class Lines:
    """This node's rank in the line of each chunk."""

    def __init__(self, me: NodeId) -> None:
        self._me = me
        self._nodes: list[NodeId] = []
        # Version → rank → chunks, and the chunks that have been ranked.
        self._ranks: dict[VersionId, dict[int, int]] = {}
        self._ranked: dict[VersionId, int] = {}
        # The last question left chunks unranked: ask again.
        self.has_more = False
        # When `in_turn` may answer otherwise than it did last.
        self.look_at = math.inf

    def in_turn(
        self, version: VersionId, chunks: int, nodes: list[NodeId], progress_at: float, now: float
    ) -> int:
        """The members of `chunks` whose turn is this node's, when the last byte was verified at
        `progress_at`."""
        rank_max = int(max(now - progress_at, 0.0) / NEXT_IN_LINE_S)
        mine = self.mine(version, chunks, nodes, rank_max)
        next_at = progress_at + (rank_max + 1) * NEXT_IN_LINE_S
        self.look_at = now if self.has_more else next_at
        return mine

    def mine(self, version: VersionId, chunks: int, nodes: list[NodeId], rank_max: int) -> int:
        """The members of `chunks` in whose line this node stands at `rank_max` or before; ranks
        more of them only while none is known."""
        if nodes != self._nodes:
            self.forget()
            self._nodes = nodes
        mine = self._known(version, chunks, rank_max)
        self.has_more = False
        if not mine:
            self._rank_some(version, chunks)
            mine = self._known(version, chunks, rank_max)
            self.has_more = not mine and bool(chunks & ~self._ranked.get(version, 0))
        return mine

    def _known(self, version: VersionId, chunks: int, rank_max: int) -> int:
        mine = 0
        for rank, bits in self._ranks.get(version, {}).items():
            if rank <= rank_max:
                mine |= bits
        return mine & chunks

    def _rank_some(self, version: VersionId, chunks: int) -> None:
        ranks = self._ranks.setdefault(version, {})
        unranked = chunks & ~self._ranked.get(version, 0)
        for _, chunk in zip(range(RANKED_MAX), iter_bits(unranked), strict=False):
            rank = self._rank(version, chunk)
            ranks[rank] = ranks.get(rank, 0) | 1 << chunk
            self._ranked[version] = self._ranked.get(version, 0) | 1 << chunk

    def _rank(self, version: VersionId, chunk: ChunkIndex) -> int:
        tail = version + chunk.to_bytes(4, "big")
        own = _weight(self._me, tail)
        return sum(_weight(node, tail) > own for node in self._nodes)

    def forget(self) -> None:
        self._ranks.clear()
        self._ranked.clear()


def _weight(node: NodeId, tail: bytes) -> bytes:
    return hashlib.blake2b(node + tail, digest_size=8).digest()
