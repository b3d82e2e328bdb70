"""Words on stderr while something takes long: they look at the clock and change no run."""

from __future__ import annotations

import time

import click

from simulations.cluster import Cluster

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
