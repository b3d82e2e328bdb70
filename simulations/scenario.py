"""What is simulated: a version, machines, the links between them, an origin, a tracker, and what
goes wrong. Plain records in bytes, bytes/s and seconds; `scenario_file` reads them from TOML.

**The bound.** T* is how long a node must take whatever anybody decides, from its start with nothing
and without latency: its share of the version through its own NIC (and onto its disk), one copy out
of everything that had one at first, and as many copies as there are nodes at least as fast as this
one through all uplinks together. Ratios are (done − start) / T*. With equal nodes it is max(F/o,
F/d, N·F/(o + Σu)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from simulations.faults import Fault
from swarm.policy.settings import NodeSettings
from tracker.policy.prices import ZoneCopies

NODE_RTT_S = 0.0005
"""Between machines of one zone of a cloud; across zones, and to services, a millisecond."""
ZONE_RTT_S = 0.001
SERVICE_RTT_S = 0.001
LATENCY_ALLOWANCE_S = 10.0
"""On top of the limit of a run: first bytes, round trips and timers, which the bound leaves out and
which are all that a megabyte waits for."""


@dataclass(frozen=True, slots=True)
class VersionShape:
    """What every node wants."""

    total_bytes: int
    chunk_bytes: int

    @property
    def chunk_count(self) -> int:
        return math.ceil(self.total_bytes / self.chunk_bytes)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Bytes of each chunk; the last one may be shorter."""
        whole, rest = divmod(self.total_bytes, self.chunk_bytes)
        return (self.chunk_bytes,) * whole + ((rest,) if rest else ())


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Machines of one kind."""

    count: int
    up_bytes_per_s: float
    down_bytes_per_s: float
    name: str = "nodes"
    # Spread over these in turn.
    zones: tuple[str, ...] = ("",)
    # Nodes to a rack; 0: no racks.
    rack_nodes: int = 0
    # What one TCP flow between nodes may carry.
    flow_cap_bytes_per_s: float = math.inf
    # The disk: writes limit what comes in, reads what a node serves of what it held at its start
    # (everything newer is in the page cache).
    disk_write_bytes_per_s: float = math.inf
    disk_read_bytes_per_s: float = math.inf
    # Start of the first and spread of all, uniform.
    starts_at_s: float = 0.0
    starts_within_s: float = 0.0
    # Share of the version's chunks on disk at the start: the same, leading chunks for all.
    held_share: float = 0.0
    # NIC rate that the node is told, with which it and the tracker reckon; 0: it has to learn it.
    # None: the truth.
    told_nic_bytes_per_s: float | None = None
    # A NIC that falls to this rate after so many busy-or-not seconds; inf: never.
    burst_s: float = math.inf
    burst_over_bytes_per_s: float = 0.0
    settings: NodeSettings = field(default_factory=NodeSettings)

    @property
    def intake_bytes_per_s(self) -> float:
        """What a node can take in."""
        return min(self.down_bytes_per_s, self.disk_write_bytes_per_s)


@dataclass(frozen=True, slots=True)
class LinkShape:
    """What lies between machines."""

    # Round trips within a zone and across.
    rtt_s: float = NODE_RTT_S
    zone_rtt_s: float = ZONE_RTT_S
    # Each way, for each zone and each rack; infinite: not a limit.
    zone_bytes_per_s: float = math.inf
    rack_bytes_per_s: float = math.inf
    # How unevenly TCP shares: each flow's weight is drawn from [1/(1+u), 1+u], evenly in its
    # logarithm. 0: max-min fair.
    unevenness: float = 0.0
    # What headers and acknowledgements add to each payload byte. The rates of NICs, zones, racks
    # and of the origin are those of cards, so payload gets 1 / (1 + share) of them; caps of flows
    # are payload.
    header_share: float = 0.0
    # From the call to the end of the handshake of a link, control or data. None: control links take
    # so many round trips, data links nothing.
    handshake_s: float | None = None
    # From an uploader's decision to send to the first byte on the way.
    gap_s: float = 0.0

    def payload(self, bytes_per_s: float) -> float:
        """What a card of this rate carries beside headers."""
        return bytes_per_s / (1 + self.header_share)

    def card(self, payload_bytes_per_s: float) -> float:
        """The card that carries so much payload."""
        return payload_bytes_per_s * (1 + self.header_share)


@dataclass(frozen=True, slots=True)
class OriginShape:
    """The object store."""

    bytes_per_s: float
    connection_bytes_per_s: float = math.inf
    # Time to the first byte of a request, uniform between the two.
    first_byte_s_min: float = 0.0
    first_byte_s_max: float = 0.0
    rtt_s: float = SERVICE_RTT_S
    # Above so many requests a second it answers 503, and asks to wait; infinite: never.
    requests_per_s: float = math.inf
    retry_after_s: float | None = None
    # Part of the requests that never get an answer.
    hung_share: float = 0.0


@dataclass(frozen=True, slots=True)
class TrackerShape:
    """The tracker's machine."""

    rtt_s: float = SERVICE_RTT_S
    # Time that it takes to serve one call; calls wait for each other.
    service_s: float = 0.0
    # How chunks come to zones that lack them.
    zone_copies: ZoneCopies = ZoneCopies.PEER


