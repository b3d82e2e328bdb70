"""Leases: the right to read a chunk from the origin, or the charge to bring one into our zone from
an agent of another (a crossing); given and taken by the tracker.

The tracker sends *state*, all live leases of this node, so a lease that is not named any more is
revoked and one that is named twice is not read twice. A lease is answered at once: with a read, or
by declining it because the chunk is here, at a neighbour, or on its way; the tracker then frees it
for somebody else. A lease does not use one of the D slots, or the origin's share of the NIC would
starve the peers' or the other way round; nor does a crossing, which is one request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from swarm.policy.commands import (
    Command,
    EndSession,
    FetchFromOrigin,
    ReportLease,
    RequestChunk,
)
from swarm.policy.download import Download
from swarm.policy.events import FailureReason, LeasesReceived
from swarm.policy.peers import Neighbourhood
from swarm.policy.settings import NodeSettings
from swarm.policy.transfers import Session, Transfer, TransferTable
from swarm.protocol.ids import ChunkIndex, LeaseId, NodeId, SessionId
from swarm.protocol.messages import PeerInfo
from swarm.protocol.tracker_api import Lease, LeaseOutcome

OUTCOMES: Mapping[FailureReason, LeaseOutcome] = {
    FailureReason.THROTTLED: LeaseOutcome.THROTTLED,
    FailureReason.UNAVAILABLE: LeaseOutcome.UNAVAILABLE,
}
"""What else ends a transfer is a plain failure to the tracker."""

CROSSING_SESSIONS = 1 << 31
"""Sessions of zone leases are numbered from here, far above those of `Requests`."""


class Leases:
    """Owned by the node; handles the leases of all its versions. Invariant: each live lease is the
    lease of exactly one live transfer."""

    def __init__(
        self,
        settings: NodeSettings,
        me: NodeId,
        neighbourhood: Neighbourhood,
        table: TransferTable,
        stripes: Callable[[], int],
        orders: list[Command],
    ) -> None:
        self._settings = settings
        self._me = me
        self._neighbourhood = neighbourhood
        self._table = table
        # Data links for one chunk from a peer.
        self._stripes = stripes
        self._last_session = CROSSING_SESSIONS
        self._orders = orders
        self.is_leaving = False

    def received(self, event: LeasesReceived, download: Download, now: float) -> list[Transfer]:
        """Take the tracker's whole list; returns the transfers whose lease was revoked, for the
        caller to cancel."""
        named = {lease.lease for lease in event.leases}
        revoked = self._revoke(download, named)
        download.leases_over = {lease: None for lease in download.leases_over if lease in named}
        for lease in event.leases:
            if lease.lease not in download.leases and lease.lease not in download.leases_over:
                self._take(lease, download, now)
        return revoked

    def _revoke(self, download: Download, named: set[LeaseId]) -> list[Transfer]:
        revoked = []
        for lease, chunk in list(download.leases.items()):
            if lease not in named:
                del download.leases[lease]
                for transfer in self._table.of_chunk(download, chunk):
                    if transfer.lease == lease:
                        transfer.lease = None
                        revoked.append(transfer)
        return revoked

    def _take(self, lease: Lease, download: Download, now: float) -> None:
        chunk = lease.chunk
        if chunk >= len(download.lengths):
            self._end(download, lease.lease, chunk, LeaseOutcome.FAILED)
        elif download.held >> chunk & 1:
            self._end(download, lease.lease, chunk, LeaseOutcome.DECLINED, self._me)
        elif lease.source is None and not self._settings.has_origin:
            # Not declined: the tracker would grant it to us again.
            self._end(download, lease.lease, chunk, LeaseOutcome.FAILED)
        elif self.is_leaving or not self._is_allowed(lease, download):
            self._end(download, lease.lease, chunk, LeaseOutcome.DECLINED)
        elif (owner := self._owner(lease, download)) is not None:
            self._end(download, lease.lease, chunk, LeaseOutcome.DECLINED, owner)
        elif (reads := self._origin_reads(download, chunk)) or download.in_flight >> chunk & 1:
            self._share(lease, download, reads)
        else:
            self._begin(lease, download, now)

    def _share(self, lease: Lease, download: Download, reads: list[Transfer]) -> None:
        """The chunk is on its way: an unasked origin read gets the lease, a peer's transfer makes
        it needless."""
        if reads and reads[0].lease is None:
            reads[0].lease = lease.lease
            download.leases[lease.lease] = lease.chunk
        else:
            self._end(download, lease.lease, lease.chunk, LeaseOutcome.DECLINED)

    def _begin(self, lease: Lease, download: Download, now: float) -> None:
        if lease.source is not None:
            self._begin_crossing(lease, lease.source, download, now)
            return
        transfer = self._table.begin(download, lease.chunk, now, lease=lease.lease)
        download.leases[lease.lease] = lease.chunk
        self._orders.append(
            FetchFromOrigin(transfer.id, download.version, lease.chunk, max(lease.connections, 1))
        )

    def _begin_crossing(
        self, lease: Lease, source: PeerInfo, download: Download, now: float
    ) -> None:
        """Fetch a chunk from an agent that need not be a neighbour: a session of one request, which
        is over as soon as it is asked for and takes none of the D slots."""
        self._last_session += 1
        session_id = SessionId(self._last_session)
        is_same_zone = source.zone == self._settings.zone
        session = Session(session_id, source.node_id, is_same_zone, is_open=False)
        transfer = self._table.begin(download, lease.chunk, now, session=session, lease=lease.lease)
        session.transfers.append(transfer)
        download.leases[lease.lease] = lease.chunk
        version, node = download.version, source.node_id
        self._orders += (
            RequestChunk(
                transfer.id, node, session_id, version, lease.chunk, self._stripes(), source
            ),
            EndSession(node, session_id),
        )

    def _is_allowed(self, lease: Lease, download: Download) -> bool:
        return download.takes_from_origin if lease.source is None else download.takes_from_peers

    def _owner(self, lease: Lease, download: Download) -> NodeId | None:
        """A neighbour that announces the chunk, of our zone if the lease is for that. Slow sources
        do not count: the tracker grants a chunk again when all its owners lag."""
        for node, link in self._neighbourhood.links.items():
            is_here = not lease.is_for_zone or link.info.zone == self._settings.zone
            is_held = link.announced.get(download.version, 0) >> lease.chunk & 1
            if is_held and is_here and not link.is_avoided:
                return node
        return None

    def _origin_reads(self, download: Download, chunk: ChunkIndex) -> list[Transfer]:
        return [
            transfer
            for transfer in self._table.of_chunk(download, chunk)
            if transfer.session is None and not transfer.is_cancelled
        ]

    def verified(self, transfer: Transfer) -> None:
        """A transfer ended well; nothing to tell if it had no lease."""
        self._transfer_over(transfer, LeaseOutcome.VERIFIED, None)

    def needless(self, transfer: Transfer) -> None:
        """The chunk came from elsewhere first; the transfer is being cancelled."""
        self._transfer_over(transfer, LeaseOutcome.DECLINED, self._me)

    def failed(
        self, transfer: Transfer, reason: FailureReason, retry_after_s: float | None
    ) -> None:
        outcome = OUTCOMES.get(reason, LeaseOutcome.FAILED)
        self._transfer_over(transfer, outcome, None, retry_after_s)

    def _transfer_over(
        self,
        transfer: Transfer,
        outcome: LeaseOutcome,
        owner: NodeId | None,
        retry_after_s: float | None = None,
    ) -> None:
        lease, transfer.lease = transfer.lease, None
        if lease is not None:
            del transfer.download.leases[lease]
            self._end(transfer.download, lease, transfer.chunk, outcome, owner, retry_after_s)

    def _end(
        self,
        download: Download,
        lease: LeaseId,
        chunk: ChunkIndex,
        outcome: LeaseOutcome,
        owner: NodeId | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        download.leases_over[lease] = None
        self._orders.append(
            ReportLease(download.version, lease, chunk, outcome, owner, retry_after_s)
        )

    def give_back(self, transfer: Transfer) -> None:
        """The transfer is not wanted or not allowed any more and is being cancelled."""
        self._transfer_over(transfer, LeaseOutcome.DECLINED, None)

    def check_invariants(self, downloads: Iterable[Download]) -> None:
        for download in downloads:
            for lease, chunk in download.leases.items():
                transfers = self._table.of_chunk(download, chunk)
                assert sum(transfer.lease == lease for transfer in transfers) == 1
