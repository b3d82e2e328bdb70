"""Racks whose uplink is narrower than their NICs: what comes from rack mates, what from outside,
and who fetches it.

**Rule.** The D sessions go to rack mates only. Beside them a node has an import slot, for a chunk
from outside that no rack mate holds and none has claimed. Who imports a chunk says so to its mates
(a claim), and they leave it alone until it is there, the claimer is gone or the claim is old. So
each chunk crosses the uplink about once: 1.01 times in a fleet of 16 racks of 16 (simulated), where
a policy that knows no racks fetches nearly everything from outside and ends at 3.2 of the bound.

**Why a slot of its own.** An import that takes one of the D slots is one flow less between mates,
who are all busy with each other (study: 1.19 of the bound instead of 1.10). The same holds for the
sending side, so uploads to other racks have slots of their own (`uploads`). A tracker that directs
imports reacts later than neighbours do (study: 1.27).

**How many.** One for each node, the same for all: a node without one has a flow less than its mates
and falls behind them. Sixteen nodes with twelve imports end at 1.11, with sixteen at 1.08, with two
each at 1.16, as their uplink then is full of the imports of many (8 racks, 400 chunks, simulated).
In a rack of few nodes each has more of them, so that together they can carry one NIC.

**Claims.** A mate has no more claims than import slots; a newer one ends its oldest, so an import
that was refused or failed needs no message. A claim lasts 30 chunk times, or three times as long as
imports have taken lately, so that a crowded uplink does not have a chunk fetched twice and a hung
importer does not have it fetched never. Reads of the origin are not claimed: they are of chunks
that no live agent holds, so no mate could import them.

The rule is on for a version while a linked rack mate takes part in it. A mate that is avoided as a
slow source does not count as a holder here, or the rack would wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from swarm.policy.commands import Command, SendClaim
from swarm.policy.download import Download
from swarm.policy.events import ClaimReceived
from swarm.policy.nic import NicEstimate
from swarm.policy.peers import Neighbour, Neighbourhood
from swarm.policy.settings import NodeSettings
from swarm.protocol.ids import ChunkIndex, NodeId, VersionId

RACK_IMPORTS_MAX = 16
"""Imports of a whole rack, as far as its claims tell. Racks of 32 do as well with 16 as with 32."""
IMPORT_SPARE = 1.2
"""Imports of a rack can carry so many NICs together; one is what a rack must take in. Five nodes
with one import each, which is just one NIC, ended at 1.17, with two at 1.08 (p50, simulated)."""
CLAIM_CHUNK_TIMES = 30
"""How long a claim lasts, in times that a chunk takes at the whole NIC; an import takes five."""
CLAIM_IMPORT_TIMES = 3
"""The same in times that this node's own imports take."""
CLAIM_S_MIN = 1.0
"""With small chunks on a fast NIC it is not the bandwidth that an import waits for."""
IMPORT_MEMORY = 0.8
"""Part of the former mean that stays when another import is over."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A mate fetches a chunk from outside."""

    node: NodeId
    expires_at: float


