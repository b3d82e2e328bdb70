"""One seed, one fetching peer, loopback: GB/s and core-seconds per GB, beside libtorrent.

    python -m benchmarks.data_plane [--gib 2] [--runs 5] [--directory /dev/shm] [--json]

Both systems run as two processes each, store on the same file system and verify every byte before
it counts. The runs are interleaved and the median is reported, so that a slow minute of the machine
hits both, each on memory touched a moment before. Time runs from the word to go until the last byte
is verified and written; CPU is user plus system time of each process over the same span, as the
kernel counts it. libtorrent gets a v1 torrent (one hash to verify, not two) of 1 MiB pieces, TCP
only, no encryption, no discovery."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import libtorrent
from blake3 import blake3

from benchmarks.command_meter import touch_memory
from swarm.protocol.ids import ChunkDigest, ChunkIndex
from swarm.protocol.manifest import (
    FileEntry,
    choose_chunk_bytes,
    cut,
    decode_manifest,
    encode_manifest,
)
from swarm.store.disk import DiskStore

FILE = "model.safetensors"
PIECE_BYTES = 1 << 20
RUN_TIMEOUT_S = 300.0
POLL_S = 0.005
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SEED_ADDRESS, FETCH_ADDRESS = "127.0.0.1", "127.0.0.2"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run."""

    seconds: float
    send_cpu_s: float
    receive_cpu_s: float


@dataclass(frozen=True, slots=True)
class Ground:
    """What all runs share: the seed's cache with the whole version, and the torrent of its file."""

    root: Path
    total_bytes: int
    manifest: Path
    seed_cache: Path
    seed_files: Path
    torrent: Path


