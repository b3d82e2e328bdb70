"""What neighbours hold: the one place where their announcements and the holder counts change, so
that a count always equals the sum of the announcements.

A peer may announce a version that we do not take part in yet; its word is kept until we do. A chunk
that came with a wrong digest is no longer believed of that peer. It gets one more chance, for the
fault may have been the network's; a peer that then sends it wrong again, although it was told and
still announces it, is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from swarm.policy.commands import Command, SendBadChunk
from swarm.policy.download import Download
from swarm.policy.peers import Neighbour, Neighbourhood
from swarm.protocol.ids import ChunkIndex, NodeId, VersionId

FOREIGN_CHUNKS_MAX = 1 << 20
"""Chunks of a version we do not know: fifty times what any version has."""
CORRUPT_MAX = 2
"""Fetches of one chunk from one peer that fail the digest."""
STRIKES_MAX = 4
"""Wrong chunks of any kind from one peer; fewer may be the network's or our own fault."""
SECOND_CHANCE_S = 5.0
"""By then a peer with a damaged disk has hashed the chunk and retracted it."""


class Holdings:
    """Owned by the node. Invariant: a download's availability is the sum of its neighbours'
    announcements."""

    def __init__(
        self,
        downloads: Mapping[VersionId, Download],
        neighbourhood: Neighbourhood,
        orders: list[Command],
    ) -> None:
        self._downloads = downloads
        self._neighbourhood = neighbourhood
        self._orders = orders
        # Chunks to believe again, oldest first.
        self._second_chances: list[tuple[float, NodeId, VersionId, ChunkIndex]] = []
        # When the first of them is due; infinite if there is none.
        self.second_chance_at = math.inf

    def replace(self, link: Neighbour, version: VersionId, bits: int) -> None:
        """A bit field: all that the neighbour holds."""
        self.forget(link, version)
        self.add(link, version, bits)

    def add(self, link: Neighbour, version: VersionId, bits: int) -> int:
        """A batch of haves; returns what is new of it."""
        theirs = link.announced.get(version, 0)
        download = self._downloads.get(version)
        if link.is_dropped:
            return 0
        if download is None:
            if bits.bit_length() <= FOREIGN_CHUNKS_MAX:
                self._neighbourhood.announce(link, version, theirs | bits)
            return 0
        bits &= download.all_bits
        news = bits ^ (bits & theirs)
        if self._neighbourhood.announce(link, version, theirs | news):
            download.availability.add(news)
            if link.is_mate:
                download.rack_availability.add(news)
            return news
        return 0

    def remove(self, link: Neighbour, version: VersionId, bits: int) -> None:
        """Chunks that the neighbour no longer holds."""
        theirs = link.announced.get(version, 0)
        gone = theirs & bits
        if gone:
            link.announced[version] = theirs ^ gone
            download = self._downloads.get(version)
            if download is not None:
                download.availability.remove(gone)
                if link.is_mate:
                    download.rack_availability.remove(gone)

    def forget(self, link: Neighbour, version: VersionId) -> None:
        """The neighbour takes no part in a version any more."""
        self.remove(link, version, link.announced.get(version, 0))
        link.announced.pop(version, None)

    def forget_all(self, link: Neighbour) -> None:
        """The link is gone."""
        for version in list(link.announced):
            self.forget(link, version)

    def adopt(self, download: Download) -> None:
        """A version is added here: count what neighbours announced of it before."""
        for link in self._neighbourhood.links.values():
            theirs = link.announced.get(download.version)
            if theirs is not None:
                link.announced[download.version] = theirs & download.all_bits
                download.availability.add(theirs & download.all_bits)
                if link.is_mate:
                    download.rack_availability.add(theirs & download.all_bits)

    def corrupt(self, link: Neighbour, download: Download, chunk: ChunkIndex, now: float) -> None:
        """A chunk from this neighbour had the wrong digest: tell it, believe it no more, and drop
        it when that happens too often."""
        node, key = link.info.node_id, (download.version, chunk)
        self._orders.append(SendBadChunk(node, download.version, chunk))
        self.remove(link, download.version, 1 << chunk)
        link.corrupt[key] = link.corrupt.get(key, 0) + 1
        strikes = sum(link.corrupt.values())
        if strikes >= STRIKES_MAX or link.corrupt[key] >= CORRUPT_MAX:
            self.forget_all(link)
            self._neighbourhood.drop(link, f"{strikes} chunks had the wrong digest", now)
        else:
            at = now + SECOND_CHANCE_S
            self._second_chances.append((at, node, download.version, chunk))
            self.second_chance_at = self._second_chances[0][0]

    def give_second_chances(self, now: float) -> None:
        while self.second_chance_at <= now:
            _, node, version, chunk = self._second_chances.pop(0)
            self.second_chance_at = self._second_chances[0][0] if self._second_chances else math.inf
            link = self._neighbourhood.links.get(node)
            if link is not None and version in link.announced and version in self._downloads:
                self.add(link, version, 1 << chunk)

    def useless(self) -> Iterable[Neighbour]:
        """Neighbours that have nothing for us and for whom we have nothing."""
        for link in self._neighbourhood.links.values():
            if not any(self._is_useful(link, download) for download in self._downloads.values()):
                yield link

    def _is_useful(self, link: Neighbour, download: Download) -> bool:
        theirs = link.announced.get(download.version)
        if theirs is None:
            return False
        return bool(theirs & download.missing or download.held & ~theirs)

    def check_invariants(self) -> None:
        links = self._neighbourhood.links.values()
        mates = [link for link in links if link.is_mate]
        for version, download in self._downloads.items():
            for counted, holders in (
                (download.availability, links),
                (download.rack_availability, mates),
            ):
                announced = [link.announced.get(version, 0) for link in holders]
                for chunk in range(len(download.lengths)):
                    count = sum(bits >> chunk & 1 for bits in announced)
                    assert counted.count(chunk) == count, (version, chunk)
