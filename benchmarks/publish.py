"""How fast publishing hashes, beside BLAKE3's own multi-threaded reader on the same file.

Both read the same file from the page cache (it is written just before, and `--directory` should be
on a file system with room in memory), on as many threads as there are cores, one after the other,
several times; the medians are compared, and each round alternates who goes first, so that a drift
of the machine hits both. The peer is what the `b3sum` program does: a memory-mapped file and the
hash tree split over all cores. Ours hashes chunks one by one and gives a digest for each.

``python -m benchmarks.publish [--size BYTES] [--rounds N] [--chunk-size BYTES] [--directory DIR]``
prints one JSON object; rates are bytes per second / 10^9.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import trio
from blake3 import blake3

from swarm.protocol.manifest import cut_count
from swarm.publish.hashing import core_count, hash_files
from swarm.publish.scan import scan
from swarm.publish.skip_rules import SkipRules
from swarm.units import parse_size

DATA_START = 12_345  # As behind a safetensors header: no chunk begins on a page.
WRITE_BYTES = 1 << 24
FILE_NAME = "weights.bin"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run measured."""

    bytes: int
    chunk_bytes: int
    chunks: int
    threads: int
    rounds: int
    swarm_gb_per_s: float
    blake3_gb_per_s: float
    # Ours over theirs.
    ratio: float
    # CPU seconds of all threads for 10^9 bytes.
    swarm_core_s_per_gb: float
    blake3_core_s_per_gb: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.publish", description=__doc__)
    parser.add_argument("--size", type=parse_size, default=2 << 30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chunk-size", type=parse_size, default=8 << 20)
    parser.add_argument("--directory", default=None)
    parser.add_argument("--json", action="store_true", help="the only form there is")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        outcome = measure(Path(directory), options.size, options.chunk_size, options.rounds)
    print(json.dumps(asdict(outcome)))


def measure(directory: Path, size: int, chunk_bytes: int, rounds: int) -> Outcome:
    """Write a file of `size` random bytes below `directory` and race both over it."""
    path = directory / FILE_NAME
    _write(path, size)
    racers: dict[str, Callable[[], None]] = {
        "swarm": lambda: _hash_as_publish_does(directory, chunk_bytes),
        "blake3": lambda: _hash_as_b3sum_does(path),
    }
    for run in racers.values():
        run()  # Threads are started and pages are in memory.
    wall: dict[str, list[float]] = {name: [] for name in racers}
    cpu: dict[str, list[float]] = {name: [] for name in racers}
    for round_number in range(rounds):
        order = list(racers) if round_number % 2 else list(reversed(racers))
        for name in order:
            wall_s, cpu_s = _timed(racers[name])
            wall[name].append(wall_s)
            cpu[name].append(cpu_s)
    rates = {name: size / statistics.median(times) / 1e9 for name, times in wall.items()}
    costs = {name: statistics.median(times) / size * 1e9 for name, times in cpu.items()}
    return Outcome(
        bytes=size,
        chunk_bytes=chunk_bytes,
        chunks=cut_count(size, min(DATA_START, size), chunk_bytes),
        threads=core_count(),
        rounds=rounds,
        swarm_gb_per_s=round(rates["swarm"], 3),
        blake3_gb_per_s=round(rates["blake3"], 3),
        ratio=round(rates["swarm"] / rates["blake3"], 3),
        swarm_core_s_per_gb=round(costs["swarm"], 4),
        blake3_core_s_per_gb=round(costs["blake3"], 4),
    )


def _hash_as_publish_does(directory: Path, chunk_bytes: int) -> None:
    files = scan(str(directory), SkipRules(), lambda: None).files
    starts = {file.path: min(DATA_START, file.size) for file in files}
    trio.run(hash_files, files, starts, chunk_bytes, lambda _: None)


def _hash_as_b3sum_does(path: Path) -> None:
    blake3(max_threads=blake3.AUTO).update_mmap(path).digest()


def _timed(run: Callable[[], None]) -> tuple[float, float]:
    """(wall seconds, CPU seconds of the process)."""
    wall_started_s, cpu_started_s = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall_started_s, time.process_time() - cpu_started_s


def _write(path: Path, size: int) -> None:
    with path.open("wb") as file:
        left = size
        while left:
            piece = min(left, WRITE_BYTES)
            file.write(os.urandom(piece))
            left -= piece


if __name__ == "__main__":
    main()