class Peer:
    """A process that says ``ready``, waits for a line, then takes part."""

    def __init__(self, *argv: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline().split()
        if not line or line[0] != "ready":
            raise RuntimeError(f"{argv[0]} did not start")
        # What follows the word: how to reach it.
        self.facts = line[1:]
        self._cpu_before = 0.0

    def go(self) -> None:
        assert self._process.stdin is not None
        self._cpu_before = self._cpu_s()
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def cpu_s(self) -> float:
        """User and system seconds since `go`."""
        return self._cpu_s() - self._cpu_before

    def check(self) -> None:
        if self._process.poll() is not None:
            raise RuntimeError(f"a peer ended with {self._process.returncode}")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _cpu_s(self) -> float:
        # After the command's closing bracket: utime and stime are the 12th and 13th fields.
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def prepare(root: Path, total_bytes: int) -> Ground:
    """Make the version in the seed's store, and the torrent of the same file."""
    chunk_bytes = choose_chunk_bytes(total_bytes)
    pieces = cut(total_bytes, 0, chunk_bytes)
    digests = tuple(ChunkDigest(blake3(part).digest()) for part in _content(pieces))
    raw = encode_manifest([FileEntry(FILE, total_bytes, False, 0, digests)], chunk_bytes)
    manifest = root / "manifest"
    manifest.write_bytes(raw)
    cache = root / "seed"
    with DiskStore.open_cache(str(cache)) as store:
        version = store.open_version(decode_manifest(raw), raw)
        for chunk, part in enumerate(_content(pieces)):
            writer = version.writer(ChunkIndex(chunk))
            writer.write(0, memoryview(part))
            writer.commit()
        version.publish_ready()
        directory = Path(version.directory)
        version.close()
    torrent = root / "torrent"
    _make_torrent(directory / FILE, torrent)
    return Ground(root, total_bytes, manifest, cache, directory, torrent)


def _content(pieces: list[tuple[int, int]]) -> Iterator[bytes]:
    """The file's chunks: one random block over and over, each copy told apart by its offset."""
    block = random.Random(1).randbytes(max(length for _, length in pieces))
    for offset, length in pieces:
        yield offset.to_bytes(8, "big") + block[8:length]


def _make_torrent(file: Path, torrent: Path) -> None:
    flags = libtorrent.create_torrent.v1_only
    files = [libtorrent.create_file_entry(file.name, file.stat().st_size)]
    creator = libtorrent.create_torrent(files, piece_size=PIECE_BYTES, flags=flags)
    libtorrent.set_piece_hashes(creator, str(file.parent))
    torrent.write_bytes(libtorrent.bencode(creator.generate()))


def run_swarm(ground: Ground) -> Measurement:
    module = "benchmarks.data_plane_peer"
    with _fetch_directory(ground) as target:
        finished = target.with_name("finished")
        seed = Peer(module, "seed", str(ground.seed_cache), str(ground.manifest))
        try:
            fetch = Peer(
                module, "fetch", str(target), str(ground.manifest), str(finished), *seed.facts
            )
            return _measure(seed, fetch, finished)
        finally:
            seed.stop()


def run_libtorrent(ground: Ground) -> Measurement:
    module = "benchmarks.libtorrent_peer"
    with _fetch_directory(ground) as target:
        finished = target.with_name("finished")
        torrent = str(ground.torrent)
        seed = Peer(
            module, "seed", torrent, str(ground.seed_files), SEED_ADDRESS, FETCH_ADDRESS,
            str(ground.root / "seeding"),
        )  # fmt: skip
        try:
            fetch = Peer(
                module, "fetch", torrent, str(target), FETCH_ADDRESS, SEED_ADDRESS, str(finished)
            )
            return _measure(seed, fetch, finished)
        finally:
            seed.stop()


def _measure(seed: Peer, fetch: Peer, finished: Path) -> Measurement:
    try:
        started_at = time.monotonic()
        seed.go()
        fetch.go()
        while not finished.exists():
            seed.check()
            fetch.check()
            if time.monotonic() - started_at > RUN_TIMEOUT_S:
                raise TimeoutError(f"not finished within {RUN_TIMEOUT_S} s")
            time.sleep(POLL_S)
        seconds = time.monotonic() - started_at
        return Measurement(seconds, seed.cpu_s(), fetch.cpu_s())
    finally:
        fetch.stop()


@contextmanager
def _fetch_directory(ground: Ground) -> Iterator[Path]:
    """An empty directory, and a clean place beside it."""
    target = ground.root / "fetch"
    target.mkdir()
    try:
        yield target
    finally:
        shutil.rmtree(target)
        (ground.root / "finished").unlink(missing_ok=True)
        (ground.root / "seeding").unlink(missing_ok=True)


def compare(ground: Ground, runs: int, log: Callable[[str], None]) -> dict[str, object]:
    """Interleaved runs of both, reported as medians."""
    systems = {"swarm": run_swarm, "libtorrent": run_libtorrent}
    results: dict[str, list[Measurement]] = {name: [] for name in systems}
    for number in range(runs):
        for name, run in systems.items():
            touch_memory(ground.root, ground.total_bytes)
            measurement = run(ground)
            results[name].append(measurement)
            rate = ground.total_bytes / measurement.seconds / 1e9
            cpu_s = measurement.send_cpu_s + measurement.receive_cpu_s
            per_gb = cpu_s / (ground.total_bytes / 1e9)
            log(f"run {number + 1}: {name} {rate:.2f} GB/s, {per_gb:.2f} core-s/GB")
    reports = {name: _report(found, ground.total_bytes) for name, found in results.items()}
    ratio = reports["swarm"]["gb_per_s"] / reports["libtorrent"]["gb_per_s"]
    return {**reports, "ratio": round(ratio, 2)}


def _report(found: list[Measurement], total_bytes: int) -> dict[str, float]:
    gigabytes = total_bytes / 1e9

    def median(values: Iterator[float]) -> float:
        return round(statistics.median(values), 3)

    return {
        "gb_per_s": median(gigabytes / run.seconds for run in found),
        "send_core_s_per_gb": median(run.send_cpu_s / gigabytes for run in found),
        "receive_core_s_per_gb": median(run.receive_cpu_s / gigabytes for run in found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="data-plane-", dir=arguments.directory) as root:
        ground = prepare(Path(root), int(arguments.gib * (1 << 30)))
        report = compare(ground, arguments.runs, lambda line: print(line, file=sys.stderr))
    if arguments.json:
        print(json.dumps(report))
    else:
        print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
