"""What a command costs, from its start to its end: time, CPU and memory.

CPU is the kernel's account of the ended process and of the children it waited for. Memory is read
from `/proc` while the command runs: the account of an ended process (`ru_maxrss`) begins with the
memory of the process it was forked from, which here is larger than some of the commands. The high
water mark of all memory misses what was added after the last look; that of anonymous memory, for
which the kernel keeps no mark, also misses what came and went between two looks.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LOOK_S = 0.02
"""Between two looks; one takes 0.03 ms."""
BLOCK_BYTES = 64 << 20
TAIL_CHARACTERS = 2000
"""Of a failed command's last words."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One run of one command."""

    seconds: float
    cpu_s: float
    # Memory in use at once: all of it, and what is no page of a file.
    rss_bytes_max: int
    anonymous_bytes_max: int


def touch_memory(directory: Path, byte_count: int) -> None:
    """Write as much as a run will, and let it go. A virtual machine's free memory may have gone
    back to its host, and getting it again costs up to 2.5 core-seconds per GB, several times what
    is measured here; touched a moment ago it is there, as it is on a host of its own."""
    block = bytes(BLOCK_BYTES)
    scratch = directory / "scratch"
    with scratch.open("wb", buffering=0) as file:
        for _ in range(-(-byte_count // BLOCK_BYTES) + 1):
            file.write(block)
    scratch.unlink()


def measure_command(
    argv: Sequence[str], environment: Mapping[str, str], log: Path, *, timeout_s: float
) -> Cost:
    """Run a command to its end, its output into `log`. Raises RuntimeError with the end of that if
    it fails, and TimeoutError."""
    with log.open("wb") as output:
        cost, exit_code = _run(argv, environment, output, timeout_s)
    if exit_code:
        last_words = log.read_text(errors="replace")[-TAIL_CHARACTERS:]
        raise RuntimeError(f"{argv[0]} ended with {exit_code}:\n{last_words}")
    return cost


def _run(
    argv: Sequence[str], environment: Mapping[str, str], output: IO[bytes], timeout_s: float
) -> tuple[Cost, int]:
    started_at = time.perf_counter()
    process = subprocess.Popen(
        argv, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output, stderr=output
    )
    try:
        rss_bytes_max, anonymous_bytes_max = _watch(process.pid, started_at + timeout_s)
        seconds = time.perf_counter() - started_at
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        process.kill()
        process.wait()
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu_s = usage.ru_utime + usage.ru_stime
    return Cost(seconds, cpu_s, rss_bytes_max, anonymous_bytes_max), process.returncode


def _watch(pid: int, deadline: float) -> tuple[int, int]:
    """Look at a process until it has ended, without reaping it."""
    rss_bytes = anonymous_bytes = 0
    descriptor = os.pidfd_open(pid)
    try:
        while not select.select([descriptor], [], [], LOOK_S)[0]:
            status = Path(f"/proc/{pid}/status").read_text()
            rss_bytes = max(rss_bytes, status_bytes(status, "VmHWM"))
            anonymous_bytes = max(anonymous_bytes, status_bytes(status, "RssAnon"))
            if time.perf_counter() > deadline:
                raise TimeoutError(f"process {pid} did not end in time")
    finally:
        os.close(descriptor)
    return rss_bytes, anonymous_bytes


def status_bytes(status: str, name: str) -> int:
    """A figure of `/proc/PID/status`, 0 where it has none (a process that is ending)."""
    for line in status.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