@dataclass(frozen=True, slots=True)
class ChunkCost:
    """What a node's processor does with each chunk before it can be announced; one at a time."""

    per_chunk_s: float = 0.0
    bytes_per_s: float = math.inf
    # Processors that all nodes share, as in a lab on one machine. 0: one of its own for each.
    shared_count: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run, but for its seed."""

    version: VersionShape
    groups: tuple[NodeGroup, ...]
    links: LinkShape = field(default_factory=LinkShape)
    # None: there is none.
    origin: OriginShape | None = None
    tracker: TrackerShape | None = field(default_factory=TrackerShape)
    chunk_cost: ChunkCost = field(default_factory=ChunkCost)
    faults: tuple[Fault, ...] = ()
    # A run that is not over by then has failed. In bounds of the slowest group.
    limit_bounds: float = 50.0
    # A mode that the operator has set for the version from the start: origin | peers-only | "".
    mode: str = ""

    @property
    def node_count(self) -> int:
        return sum(group.count for group in self.groups)

    def bound_s(self, group: NodeGroup) -> float:
        """T* of a node of this group; see the module's docstring."""
        return max(self.bound_terms_s(group).values())

    def bottleneck(self, group: NodeGroup) -> str:
        """What T* of this group consists of."""
        terms = self.bound_terms_s(group)
        return max(terms, key=lambda name: terms[name])

    def bound_terms_s(self, group: NodeGroup) -> dict[str, float]:
        """Each lower bound by what it comes from, in seconds."""
        wanted = self.version.total_bytes * (1 - group.held_share)
        terms = {
            "receiver NIC": wanted / group.down_bytes_per_s,
            "disk": wanted / group.disk_write_bytes_per_s,
        }
        if any(other.held_share < 1.0 for other in self.groups):
            terms |= self._first_copy_terms_s()
            terms["all uplinks"] = self._all_copies_s(group)
        return terms

    def _first_copy_terms_s(self) -> dict[str, float]:
        """Chunks that nobody holds come from the origin, the others at best from all at once."""
        origin = self.origin.bytes_per_s if self.origin else 0.0
        total, held = self.version.total_bytes, max(group.held_share for group in self.groups)
        seeds_up = sum(
            min(group.up_bytes_per_s, group.disk_read_bytes_per_s) * group.count
            for group in self.groups
            if group.held_share
        )
        terms = {"origin": total * (1 - held) / origin if origin else 0.0}
        if seeds_up:
            terms["seed uplink"] = total / (origin + seeds_up)
        return terms

    def _all_copies_s(self, group: NodeGroup) -> float:
        """Nodes that are at least as fast want their copies too."""
        origin = self.origin.bytes_per_s if self.origin else 0.0
        up = sum(other.up_bytes_per_s * other.count for other in self.groups)
        copies = sum(
            other.count * (1 - other.held_share)
            for other in self.groups
            if other.intake_bytes_per_s >= group.intake_bytes_per_s
        )
        return copies * self.version.total_bytes / (origin + up)

    @property
    def slowest_bound_s(self) -> float:
        return max(self.bound_s(group) for group in self.groups)

    @property
    def slowest_bottleneck(self) -> str:
        """Of the group with that bound."""
        return self.bottleneck(max(self.groups, key=self.bound_s))

    @property
    def limit_s(self) -> float:
        started_s = max(group.starts_at_s + group.starts_within_s for group in self.groups)
        ends_s = max((fault.ends_at_s for fault in self.faults), default=0.0)
        limit_s = LATENCY_ALLOWANCE_S + self.limit_bounds * self.slowest_bound_s
        return max(started_s, ends_s) + limit_s
