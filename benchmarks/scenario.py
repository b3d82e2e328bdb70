"""What is raced: so many nodes, so fast, one file; and the time no system can beat.

The bound is that of fluid distribution (R. Kumar and K. Ross, "Peer-assisted file distribution: the
minimum distribution time", 2006): the origin must send everything once, the slowest node must
receive everything once, and all that is received must have been sent by somebody:

    T* = max(F / o, F / d_min, N·F / (o + Σ u))

A node receives no faster than its disk takes writes, so where disks are limited, d is the smaller
of both. The bound counts the file alone. Frame and TCP headers take 4 % of a card's time at 1,500
bytes a packet, so 1.04 is the least a real transfer reaches.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.shaping import Nic

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Scenario:
    """Rates are per direction, in Mbit/s; None means no limit."""

    nodes: int
    node_mbit: float
    origin_mbit: float
    file_mib: int
    chunk_bytes: int = 256 * 1024
    flow_cap_mbit: float | None = None
    disk_mib_per_s: float | None = None

    def __post_init__(self) -> None:
        if min(self.nodes, self.node_mbit, self.origin_mbit, self.file_mib, self.chunk_bytes) <= 0:
            raise ValueError(f"nodes, rates and sizes are positive: {self}")

    @property
    def file_bytes(self) -> int:
        return self.file_mib * MIB

    @property
    def bound_s(self) -> float:
        file_mbit = self.file_bytes * 8 / 1e6
        senders_mbit = self.origin_mbit + self.nodes * self.node_mbit
        receiver_mbit = self.node_mbit
        if self.disk_mib_per_s is not None:
            receiver_mbit = min(receiver_mbit, self.disk_mib_per_s * MIB * 8 / 1e6)
        return max(
            file_mbit / self.origin_mbit,
            file_mbit / receiver_mbit,
            self.nodes * file_mbit / senders_mbit,
        )

    def node_names(self) -> list[str]:
        return [f"node{number}" for number in range(self.nodes)]

    def hosts(self) -> dict[str, Nic]:
        """The origin, the nodes, and an unshaped host for whatever coordinates them."""
        node = Nic(self.node_mbit, self.flow_cap_mbit)
        return {
            "origin": Nic(self.origin_mbit, self.flow_cap_mbit),
            "tracker": Nic(),
            **dict.fromkeys(self.node_names(), node),
        }
