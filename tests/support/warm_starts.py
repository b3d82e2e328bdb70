"""Starts agents for a hundredth of what a new interpreter costs: a process that has everything
imported forks itself for each of them.

What a test then kills is a process of its own in every respect that a signal knows of: memory,
descriptors, locks and files are its own, and it runs the same main function. Twenty rounds of kill
and restart take the time of three.

``python -m tests.support.warm_starts`` reads one JSON object a line (argv, log) and answers with
the child's pid. Children are reaped by the system.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from tests.support.command_line import SWARM, environment

START_S = 30.0
END_S = 10.0


class WarmStarts:
    """The test's side. Made by `warm_starts`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._pids: list[int] = []

    def start(self, argv: Sequence[str], log: Path) -> int:
        """Run a `swarm` command line, as `Service.argv` has it; its pid."""
        assert tuple(argv[: len(SWARM)]) == SWARM
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"argv": list(argv[len(SWARM) :]), "log": str(log)}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        self._pids.append(pid)
        return pid

    def kill(self, pid: int) -> None:
        """As a power cut does; returns when nothing of it is left."""
        self._pids.remove(pid)
        os.kill(pid, signal.SIGKILL)
        give_up_at = time.monotonic() + END_S
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < give_up_at, f"{pid} outlives SIGKILL"
            time.sleep(0.001)

    def end(self) -> None:
        for pid in list(self._pids):
            with contextlib.suppress(ProcessLookupError):
                self.kill(pid)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(END_S)


@contextlib.contextmanager
def warm_starts() -> Iterator[WarmStarts]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.warm_starts"],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    starts = WarmStarts(process)
    try:
        yield starts
    finally:
        starts.end()


def serve() -> None:
    """Until standard input ends."""
    # All that an agent imports late, to be quick with --help: to be there, not to be used (F401).
    import swarm.agent.run
    import swarm.cli.agent
    import swarm.origin.http_origin  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(order["argv"], order["log"])
        print(child, flush=True)


def _become(argv: list[str], log: str) -> NoReturn:
    code = 99  # What no command ends with, should `main` fail to end itself.
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        from swarm.cli.main import main

        main(argv)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
