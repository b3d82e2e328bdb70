"""The processes of a demonstration: started as users start them, and surely gone afterwards.

Each child is in a session of its own, so that Ctrl-C reaches the demonstration alone, and asks the
kernel for SIGKILL when its parent dies, so that even a killed demonstration leaves nobody behind.
Nothing they hold is worth an orderly end: they are killed, by process id.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from swarm.cli.interrupts import SIGNALS
from swarm.errors import StalledError, SwarmError

STOP_TIMEOUT_S = 5.0
"""A killed process is gone in milliseconds unless it waits for a disk."""
_POLL_S = 0.05
_LOG_TAIL_BYTES = 4096

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


class Children:
    """Owns the processes of one demonstration; use as a context."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Children:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait(STOP_TIMEOUT_S)

    def start(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        """Start a process whose output goes to the log of that name. Call from the main thread:
        the kernel counts the death of the thread that started a child as its parent's."""
        with open(self._log(name), "wb") as log:
            self._launch(name, command, environment, output=log, errors=log)

    def finish(
        self, name: str, command: list[str], environment: dict[str, str], *, timeout_s: float
    ) -> tuple[int, str]:
        """Run a process to its end; its exit code and what it printed. Raises StalledError."""
        output = self._logs / f"{name}.out"
        with open(output, "wb") as stream, open(self._log(name), "wb") as log:
            process = self._launch(name, command, environment, output=stream, errors=log)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise StalledError(
                f"{name} has not ended after {timeout_s:.0f} s: {self._last_line(name)}",
                object_name=name,
                hint="try a smaller --size",
            ) from error
        del self._processes[name]
        return code, output.read_text()

    def check(self) -> None:
        """Raise SwarmError if a process has ended, with the last line of its log."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise SwarmError(
                    f"{name} ended with {process.returncode}: {self._last_line(name)}",
                    object_name=name,
                    hint="run it by hand to see more",
                )

    def wait_until(self, is_up: Callable[[], bool], what: str, *, timeout_s: float) -> None:
        """Wait until something that a process offers is there; raises StalledError."""
        give_up_at = time.monotonic() + timeout_s
        while not is_up():
            self.check()
            if time.monotonic() > give_up_at:
                raise StalledError(
                    f"{what} is not up after {timeout_s:.0f} s: {self._last_line(what)}",
                    object_name=what,
                    hint="the machine may be too busy; try fewer --nodes",
                )
            time.sleep(_POLL_S)

    def _launch(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str],
        *,
        output: BinaryIO,
        errors: BinaryIO,
    ) -> subprocess.Popen[bytes]:
        with _undisturbed():
            process = self._processes[name] = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                preexec_fn=_prepare_child,
            )
        return process

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def _last_line(self, name: str) -> str:
        try:
            tail = self._log(name).read_bytes()[-_LOG_TAIL_BYTES:]
        except OSError:
            return "no log"
        lines = tail.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "nothing logged"


def program(module: str) -> list[str]:
    """How to run one of our modules with this Python."""
    return [sys.executable, "-m", module]


def free_ports(count: int) -> list[int]:
    """TCP ports on the loopback address that are free now, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [int(sock.getsockname()[1]) for sock in sockets]


def accepts(port: int) -> bool:
    """Whether somebody listens on a loopback port."""
    with socket.socket() as sock:
        sock.settimeout(1.0)
        return sock.connect_ex(("127.0.0.1", port)) == 0


def clean_environment() -> dict[str, str]:
    """Ours without settings of this machine, which must not steer a demonstration."""
    return {key: value for key, value in os.environ.items() if not key.startswith("SWARM_")}


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold signals back: one between the fork and its entry into our list would lose a process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _prepare_child() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