class Rack:
    """Owned by the node. Invariant: claims are of linked rack mates."""

    def __init__(
        self,
        settings: NodeSettings,
        neighbourhood: Neighbourhood,
        nic: NicEstimate,
        orders: list[Command],
    ) -> None:
        self._settings = settings
        self._neighbourhood = neighbourhood
        self._nic = nic
        self._orders = orders
        # Oldest first.
        self._claims: dict[VersionId, dict[ChunkIndex, Claim]] = {}
        # How long this node's imports take; 0 before there was one.
        self._import_s = 0.0

    def mates(self, version: VersionId) -> list[Neighbour]:
        """Linked rack mates that take part in a version; the rule is on while there are any."""
        if not self._neighbourhood.mate_count:
            return []
        links = self._neighbourhood.links.values()
        return [link for link in links if link.is_mate and version in link.announced]

    def sources(self, version: VersionId) -> Collection[Neighbour]:
        """Whom the D sessions may go to."""
        return self.mates(version) or self._neighbourhood.links.values()

    def outsiders(self) -> list[Neighbour]:
        """Whom imports may come from."""
        return [link for link in self._neighbourhood.links.values() if not link.is_mate]

    def is_source(self, link: Neighbour, version: VersionId) -> bool:
        """One of the D sessions may go on with this neighbour."""
        return link.is_mate or not self.mates(version)

    def import_slots(self, mate_count: int) -> int:
        """Imports of each node, so that `slots` flows out of D + `slots` at each of the rack's
        nodes carry `IMPORT_SPARE` NICs; at least one."""
        node_count = mate_count + 1
        carried = IMPORT_SPARE * self._settings.session_count / (node_count - IMPORT_SPARE)
        return max(math.ceil(carried), 1)

    def importable(self, download: Download, import_count: int, now: float) -> int:
        """Chunks that this node may fetch from outside now, having `import_count` imports under
        way; empty while the rule is off."""
        mates = self.mates(download.version)
        if not mates or import_count >= self.import_slots(len(mates)):
            return 0
        inside = self._held_inside(download, mates)
        claims = self._live_claims(download, inside, now)
        if len(claims) + import_count >= RACK_IMPORTS_MAX:
            return 0
        useful = download.wanted & ~inside
        for chunk in claims:
            useful &= ~(1 << chunk)
        return useful

    def _held_inside(self, download: Download, mates: list[Neighbour]) -> int:
        """What mates hold who are no slow sources."""
        avoided = [link.announced[download.version] for link in mates if link.is_avoided]
        holders = download.rack_availability
        return holders.held_without(avoided) if avoided else holders.held

    def _live_claims(self, download: Download, inside: int, now: float) -> dict[ChunkIndex, Claim]:
        """Forget what has come or is too old."""
        there = inside | download.held
        claims = self._claims.get(download.version, {})
        for chunk, claim in list(claims.items()):
            if there >> chunk & 1 or claim.expires_at <= now:
                del claims[chunk]
        return claims

    def look_again_at(self, now: float) -> float:
        """When a live claim gets old; infinite without one."""
        ends = [claim.expires_at for claims in self._claims.values() for claim in claims.values()]
        return min((at for at in ends if at > now), default=math.inf)

    def claim(self, download: Download, chunk: ChunkIndex) -> None:
        """This node fetches a chunk from outside: tell its mates."""
        for link in self.mates(download.version):
            self._orders.append(SendClaim(link.info.node_id, download.version, chunk))

    def heard(self, event: ClaimReceived, download: Download | None, now: float) -> None:
        """Somebody claims a chunk; it counts if it is a mate."""
        link = self._neighbourhood.links.get(event.peer)
        if link is None or not link.is_mate:
            return
        if download is None or event.chunk >= len(download.lengths):
            return
        claims = self._claims.setdefault(event.version, {})
        claims.pop(event.chunk, None)
        theirs = [chunk for chunk, claim in claims.items() if claim.node == event.peer]
        slots = self.import_slots(max(len(self.mates(event.version)), 1))
        for chunk in theirs[: max(len(theirs) + 1 - slots, 0)]:
            del claims[chunk]
        claims[event.chunk] = Claim(event.peer, now + self._claim_s(download))

    def _claim_s(self, download: Download) -> float:
        chunk_s = download.chunk_bytes / self._nic.bytes_per_s
        return max(CLAIM_CHUNK_TIMES * chunk_s, CLAIM_IMPORT_TIMES * self._import_s, CLAIM_S_MIN)

    def imported(self, took_s: float) -> None:
        """An import of ours ended well."""
        if self._import_s:
            took_s = IMPORT_MEMORY * self._import_s + (1 - IMPORT_MEMORY) * took_s
        self._import_s = took_s

    def lost(self, peer: NodeId) -> None:
        """A link is gone, and with it what its node claimed."""
        for claims in self._claims.values():
            for chunk in [chunk for chunk, claim in claims.items() if claim.node == peer]:
                del claims[chunk]

    def forget(self, version: VersionId) -> None:
        self._claims.pop(version, None)

    def check_invariants(self) -> None:
        for claims in self._claims.values():
            assert all(self._neighbourhood.links[claim.node].is_mate for claim in claims.values())
