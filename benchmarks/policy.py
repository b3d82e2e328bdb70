"""CPU cost of decisions per chunk: a node's and the tracker's part.

A swarm of 17 nodes (so each has K = 16 neighbours) fetches 2,000 chunks of 64 MiB at 25 Gbit/s in
virtual time. Everything that reached one node and the tracker is recorded and then replayed on a
fresh node and a fresh tracker, which decide the same because chance comes from a seed; only the
replay is timed. The tracker's time is divided by all chunks that all nodes fetched, because one
tracker serves them all.

    python -m benchmarks.policy --json
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from simulations.cluster import Cluster
from simulations.node_driver import NodeDriver
from simulations.scenario import NodeGroup, OriginShape, Scenario, TrackerShape, VersionShape
from simulations.tracker_driver import TrackerCall, replay_tracker
from swarm.policy.commands import Command
from swarm.policy.events import Event
from swarm.policy.node import Node
from swarm.policy.settings import NodeSettings

BUDGET_US_PER_CHUNK = 100.0
"""Node and tracker together; a fifth of what a chunk may cost beside its payload."""
NODES = 17
CHUNK_BYTES = 64 * 1024 * 1024
SEED = 1
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Recording:
    """What one run said to one node and to the tracker."""

    settings: NodeSettings
    node: NodeDriver
    node_seed: float
    turns: list[tuple[float, tuple[Event, ...]]]
    command_count: int
    tracker_calls: list[TrackerCall]
    tracker_seed: int
    chunk_count: int
    node_count: int


def scenario(chunk_count: int) -> Scenario:
    nic = 3.125e9
    return Scenario(
        VersionShape(chunk_count * CHUNK_BYTES, CHUNK_BYTES),
        (NodeGroup(NODES, nic, nic),),
        origin=OriginShape(4 * nic, 90e6, first_byte_s_min=0.03, first_byte_s_max=0.1),
        tracker=TrackerShape(rtt_s=0.0005),
    )


def record(chunk_count: int) -> Recording:
    """Run the swarm once; half its work is the network that carries it."""
    cluster = Cluster(scenario(chunk_count), SEED)
    assert cluster.tracker is not None
    watched = list(cluster.world.drivers.values())[NODES // 2]
    turns: list[tuple[float, tuple[Event, ...]]] = []
    command_count = 0

    def watch(_: NodeDriver, events: tuple[Event, ...], commands: list[Command]) -> None:
        nonlocal command_count
        turns.append((cluster.world.timeline.now, events))
        command_count += len(commands)

    watched.watch = watch
    cluster.tracker.calls = []
    cluster.run()
    cluster.require_finished()
    return Recording(
        watched.settings,
        watched,
        watched.node_seed,
        turns,
        command_count,
        cluster.tracker.calls,
        SEED + 1,
        chunk_count,
        NODES,
    )


def replay_node(recording: Recording) -> None:
    """The same facts to a node that was just born, as its agent would: decide, ask for the next
    deadline."""
    node = Node(recording.settings, recording.node.id, random.Random(recording.node_seed))
    handle, next_deadline = node.handle, node.next_deadline
    for now, events in recording.turns:
        handle(*events, now=now)
        next_deadline()


def core_seconds(work: Callable[[], None]) -> float:
    """Median CPU time of some rounds."""
    seconds = []
    for _ in range(ROUNDS):
        gc.collect()
        begun = time.process_time()
        work()
        seconds.append(time.process_time() - begun)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--chunks", type=int, default=2000)
    arguments = parser.parse_args()
    recording = record(arguments.chunks)
    node_s = core_seconds(lambda: replay_node(recording))
    tracker_s = core_seconds(
        lambda: replay_tracker(recording.tracker_calls, recording.tracker_seed)
    )
    node_us = node_s / recording.chunk_count * 1e6
    tracker_us = tracker_s / (recording.chunk_count * recording.node_count) * 1e6
    result = {
        "chunks": recording.chunk_count,
        "neighbours": NODES - 1,
        "turns_per_chunk": round(len(recording.turns) / recording.chunk_count, 2),
        "events_per_chunk": round(
            sum(len(events) for _, events in recording.turns) / recording.chunk_count, 2
        ),
        "commands_per_chunk": round(recording.command_count / recording.chunk_count, 2),
        "node_us_per_chunk": round(node_us, 1),
        "tracker_us_per_chunk": round(tracker_us, 1),
        "us_per_chunk": round(node_us + tracker_us, 1),
        "budget_us_per_chunk": BUDGET_US_PER_CHUNK,
        "is_within_budget": node_us + tracker_us <= BUDGET_US_PER_CHUNK,
    }
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:24} {value}")


if __name__ == "__main__":
    main()
