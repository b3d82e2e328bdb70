"""How a transfer ends and what that says about its source.

A verified chunk is held, announced and counted, and any rival transfer of it is given up. A failed
transfer costs its session; whether it also costs the peer depends on whose fault it was: a busy
peer is left alone for a moment, a broken link for longer, a chunk that the peer does not hold is
forgotten, a wrong digest is a strike, and a failure of our own disk blames nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from swarm.policy.download import Download
from swarm.policy.events import ChunkVerified, FailureReason, TransferFailed
from swarm.policy.holdings import Holdings
from swarm.policy.leases import Leases
from swarm.policy.origin import OriginReads
from swarm.policy.peers import Neighbour, Neighbourhood
from swarm.policy.requests import Requests
from swarm.policy.transfers import Transfer, TransferTable
from swarm.protocol.ids import VersionId
from swarm.protocol.messages import RefuseReason


class Endings:
    """Owned by the node; tells each part what the end of a transfer means for it."""

    def __init__(
        self,
        downloads: Mapping[VersionId, Download],
        table: TransferTable,
        neighbourhood: Neighbourhood,
        holdings: Holdings,
        requests: Requests,
        leases: Leases,
        origin: OriginReads,
    ) -> None:
        self._downloads = downloads
        self._table = table
        self._neighbourhood = neighbourhood
        self._holdings = holdings
        self._requests = requests
        self._leases = leases
        self._origin = origin

    def verified(self, event: ChunkVerified, now: float) -> None:
        transfer = None if event.transfer is None else self._table.finish(event.transfer)
        download = self._downloads.get(event.version)
        if download is not None and download.missing >> event.chunk & 1:
            download.hold(event.chunk, now)
            download.account(event.chunk, transfer, now)
            self._origin.settled(download, event.chunk)
            for rival in self._table.of_chunk(download, event.chunk):
                self._leases.needless(rival)
                self._requests.cancel(rival)
        elif transfer is not None:
            transfer.download.bytes.wasted += transfer.length
        if transfer is None:
            return
        self._leases.verified(transfer)
        if transfer.session is None:
            self._origin.verified(transfer, now)
        else:
            self._requests.verified(transfer, transfer.session, now)

    def failed(self, event: TransferFailed, now: float) -> None:
        transfer = self._table.finish(event.transfer)
        is_whole = event.reason is FailureReason.CORRUPT
        transfer.download.bytes.wasted += transfer.length if is_whole else transfer.received
        if event.reason is FailureReason.LOCAL:
            self._requests.local_failure(now)
        is_crossing = transfer.session is not None and transfer.lease is not None
        self._leases.failed(transfer, event.reason, event.retry_after_s)
        if transfer.session is None:
            if event.reason not in (FailureReason.CANCELLED, FailureReason.LOCAL):
                self._origin.failed(transfer, event.reason, event.retry_after_s, now)
            return
        # First the session ends and its peer counts one upload less; then the refusal's load is
        # taken as it is. The other way round the peer that just refused us would look free, and two
        # nodes would take turns at one source for ever.
        self._requests.failed(transfer, transfer.session, now)
        link = self._neighbourhood.links.get(transfer.session.peer)
        if link is not None and (not is_crossing or event.reason is FailureReason.CORRUPT):
            # What else a zone lease's source did is the tracker's to weigh.
            self._blame(link, transfer, event, now)

    def _blame(
        self, link: Neighbour, transfer: Transfer, event: TransferFailed, now: float
    ) -> None:
        match event.reason:
            case FailureReason.REFUSED:
                self._refused(link, transfer, event, now)
            case FailureReason.CORRUPT:
                self._holdings.corrupt(link, transfer.download, transfer.chunk, now)
            case FailureReason.CANCELLED | FailureReason.LOCAL:
                pass
            case FailureReason.LOST | FailureReason.THROTTLED | FailureReason.UNAVAILABLE:
                self._requests.broken(link, now)
            case _:
                assert_never(event.reason)

    def _refused(
        self, link: Neighbour, transfer: Transfer, event: TransferFailed, now: float
    ) -> None:
        match event.refusal:
            case RefuseReason.YIELDED:
                link.hear_load(event.load, now)
            case RefuseReason.BUSY | RefuseReason.OTHER:
                self._requests.refused(link, transfer.download, event.load, now)
            case RefuseReason.NOT_HELD:
                self._holdings.remove(link, transfer.download.version, 1 << transfer.chunk)
            case RefuseReason.LEAVING:
                self._holdings.forget_all(link)
            case _:
                assert_never(event.refusal)
