"""What payload costs before any program of ours: bare system calls and the hash, one core-second
figure for each, on loopback and a file system in memory.

    python -m benchmarks.payload_floor [--gib 1] [--directory /dev/shm] [--json]

Read it beside `benchmarks.data_plane`: the sum is the least that any program can reach which sends
with sendfile, receives into a buffer, hashes it with BLAKE3 and writes it to a new file.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

MIB = 1 << 20


def cpu_s() -> float:
    times = os.times()
    return times.user + times.system


def measure(directory: Path, mib: int) -> dict[str, float]:
    """Core-seconds per GB of each step, and their sum."""
    gigabytes = mib * MIB / 1e9
    segment = bytearray(os.urandom(MIB))
    with tempfile.TemporaryFile(dir=directory) as warm:
        _write(warm.fileno(), segment, mib)  # As `data_plane` does: memory that is there.
    with tempfile.TemporaryFile(dir=directory) as file:
        costs = {
            "write": _cost(lambda: _write(file.fileno(), segment, mib), gigabytes),
            "hash": _cost(lambda: [blake3(segment).digest() for _ in range(mib)], gigabytes),
            **_transfer(file.fileno(), segment, mib * MIB, gigabytes),
        }
    return {**costs, "sum": round(sum(costs.values()), 3)}


def _cost(step: Callable[[], object], gigabytes: float) -> float:
    before = cpu_s()
    step()
    return round((cpu_s() - before) / gigabytes, 3)


def _write(descriptor: int, segment: bytearray, mib: int) -> None:
    for index in range(mib):
        os.pwrite(descriptor, segment, index * MIB)


def _transfer(source: int, segment: bytearray, total: int, gigabytes: float) -> dict[str, float]:
    """Send and receive in two processes, as two agents do."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = os.fork()
        if child == 0:
            with socket.create_connection(listener.getsockname()) as sender:
                offset = 0
                while offset < total:
                    offset += os.sendfile(sender.fileno(), source, offset, MIB)
            os._exit(0)
        receiver, _ = listener.accept()
        with receiver:

            def receive() -> None:
                left = total
                while left:
                    left -= receiver.recv_into(segment)

            received = _cost(receive, gigabytes)
        usage = os.wait4(child, 0)[2]
    return {
        "receive": received,
        "send": round((usage.ru_utime + usage.ru_stime) / gigabytes, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What payload costs in bare system calls")
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    arguments = parser.parse_args()
    costs = measure(arguments.directory, int(arguments.gib * 1024))
    if arguments.json:
        print(json.dumps(costs))
    else:
        for name, cost in costs.items():
            print(f"{name:8} {cost:.3f} core-s/GB")


if __name__ == "__main__":
    main()
