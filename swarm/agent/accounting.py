"""Where the bytes of a version came from, and when the last of them was verified.

Counted here and not in policy, because the shell alone sees every end of a transfer with its bytes.
A byte counts for a source once its chunk is verified; bytes of transfers that ended otherwise are
waste. So `sum(bytes_by_source) == bytes of held chunks` at all times, and a percentage never passes
100 (both were bugs of other tools).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from swarm.policy.events import TransferId
from swarm.protocol.ids import ChunkIndex, VersionId


class Source(enum.Enum):
    """Who a chunk came from; the values are the keys of the JSON output."""

    ORIGIN = "origin"
    PEER_SAME_ZONE = "peer_same_zone"
    PEER_OTHER_ZONE = "peer_other_zone"
    LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Transfer:
    """One running attempt to get one chunk."""

    version: VersionId
    chunk: ChunkIndex
    source: Source
    # Who sends it, for messages: an agent's address or the origin's URL.
    sender: str


@dataclass(slots=True)
class VersionAccount:
    """Bytes of one version."""

    # Unique bytes of the version.
    total_bytes: int
    # Verified bytes by source.
    by_source: dict[Source, int] = field(default_factory=lambda: dict.fromkeys(Source, 0))
    # Who gave each held chunk; one that is not in here was found on the local disk.
    givers: dict[ChunkIndex, Source] = field(default_factory=dict)
    # Payload that arrived and was not used: duplicates, cancelled, corrupt.
    wasted_bytes: int = 0
    started_at: float = 0.0
    # When the last chunk was verified; equals `started_at` until the first.
    progressed_at: float = 0.0
    # When READY was written; None before.
    ready_at: float | None = None

    @property
    def verified_bytes(self) -> int:
        return sum(self.by_source.values())


class Ledger:
    """Live transfers and the accounts of all versions. Owned by the agent, read by status and
    metrics."""

    def __init__(self) -> None:
        self.accounts: dict[VersionId, VersionAccount] = {}
        self.live: dict[TransferId, Transfer] = {}
        # Payload bytes sent to peers since the start, all versions.
        self.sent_bytes = 0
        # Bytes received so far by live transfers, as last sampled.
        self.received: dict[TransferId, int] = {}

    def open(self, version: VersionId, *, total_bytes: int, local_bytes: int, now: float) -> None:
        account = VersionAccount(total_bytes, started_at=now, progressed_at=now)
        account.by_source[Source.LOCAL] = local_bytes
        self.accounts[version] = account

    def close(self, version: VersionId) -> None:
        self.accounts.pop(version, None)

    def began(self, transfer: TransferId, what: Transfer) -> None:
        self.live[transfer] = what

    def sampled(self, transfer: TransferId, received_bytes: int) -> None:
        if transfer in self.live:
            self.received[transfer] = received_bytes

    def verified(
        self,
        transfer: TransferId | None,
        version: VersionId,
        chunk: ChunkIndex,
        length: int,
        now: float,
    ) -> None:
        """A chunk is held now; `transfer` is None when it was found on the local disk."""
        source = Source.LOCAL
        if transfer is not None:
            source = self.live.pop(transfer).source
            self.received.pop(transfer, None)
        if (account := self.accounts.get(version)) is not None:
            account.by_source[source] += length
            account.givers[chunk] = source
            account.progressed_at = now

    def failed(self, transfer: TransferId) -> None:
        """A transfer ended without a chunk: what it had received is waste."""
        what = self.live.pop(transfer, None)
        received = self.received.pop(transfer, 0)
        if what is not None and (account := self.accounts.get(what.version)) is not None:
            account.wasted_bytes += received

    def duplicate(self, transfer: TransferId, length: int) -> None:
        """A transfer arrived whole after another one of the same chunk had won."""
        what = self.live.pop(transfer, None)
        self.received.pop(transfer, None)
        if what is not None and (account := self.accounts.get(what.version)) is not None:
            account.wasted_bytes += length

    def lost(self, version: VersionId, chunk: ChunkIndex, length: int, now: float) -> None:
        """A held chunk turned out damaged: take it off the account of whoever gave it. The wait for
        another copy begins now."""
        if (account := self.accounts.get(version)) is not None:
            account.by_source[account.givers.pop(chunk, Source.LOCAL)] -= length
            account.progressed_at = now
            account.ready_at = None
