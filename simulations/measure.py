"""What a run came to: times as ratios of the bound, copies from the origin, bytes across borders.

Percentiles are of nodes that finished, by the nearest rank, so that the 99th of few nodes is the
last one. Nodes that held everything at the start finish nothing and are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulations.cluster import Cluster


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """The nodes of one group."""

    name: str
    # T* of the group, and (done − start) / T* of each node that finished, ascending.
    bound_s: float
    ratios: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. Ratios are (done − start) / T*, ascending; copies are of the version."""

    ratios: tuple[float, ...]
    groups: tuple[GroupOutcome, ...]
    # Of those among them that took the place of dead ones.
    newcomer_ratios: tuple[float, ...]
    # Seconds from a node's start, ascending.
    seconds: tuple[float, ...]
    unfinished_count: int
    # When the last thing happened.
    ended_s: float
    origin_copies: float
    # Requests (ranges) to the origin, and what it refused or never answered.
    origin_requests: int
    origin_throttled: int
    origin_hung: int
    cross_zone_copies: float
    cross_rack_copies: float
    # Verified chunks, and bytes received in vain, in copies.
    transfers: int
    wasted_copies: float
    messages: int
    refusals: int
    tracker_calls: int

    @property
    def last_ratio(self) -> float:
        return self.ratios[-1] if self.ratios and not self.unfinished_count else math.inf


def percentile(ascending: Sequence[float], share: float) -> float:
    """Nearest rank; infinite of nothing."""
    if not ascending:
        return math.inf
    return ascending[max(math.ceil(share * len(ascending)) - 1, 0)]


def measure(cluster: Cluster) -> Outcome:
    """The outcome so far."""
    world, scenario = cluster.world, cluster.scenario
    total = scenario.version.total_bytes
    tally, origin = world.tally, world.origin
    groups: list[GroupOutcome] = []
    ratios: list[float] = []
    seconds: list[float] = []
    newcomers: list[float] = []
    for group in scenario.groups:
        bound_s = scenario.bound_s(group)
        done = [
            driver
            for driver in world.drivers.values()
            if driver.group is group and driver.done_at < math.inf and not driver.was_complete
        ]
        if bound_s > 0:
            took = sorted(driver.done_at - driver.started_at for driver in done)
            groups.append(GroupOutcome(group.name, bound_s, tuple(s / bound_s for s in took)))
            ratios.extend(groups[-1].ratios)
            seconds.extend(took)
            newcomers.extend((d.done_at - d.started_at) / bound_s for d in done if d.is_newcomer)
    wasted = sum(driver.transfers.wasted_bytes for driver in world.drivers.values())
    return Outcome(
        ratios=tuple(sorted(ratios)),
        newcomer_ratios=tuple(sorted(newcomers)),
        groups=tuple(groups),
        seconds=tuple(sorted(seconds)),
        unfinished_count=tally.unfinished_count,
        ended_s=world.timeline.now,
        origin_copies=(origin.sent_bytes / total) if origin else 0.0,
        origin_requests=origin.request_count if origin else 0,
        origin_throttled=origin.throttled_count if origin else 0,
        origin_hung=origin.hung_count if origin else 0,
        cross_zone_copies=tally.cross_zone_bytes / total,
        cross_rack_copies=tally.cross_rack_bytes / total,
        transfers=tally.transfer_count,
        wasted_copies=wasted / total,
        messages=tally.message_count,
        refusals=tally.refusal_count,
        tracker_calls=cluster.tracker.call_count if cluster.tracker else 0,
    )
