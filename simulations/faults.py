"""What goes wrong, and when. Each fault is a fact about the world; nodes and tracker notice it only
as they would.

Victims are drawn by the run's chance. `share` is of the nodes that are alive at that time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

if TYPE_CHECKING:
    from simulations.cluster import Cluster
    from simulations.node_driver import NodeDriver


@dataclass(frozen=True, slots=True)
class Crash:
    """Machines vanish. With `notice_s` their peers' connections hang so long (a lost machine); 0
    is a killed process, whose kernel says so at once."""

    at_s: float
    share: float = 0.0
    count: int = 0
    # Part of all nodes dies each minute, from `at_s` for `for_s`, evenly spread by chance.
    per_minute: float = 0.0
    for_s: float = 0.0
    notice_s: float = 0.0
    # An empty machine takes each one's place.
    is_replaced: bool = False
    group: str = ""

    @property
    def ends_at_s(self) -> float:
        return self.at_s + self.for_s


@dataclass(frozen=True, slots=True)
class Leave:
    """Nodes say goodbye: finish what is under way, then go."""

    at_s: float
    share: float = 0.0
    count: int = 0
    group: str = ""

    @property
    def ends_at_s(self) -> float:
        return self.at_s


@dataclass(frozen=True, slots=True)
class Slow:
    """NICs or disks give `factor` of their rate for a while."""

    at_s: float
    factor: float
    share: float = 0.0
    count: int = 0
    for_s: float = math.inf
    is_disk: bool = False
    group: str = ""

    @property
    def ends_at_s(self) -> float:
        return self.at_s + self.for_s if self.for_s < math.inf else self.at_s


@dataclass(frozen=True, slots=True)
class OriginSlow:
    """The origin gives `factor` of its total rate, of each connection's rate, or both."""

    at_s: float
    for_s: float
    total_factor: float = 1.0
    connection_factor: float = 1.0

    @property
    def ends_at_s(self) -> float:
        return self.at_s + self.for_s


@dataclass(frozen=True, slots=True)
class TrackerLoss:
    """The tracker dies; one that knows nothing takes its place later."""

    at_s: float
    for_s: float

    @property
    def ends_at_s(self) -> float:
        return self.at_s + self.for_s


@dataclass(frozen=True, slots=True)
class Partition:
    """A part of the nodes and the rest cannot reach each other; both reach tracker and origin."""

    at_s: float
    for_s: float
    share: float = 0.0
    count: int = 0
    group: str = ""
    # A zone instead of a share.
    zone: str = ""
    # Until a silent connection counts as broken.
    notice_s: float = 5.0

    @property
    def ends_at_s(self) -> float:
        return self.at_s + self.for_s


@dataclass(frozen=True, slots=True)
class Corrupt:
    """What these nodes send of a part of the chunks has the wrong digest; their disks are bad, so
    they find it out when they hash again."""

    at_s: float
    chunk_share: float = 1.0
    share: float = 0.0
    count: int = 0
    group: str = ""
    # The copy on disk is wrong too and is found when hashed again; else the node keeps lying.
    is_on_disk: bool = True

    @property
    def ends_at_s(self) -> float:
        return self.at_s


Fault = Crash | Leave | Slow | OriginSlow | TrackerLoss | Partition | Corrupt


def order_faults(cluster: Cluster, faults: Sequence[Fault], rng: random.Random) -> None:
    """Put every fault on the cluster's timeline."""
    for fault in faults:
        cluster.world.timeline.at(fault.at_s, _happen, cluster, fault, rng)


def _happen(cluster: Cluster, fault: Fault, rng: random.Random) -> None:
    match fault:
        case Crash():
            _crash(cluster, fault, rng)
        case Leave():
            for driver in _victims(cluster, fault.group, fault.share, fault.count, rng):
                cluster.leave(driver)
        case Slow():
            for driver in _victims(cluster, fault.group, fault.share, fault.count, rng):
                cluster.slow(driver, fault.factor, is_disk=fault.is_disk)
                if fault.for_s < math.inf:
                    _later(cluster, fault.for_s, driver, 1 / fault.factor, fault.is_disk)
        case OriginSlow():
            cluster.slow_origin(fault.total_factor, fault.connection_factor)
            restore = (1 / fault.total_factor, 1 / fault.connection_factor)
            cluster.world.timeline.after(fault.for_s, cluster.slow_origin, *restore)
        case TrackerLoss():
            cluster.lose_tracker(fault.for_s)
        case Partition():
            island = _island(cluster, fault, rng)
            cluster.part(island, fault.notice_s)
            cluster.world.timeline.after(fault.for_s, cluster.join_again, island)
        case Corrupt():
            for driver in _victims(cluster, fault.group, fault.share, fault.count, rng):
                driver.corrupt(fault.chunk_share, is_on_disk=fault.is_on_disk, rng=rng)
        case _:
            assert_never(fault)


def _crash(cluster: Cluster, fault: Crash, rng: random.Random) -> None:
    if not fault.per_minute:
        for driver in _victims(cluster, fault.group, fault.share, fault.count, rng):
            cluster.kill(driver, fault.notice_s, is_replaced=fault.is_replaced)
        return
    _crash_on(cluster, fault, rng, cluster.world.timeline.now + fault.for_s)


def _crash_on(cluster: Cluster, fault: Crash, rng: random.Random, until: float) -> None:
    """The next death of a Poisson process whose rate follows the number of living nodes."""
    alive = len(_candidates(cluster, fault.group))
    if not alive:
        return
    wait_s = rng.expovariate(alive * fault.per_minute / 60)
    if cluster.world.timeline.now + wait_s <= until:
        cluster.world.timeline.after(wait_s, _crash_one, cluster, fault, rng, until)


def _crash_one(cluster: Cluster, fault: Crash, rng: random.Random, until: float) -> None:
    for driver in _victims(cluster, fault.group, 0.0, 1, rng):
        cluster.kill(driver, fault.notice_s, is_replaced=fault.is_replaced)
    _crash_on(cluster, fault, rng, until)


def _later(
    cluster: Cluster, delay_s: float, driver: NodeDriver, factor: float, is_disk: bool
) -> None:
    def restore() -> None:
        cluster.slow(driver, factor, is_disk=is_disk)

    cluster.world.timeline.after(delay_s, restore)


def _island(cluster: Cluster, fault: Partition, rng: random.Random) -> list[NodeDriver]:
    if fault.zone:
        return [d for d in _candidates(cluster, fault.group) if d.info.zone == fault.zone]
    return _victims(cluster, fault.group, fault.share, fault.count, rng)


def _candidates(cluster: Cluster, group: str) -> list[NodeDriver]:
    return [
        driver
        for driver in cluster.world.drivers.values()
        if not driver.is_dead and group in ("", driver.group.name)
    ]


def _victims(
    cluster: Cluster, group: str, share: float, count: int, rng: random.Random
) -> list[NodeDriver]:
    candidates = _candidates(cluster, group)
    wanted = count or round(share * len(candidates))
    return rng.sample(candidates, min(wanted, len(candidates)))
