"""What one machine can do alone: its disk, its hashing, the start of a process."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import time
from pathlib import Path

from blake3 import blake3

from swarm.capacity.profile import DiskProfile, HashingProfile, Machine
from swarm.errors import StoreError

BLOCK_BYTES = 4 << 20
HASHED_BYTES = 256 << 20
START_TIMEOUT_S = 30.0
POLL_S = 0.002


def this_machine() -> Machine:
    return Machine(
        host=socket.gethostname(),
        cpu_count=len(os.sched_getaffinity(0)),
        kernel=platform.release(),
        python=platform.python_version(),
    )


def measure_hashing(byte_count: int = HASHED_BYTES) -> HashingProfile:
    """BLAKE3 in this thread, over a block that stays in the cache, as received segments do."""
    block = os.urandom(BLOCK_BYTES)
    hasher = blake3()
    begun = time.perf_counter()
    for _ in range(byte_count // BLOCK_BYTES):
        hasher.update(block)
    hasher.digest()
    return HashingProfile(byte_count / (time.perf_counter() - begun))


def measure_disk(directory: Path, byte_count: int, limit_s: float) -> DiskProfile:
    """Write a file and sync it, drop it from the page cache, read it back; each for at most
    `limit_s`. Raises StoreError."""
    path = directory / "disk.bin"
    try:
        written, write_s = _write(path, byte_count, limit_s)
        read, read_s = _read(path, limit_s)
    except OSError as error:
        raise StoreError(
            f"cannot measure the disk in {directory}: {error.strerror}", object_name=str(directory)
        ) from error
    finally:
        path.unlink(missing_ok=True)
    return DiskProfile(written / max(write_s, 1e-9), read / max(read_s, 1e-9))


def _write(path: Path, byte_count: int, limit_s: float) -> tuple[int, float]:
    block = os.urandom(BLOCK_BYTES)
    written = 0
    begun = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        while written < byte_count and time.perf_counter() - begun < limit_s:
            written += file.write(block)
        os.fdatasync(file.fileno())
        took_s = time.perf_counter() - begun
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return written, took_s


def _read(path: Path, limit_s: float) -> tuple[int, float]:
    room = bytearray(BLOCK_BYTES)
    read = 0
    begun = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while time.perf_counter() - begun < limit_s:
            count = file.readinto(room)
            if not count:
                break
            read += count
    return read, time.perf_counter() - begun


def measure_process_start(work: Path) -> float:
    """Seconds from the start of an agent's process to the first time that its socket answers.
    Raises StoreError if it does not come up."""
    place = work / "start.sock"
    command = [sys.executable, "-m", "swarm.cli", "agent", "--cache", str(work / "start")]
    command += ["--socket", str(place), "--listen", "127.0.0.1:0"]
    environment = {key: text for key, text in os.environ.items() if not key.startswith("SWARM_")}
    begun = time.perf_counter()
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not _answers(place):
            if process.poll() is not None or time.perf_counter() - begun > START_TIMEOUT_S:
                raise StoreError(
                    f"an agent on a cache in {work} does not start",
                    object_name=str(work),
                    hint="run `swarm agent` by hand to see why",
                )
            time.sleep(POLL_S)
        return time.perf_counter() - begun
    finally:
        process.kill()
        process.wait()


def _answers(place: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(place))
        except OSError:
            return False
    return True
