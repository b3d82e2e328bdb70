"""What an agent's reports are made of, read at the moment a report is written."""

from __future__ import annotations

from swarm.agent.accounting import Ledger
from swarm.agent.channel_follower import ChannelFollower
from swarm.agent.origin_fetches import OriginFetches
from swarm.agent.shelf import Shelf
from swarm.agent.tracker_session import VersionFacts
from swarm.policy.node import Node
from swarm.protocol.ids import ChunkIndex, LeaseId, VersionId
from swarm.protocol.tracker_api import Lease, LeaseProgress


class ReportFacts:
    """The `AgentFacts` of one agent. Keeps the leases as last delivered, less those that ended."""

    def __init__(
        self,
        shelf: Shelf,
        follower: ChannelFollower,
        ledger: Ledger,
        fetches: OriginFetches | None,
        node: Node,
    ) -> None:
        self._shelf = shelf
        self._follower = follower
        self._ledger = ledger
        self._fetches = fetches
        self._node = node
        self._leases: dict[VersionId, dict[LeaseId, Lease]] = {}

    def leases_received(self, version: VersionId, leases: tuple[Lease, ...]) -> None:
        self._leases[version] = {lease.lease: lease for lease in leases}

    def lease_ended(self, version: VersionId, lease: LeaseId) -> None:
        self._leases.get(version, {}).pop(lease, None)

    def versions_held(self) -> tuple[VersionFacts, ...]:
        return tuple(
            VersionFacts(
                held.version,
                len(held.manifest.lengths),
                held.manifest.chunk_bytes,
                held.bits,
                held.is_ready,
            )
            for held in self._shelf.held.values()
        )

    def versions_wanted(self) -> tuple[VersionId, ...]:
        return self._shelf.wanted

    def channels_followed(self) -> tuple[str, ...]:
        return self._follower.channels

    def channels_served(self) -> tuple[tuple[str, int], ...]:
        return tuple((name, revision) for name, (_, revision) in self._follower.served.items())

    def lease_progress(self) -> tuple[LeaseProgress, ...]:
        reads = self._fetches.received if self._fetches is not None else {}
        reading: dict[tuple[VersionId, ChunkIndex], int] = {}
        for transfer, live in self._ledger.live.items():
            key = (live.version, live.chunk)
            received = reads.get(transfer, self._ledger.received.get(transfer, 0))
            reading[key] = max(received, reading.get(key, 0))
        return tuple(
            LeaseProgress(lease.lease, reading.get((version, lease.chunk), 0), version, lease.chunk)
            for version, leases in self._leases.items()
            for lease in leases.values()
        )

    def nic_bytes_per_s(self) -> int:
        statistics = self._node.statistics()
        return int(statistics.nic_bytes_per_s) if statistics.is_nic_known else 0

    def problem(self) -> str:
        return "; ".join(error.message for error in self._shelf.problems.values())
