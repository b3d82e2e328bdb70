"""What a demonstration found: times against the bound, bytes by source. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarm.cli.output import table
from swarm.cli.progress import SOURCE_WORDS
from swarm.http.messages import Json
from swarm.units import format_duration, format_size


@dataclass(frozen=True, slots=True)
class NodeResult:
    """One node at the end."""

    name: str
    # From the moment the channel was set to READY.
    seconds: float
    bytes_by_source: dict[str, int]
    wasted_bytes: int
    # Payload sent to other nodes.
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The whole."""

    version: str
    # Unique bytes of the version.
    bytes: int
    # Of the origin, of each node's uplink and of each node's downlink.
    rate_bytes_per_s: int
    # Sent to the nodes, by the origin's own count.
    origin_bytes: int
    nodes: tuple[NodeResult, ...]

    @property
    def seconds(self) -> float:
        """Until the last node was ready."""
        return max(node.seconds for node in self.nodes)

    @property
    def bound_s(self) -> float:
        return bound_s(self.bytes, len(self.nodes), self.rate_bytes_per_s)

    @property
    def time_ratio(self) -> float:
        return self.seconds / self.bound_s

    @property
    def origin_copies(self) -> float:
        """How often the version left the origin."""
        return self.origin_bytes / self.bytes

    def source_total(self, source: str) -> int:
        return sum(node.bytes_by_source.get(source, 0) for node in self.nodes)


def bound_s(size: int, nodes: int, rate_bytes_per_s: int) -> float:
    """No schedule is faster: T* = max(F/o, F/d, N·F/(o + N·u)), here with o = d = u."""
    through_one_link = size / rate_bytes_per_s
    through_all_links = nodes * size / (rate_bytes_per_s + nodes * rate_bytes_per_s)
    return max(through_one_link, through_all_links)


def demo_document(result: DemoResult) -> dict[str, Json]:
    """The JSON of a demonstration."""
    return {
        "version": result.version,
        "ready": True,
        "nodes": len(result.nodes),
        "seconds": round(result.seconds, 3),
        "bytes": result.bytes,
        "bytes_by_source": {source: result.source_total(source) for source in SOURCE_WORDS},
        "wasted_bytes": sum(node.wasted_bytes for node in result.nodes),
        "origin_copies": round(result.origin_copies, 4),
        "bound_seconds": round(result.bound_s, 3),
        "time_ratio": round(result.time_ratio, 4),
        "node_seconds": [round(node.seconds, 3) for node in result.nodes],
    }


def demo_table(result: DemoResult) -> str:
    """A row for each node, and what it comes to."""
    rows = [_row(node) for node in result.nodes]
    direct_s = len(result.nodes) * result.bytes / result.rate_bytes_per_s
    lines = [
        table(("NODE", "READY AFTER", "FROM ORIGIN", "FROM PEERS", "SENT", "WASTED"), rows),
        "",
        f"{format_size(result.bytes)} on {len(result.nodes)} nodes, every file checked: the last "
        f"was ready after {format_duration(result.seconds)}, {result.time_ratio:.2f} x the bound "
        f"of {format_duration(result.bound_s)}",
        f"the origin sent {result.origin_copies:.3f} copies; each node on its own would have "
        f"taken {len(result.nodes)} and {format_duration(direct_s)}",
    ]
    return "\n".join(lines)


def _row(node: NodeResult) -> Sequence[str]:
    peers = node.bytes_by_source.get("peer_same_zone", 0)
    peers += node.bytes_by_source.get("peer_other_zone", 0)
    return (
        node.name,
        format_duration(node.seconds),
        format_size(node.bytes_by_source.get("origin", 0)),
        format_size(peers),
        format_size(node.sent_bytes),
        format_size(node.wasted_bytes),
    )
