"""Words on stderr while something takes long: they look at the clock and change no run."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from simulations.cluster import Cluster
from swarm.units import format_duration

PROGRESS_S = 10.0
"""Between two lines of progress on a long run."""
LOOKS_PER_BOUND = 50


def tell_progress(cluster: Cluster) -> None:
    """A line now and then on how far one run is."""
    scenario, world = cluster.scenario, cluster.world
    step_s = scenario.slowest_bound_s / LOOKS_PER_BOUND
    wanted = scenario.node_count * scenario.version.chunk_count
    told_at = time.monotonic()

    def look() -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= PROGRESS_S:
            told_at = time.monotonic()
            share = world.tally.transfer_count / wanted
            click.echo(f"{world.timeline.now:.1f} s simulated, {share:.0%} of all chunks", err=True)
        world.timeline.after(step_s, look)

    world.timeline.after(step_s, look)


class CellProgress:
    """How many of several runs have landed, and how long the others will take about.

    The estimate takes what a run costs to grow with its `weight`, which holds within a factor of
    two; nothing is estimated before the first run has landed.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        self._weights = weights
        self._began = self._told_at = time.monotonic()
        self._landed_weight = 0
        self._landed_count = 0

    def landed(self, index: int) -> None:
        self._landed_weight += self._weights[index]
        self._landed_count += 1

    def tell(self) -> None:
        """A line, if the last one is old enough."""
        now = time.monotonic()
        if now - self._told_at < PROGRESS_S:
            return
        self._told_at = now
        gone_s = now - self._began
        line = f"{self._landed_count} of {len(self._weights)} runs, {format_duration(gone_s)} gone"
        if self._landed_weight:
            left = sum(self._weights) - self._landed_weight
            left_s = gone_s * left / self._landed_weight
            line += f", about {format_duration(left_s)} left"
        click.echo(line, err=True)
