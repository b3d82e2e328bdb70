"""What one agent's tracker client keeps and says: which report is due, which leases it heard of.

A fact that a report carried stays until its answer is there, so a lost report costs a repeat and
never a fact.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from swarm.protocol.chunk_set import iter_bits
from swarm.protocol.ids import LeaseId, NodeId, VersionId
from swarm.protocol.tracker_api import (
    Lease,
    LeaseEnd,
    LeaseProgress,
    Mode,
    Report,
    VersionReport,
)

if TYPE_CHECKING:
    from simulations.node_driver import NodeDriver


@dataclass(frozen=True, slots=True)
class Sent:
    """A report under way, and what its answer settles."""

    report: Report
    held: int
    ended_count: int
    unreachable: tuple[NodeId, ...]


@dataclass(slots=True)
class Client:
    """One agent's tracker client."""

    driver: NodeDriver
    sequence: int = 0
    seen: tuple[int, int] = (0, 0)
    # What the tracker was told last; None means everything must be told.
    told: int | None = None
    leases: dict[LeaseId, Lease] = field(default_factory=dict)
    ended: list[LeaseEnd] = field(default_factory=list)
    unreachable: dict[NodeId, None] = field(default_factory=dict)
    # A report is under way, and another should follow.
    is_reporting: bool = False
    is_report_wanted: bool = False
    # Outdated timers are recognised by these.
    report_turn: int = 0
    listen_turn: int = 0
    # Its listen lies at the tracker and waits for news.
    is_listening: bool = False
    is_leaving: bool = False
    mode: Mode = Mode.AUTO

    def make_report(self, version: VersionId, lengths: tuple[int, ...]) -> Sent:
        """What the agent says now."""
        self.sequence += 1
        driver, told, held = self.driver, self.told, self.driver.held
        progress = driver.transfers.progress()
        count = len(lengths)
        report = Report(
            sequence=self.sequence,
            address=driver.info.address,
            zone=driver.info.zone,
            rack=driver.info.rack,
            nic_bytes_per_s=self._nic_bytes_per_s(),
            versions=(
                VersionReport(
                    version,
                    bits=held.to_bytes((count + 7) // 8, "little") if told is None else None,
                    added=tuple(iter_bits(held & ~(told or 0))),
                    removed=tuple(iter_bits((told or 0) & ~held)),
                    is_ready=driver.is_complete,
                    chunk_count=count,
                    chunk_bytes=max(lengths),
                ),
            ),
            leases=tuple(
                LeaseProgress(lease.lease, progress.get(lease.chunk, 0), version, lease.chunk)
                for lease in self.leases.values()
            ),
            ended=tuple(self.ended),
            unreachable=tuple(self.unreachable),
            channels=(),
            problem="",
            is_leaving=self.is_leaving,
        )
        return Sent(report, held, len(self.ended), report.unreachable)

    def _nic_bytes_per_s(self) -> int:
        """Given or learned; 0: not known yet. A node's statistics are dear, so they are asked only
        where the rate was not given."""
        given = int(self.driver.settings.nic_bytes_per_s)
        if given:
            return given
        statistics = self.driver.node.statistics()
        return int(statistics.nic_bytes_per_s) if statistics.is_nic_known else 0
