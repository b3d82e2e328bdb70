"""What all drivers share: time, network, origin, who is there, and the count of what happened."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulations.checks import Checks
from simulations.network import Link, Network
from simulations.origin import Origin
from simulations.processor import Processor
from simulations.scenario import Scenario
from simulations.timeline import Timeline
from swarm.protocol.ids import NodeId, VersionId

if TYPE_CHECKING:
    from simulations.node_driver import NodeDriver

VERSION = VersionId(bytes(32))
"""The one version of a run; nobody looks at its bytes."""


@dataclass(slots=True)
class Tally:
    """What happened, over the whole fleet."""

    message_count: int = 0
    refusal_count: int = 0
    transfer_count: int = 0
    # Payload bytes between nodes, all of them and those that crossed a zone or a rack.
    peer_bytes: int = 0
    cross_zone_bytes: int = 0
    cross_rack_bytes: int = 0
    # Living nodes that are not complete, and nodes that are still to start.
    unfinished_count: int = 0
    coming_count: int = 0


@dataclass(slots=True)
class World:
    """Handed to every driver; owned by the cluster."""

    scenario: Scenario
    lengths: tuple[int, ...]
    timeline: Timeline
    network: Network
    origin: Origin | None
    # Draws the weights of flows.
    rng: random.Random
    checks: Checks
    tally: Tally = field(default_factory=Tally)
    drivers: dict[NodeId, NodeDriver] = field(default_factory=dict)
    # (zone or rack, is it upwards) → its link; absent where it limits nobody.
    uplinks: dict[tuple[str, bool], Link] = field(default_factory=dict)

    # Half a round trip within a zone and across; set at the start.
    way_s: float = 0.0
    zone_way_s: float = 0.0
    # What all nodes share; None: each has its own.
    processor: Processor | None = None

    def __post_init__(self) -> None:
        self.way_s = self.scenario.links.rtt_s / 2
        self.zone_way_s = self.scenario.links.zone_rtt_s / 2
        if self.scenario.chunk_cost.shared_count:
            self.processor = Processor(self.scenario.chunk_cost.shared_count)

    def draw_weight(self) -> float:
        """What TCP makes of one connection's fair share."""
        unevenness = self.scenario.links.unevenness
        if not unevenness:
            return 1.0
        return float((1 + unevenness) ** self.rng.uniform(-1, 1))

    def delay_s(self, one: NodeDriver, other: NodeDriver) -> float:
        """One way."""
        return self.way_s if one.zone == other.zone else self.zone_way_s

    def path(self, source: NodeDriver, target: NodeDriver, *, is_on_disk: bool) -> tuple[Link, ...]:
        """What a peer's bytes cross."""
        path = [source.up, target.down]
        if is_on_disk and source.disk_read is not None:
            path.append(source.disk_read)
        if target.disk_write is not None:
            path.append(target.disk_write)
        if self.uplinks:
            ours, theirs = source.info, target.info
            for mine, other in ((ours.zone, theirs.zone), (ours.rack, theirs.rack)):
                if mine != other:
                    pair = (self.uplinks.get((mine, True)), self.uplinks.get((other, False)))
                    path.extend(link for link in pair if link is not None)
        return tuple(path)

    def all_links(self) -> list[Link]:
        """Every link, for checks and utilisation."""
        links = list(self.uplinks.values())
        if self.origin is not None:
            links.append(self.origin.link)
        for driver in self.drivers.values():
            ends = (driver.up, driver.down, driver.disk_read, driver.disk_write)
            links.extend(link for link in ends if link is not None)
        return links
