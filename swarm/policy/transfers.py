"""What is on its way: transfers, the sessions they belong to, and which chunk has how many.

A **session** is consecutive chunks from one peer. It holds at most two transfers: the one whose
bytes arrive and the one that was asked for early so that the uploader never idles. This bound also
bounds what may wait for the hasher. The table decides nothing; `requests.py` and `origin.py` do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from swarm.policy.download import Download
from swarm.policy.events import TransferId
from swarm.protocol.ids import ChunkIndex, LeaseId, NodeId, SessionId


@dataclass(slots=True, eq=False)
class Session:
    """Owned by `Requests` while it is open; that of a zone lease never is."""

    id: SessionId
    peer: NodeId
    # The peer is in our zone.
    is_same_zone: bool
    # It fetches from outside the rack, beside the D sessions.
    is_import: bool = False
    # Oldest first; one or two while the session is open.
    transfers: list[Transfer] = field(default_factory=list)
    # The last transfer passed its pre-send point, so the next request may go out.
    is_due: bool = False
    # More requests may follow. A closed session's transfers still run to their end.
    is_open: bool = True


@dataclass(slots=True, eq=False)
class Run:
    """One read of the origin, of one chunk or of several in a row."""

    # Transfers of it that have not ended.
    live_count: int = 0


@dataclass(slots=True, eq=False)
class Transfer:
    """One attempt to get one chunk from one source."""

    id: TransferId
    download: Download
    chunk: ChunkIndex
    length: int
    # None: the origin.
    session: Session | None
    # The lease that allows an origin read or charges with a crossing; None for other transfers.
    lease: LeaseId | None
    # When its bytes could begin: at the request, or when the one before it ended.
    begun_at: float
    # Payload bytes so far, one progress sample old.
    received: int = 0
    is_cancelled: bool = False
    # The read that it is part of; None for a peer.
    run: Run | None = None

    @property
    def peer(self) -> NodeId | None:
        return self.session.peer if self.session else None

    def bytes_per_s(self, now: float) -> float:
        """Mean rate since its bytes could begin."""
        return self.received / max(now - self.begun_at, 1e-9)

    def remaining_s(self, now: float) -> float:
        """Time to its end at that rate; as long as it has waited, while nothing has come."""
        if not self.received:
            return now - self.begun_at
        return (self.length - self.received) / self.bytes_per_s(now)


class TransferTable:
    """All live transfers by id and by chunk; keeps each download's `in_flight` true."""

    def __init__(self) -> None:
        self.live: dict[TransferId, Transfer] = {}
        self._by_chunk: dict[tuple[Download, ChunkIndex], list[Transfer]] = {}
        self._last_id = 0
        # Live reads from the origin, leased or not; chunks that are read in one go count once.
        self.origin_count = 0

    def begin(
        self,
        download: Download,
        chunk: ChunkIndex,
        now: float,
        *,
        session: Session | None = None,
        lease: LeaseId | None = None,
        after: Transfer | None = None,
    ) -> Transfer:
        """A new transfer; with `after` part of the same read of the origin."""
        self._last_id += 1
        length = download.lengths[chunk]
        transfer = Transfer(TransferId(self._last_id), download, chunk, length, session, lease, now)
        self.live[transfer.id] = transfer
        self._by_chunk.setdefault((download, chunk), []).append(transfer)
        download.in_flight |= 1 << chunk
        if session is None:
            run = transfer.run = (after.run if after is not None else None) or Run()
            self.origin_count += not run.live_count
            run.live_count += 1
        return transfer

    def finish(self, transfer_id: TransferId) -> Transfer:
        """Forget a transfer whose one event has come; an unknown id is a bug of the caller."""
        transfer = self.live.pop(transfer_id)
        key = (transfer.download, transfer.chunk)
        rivals = self._by_chunk[key]
        rivals.remove(transfer)
        if not rivals:
            del self._by_chunk[key]
            transfer.download.in_flight &= ~(1 << transfer.chunk)
        if (run := transfer.run) is not None:
            run.live_count -= 1
            self.origin_count -= not run.live_count
        return transfer

    def of_chunk(self, download: Download, chunk: ChunkIndex) -> list[Transfer]:
        """Live transfers of a chunk; the list is the table's own, not to be changed."""
        return self._by_chunk.get((download, chunk), [])

    def check_invariants(self) -> None:
        for transfer in self.live.values():
            assert transfer in self.of_chunk(transfer.download, transfer.chunk)
            if not transfer.download.in_flight >> transfer.chunk & 1:
                assert transfer.is_cancelled or not transfer.download.missing >> transfer.chunk & 1
        assert sum(map(len, self._by_chunk.values())) == len(self.live)
        runs = {id(t.run): t.run for t in self.live.values() if t.run is not None}
        assert self.origin_count == len(runs)
        origin_transfers = sum(t.session is None for t in self.live.values())
        assert origin_transfers == sum(run.live_count for run in runs.values())
