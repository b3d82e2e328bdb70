"""What happened over time in one run: samples for its plots.

A sample is taken every so often of virtual time. When there are too many the distance doubles and
every second one is dropped, so a run of any length keeps some hundreds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulations.cluster import Cluster
from simulations.node_driver import NodeDriver

SAMPLES_PER_BOUND = 100
SAMPLES_MAX = 800


@dataclass(frozen=True, slots=True)
class Sample:
    """Up to one moment."""

    at_s: float
    origin_bytes: float
    # What passed all uplinks and downlinks of nodes, and what could have passed: of nodes that are
    # up, and of those among them that still fetch.
    up_bytes: float
    down_bytes: float
    up_possible_bytes: float
    down_possible_bytes: float
    origin_possible_bytes: float


@dataclass(slots=True)
class Series:
    """Filled while a run goes on. `done_at_s` and `started_at_s` at its end: of nodes that were
    empty or partly so, ascending, in seconds of the run."""

    samples: list[Sample] = field(default_factory=list)
    started_at_s: tuple[float, ...] = ()
    done_at_s: tuple[float, ...] = ()


class Recorder:
    """Takes the samples of one run."""

    def __init__(self, cluster: Cluster) -> None:
        self.series = Series()
        self._cluster = cluster
        self._step_s = cluster.scenario.slowest_bound_s / SAMPLES_PER_BOUND
        self._up_possible = 0.0
        self._down_possible = 0.0
        self._at_s = 0.0
        self._look()

    def finish(self) -> Series:
        """The run is over."""
        self._take()
        fetched = [
            driver
            for driver in self._cluster.world.drivers.values()
            if driver.is_started and not driver.was_complete and not driver.is_dead
        ]
        self.series.started_at_s = tuple(sorted(driver.started_at for driver in fetched))
        self.series.done_at_s = tuple(sorted(driver.done_at for driver in fetched))
        return self.series

    def _look(self) -> None:
        self._take()
        if len(self.series.samples) > SAMPLES_MAX:
            del self.series.samples[1::2]
            self._step_s *= 2
        self._cluster.world.timeline.after(self._step_s, self._look)

    def _take(self) -> None:
        world = self._cluster.world
        now = world.timeline.now
        drivers = list(world.drivers.values())
        living = [one for one in drivers if one.is_started and not one.is_dead]
        self._add_possible(living, now)
        origin = world.origin
        self.series.samples.append(
            Sample(
                now,
                origin_bytes=origin.link.carried_bytes(now) if origin else 0.0,
                up_bytes=sum(one.up.carried_bytes(now) for one in drivers),
                down_bytes=sum(one.down.carried_bytes(now) for one in drivers),
                up_possible_bytes=self._up_possible,
                down_possible_bytes=self._down_possible,
                origin_possible_bytes=origin.link.capacity_bytes(now) if origin else 0.0,
            )
        )

    def _add_possible(self, living: list[NodeDriver], now: float) -> None:
        """Since the last sample, of the nodes as they are now."""
        for_s, self._at_s = now - self._at_s, now
        self._up_possible += for_s * sum(one.up.bytes_per_s for one in living)
        fetching = (one for one in living if not one.is_complete)
        self._down_possible += for_s * sum(one.down.bytes_per_s for one in fetching)
