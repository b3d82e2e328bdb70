"""What neighbours are told of our chunks: everything once, then news in batches.

A bit field goes to each neighbour when a link comes up or a version is added; haves follow, the
first after a silence at once and then one batch per interval, where a chunk that several neighbours
hold already may wait longer (`Download.hold`). A batch never goes to a neighbour that has announced
all of it itself, for a have only matters to those who lack the chunk. That halves the messages. The
load travels only here and in refusals; adverts of their own gain nothing.

Haves go to neighbours that take part in the version, which is known once their bit field is here.
What is verified between our bit field and theirs is made up for then.
"""

from __future__ import annotations

from collections.abc import Mapping

from swarm.policy.commands import Command, SendBitfield, SendHave, SendRetract
from swarm.policy.download import Download
from swarm.policy.peers import Neighbour, Neighbourhood
from swarm.policy.uploads import Uploads
from swarm.protocol.ids import ChunkIndex, NodeId, VersionId


class Gossip:
    """Owned by the node; the only one that speaks of our chunks."""

    def __init__(
        self,
        downloads: Mapping[VersionId, Download],
        neighbourhood: Neighbourhood,
        uploads: Uploads,
        orders: list[Command],
    ) -> None:
        self._downloads = downloads
        self._neighbourhood = neighbourhood
        self._uploads = uploads
        self._orders = orders
        self.is_leaving = False

    def introduce(self, link: Neighbour, download: Download) -> None:
        """Tell one neighbour all that we hold of a version."""
        if self.is_leaving:
            return
        if download.version not in link.announced:
            link.introduced[download.version] = download.held
        self._orders.append(
            SendBitfield(
                link.info.node_id,
                download.version,
                download.held,
                self._uploads.load_for(link.info.node_id),
            )
        )

    def version_added(self, download: Download) -> None:
        for link in self._neighbourhood.links.values():
            self.introduce(link, download)

    def connected(self, link: Neighbour) -> None:
        for download in self._downloads.values():
            self.introduce(link, download)

    def joined(self, link: Neighbour, version: VersionId) -> None:
        """A neighbour's first bit field of a version is here: tell it what is new since ours."""
        introduced = link.introduced.pop(version, None)
        download = self._downloads.get(version)
        if introduced is not None and download is not None:
            load = self._uploads.load_for(link.info.node_id)
            self._tell(link, download, download.held & ~introduced, load)

    def announce(self, download: Download, now: float) -> None:
        """A batch is due."""
        self._tell_all(download, download.take_batch(now))

    def announce_again(self, version: VersionId, chunk: ChunkIndex) -> None:
        """A chunk was refused for a while and is served again."""
        download = self._downloads.get(version)
        if download is not None:
            self._tell_all(download, download.held & 1 << chunk)

    def _tell_all(self, download: Download, chunks: int) -> None:
        if chunks:
            for_mates, for_others = self._uploads.loads()
            if not self._neighbourhood.mate_count:
                for_others = for_mates
            for link in self._neighbourhood.links.values():
                self._tell(link, download, chunks, for_mates if link.is_mate else for_others)

    def _tell(self, link: Neighbour, download: Download, chunks: int, load: int) -> None:
        theirs = link.announced.get(download.version)
        if theirs is None or self.is_leaving:
            return
        news = chunks ^ (chunks & theirs)
        if news:
            self._orders.append(SendHave(link.info.node_id, download.version, news, load))

    def retracted(self, link: Neighbour, version: VersionId, chunks: int) -> None:
        """A neighbour lost chunks. It may not know that we hold them, because batches leave out
        what their reader has."""
        download = self._downloads.get(version)
        if download is not None:
            load = self._uploads.load_for(link.info.node_id)
            self._tell(link, download, chunks & download.held, load)

    def retract(self, download: Download, chunk: ChunkIndex) -> None:
        """A chunk of ours is damaged."""
        for node in self._partners(download):
            self._orders.append(SendRetract(node, download.version, 1 << chunk))

    def retract_all(self, download: Download) -> None:
        """We take no part in a version any more; no bits mean the whole version."""
        for node in self._partners(download):
            self._orders.append(SendRetract(node, download.version, 0))

    def _partners(self, download: Download) -> list[NodeId]:
        return [
            node
            for node, link in self._neighbourhood.links.items()
            if download.version in link.announced or download.version in link.introduced
        ]

    def leave(self) -> None:
        self.is_leaving = True
        for download in self._downloads.values():
            self.retract_all(download)
