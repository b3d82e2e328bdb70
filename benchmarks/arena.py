"""The place of one race: a lab, a file to hand out, a directory per node, and the clocks.

A contestant prepares itself, is told to go, and is watched: a node has finished when the contestant
says so, and its copy is compared with the original after the clock has stopped. Seconds come from
this process's clock, copies from the counter of the origin's card, and CPU seconds from the
accounts of the node processes, all taken over the same stretch of time.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from benchmarks.lab import Lab
from benchmarks.object_store import START_TIMEOUT_S, ObjectStore, own_grpc_ports
from benchmarks.scenario import MIB, Scenario
from benchmarks.slow_disk import SlowDisk

BUCKET = "models"
MEMORY_DIRECTORY = Path("/dev/shm")
POLL_S = 0.02  # Two thousandths of the shortest race run so far.
PREPARE_TIMEOUT_S = START_TIMEOUT_S + 15.0  # The slowest start, and what surrounds it.
LOG_TAIL_LINES = 15
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class RaceError(Exception):
    """A contestant failed; the message ends with the last lines of its log."""


class Contestant(Protocol):
    """A system that can bring the arena's file from its origin to every node."""

    name: str

    def prepare(self, arena: Arena) -> None:
        """Everything that a fleet has done before the moment of the cold start."""

    def go(self, arena: Arena) -> None:
        """The cold start begins; returns at once."""

    def is_finished(self, arena: Arena, node: str) -> bool:
        """Whether `node` has the whole file, verified."""

    def copy_of(self, arena: Arena, node: str) -> Path:
        """Where a finished node has the file."""

    def node_processes(self) -> list[subprocess.Popen[bytes]]:
        """The processes whose CPU time is the system's cost on the nodes."""


@dataclass(frozen=True, slots=True)
class Result:
    """One race. Ratios are to the scenario's bound, copies are origin bytes to file bytes."""

    system: str
    nodes: int
    p50_ratio: float
    last_ratio: float
    origin_copies: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Arena:
    """What every contestant finds. `file` is the file to hand out, in `source`; `log` takes the
    output of all processes; `ending` is what happens before the lab ends them."""

    scenario: Scenario
    lab: Lab
    work: Path
    file: Path
    log: BinaryIO
    ending: contextlib.ExitStack

    @property
    def source(self) -> Path:
        return self.file.parent

    def node_directory(self, node: str) -> Path:
        """On the node's own disk."""
        return self.work / "nodes" / node

    def start(
        self, host: str, argv: list[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        return self.lab.start(
            host,
            argv,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=self.log,
        )

    def run(
        self, host: str, argv: list[str], environment: Mapping[str, str] | None = None
    ) -> bytes:
        """Standard output of a command that has to succeed."""
        try:
            return self.lab.run(
                host,
                argv,
                timeout_s=PREPARE_TIMEOUT_S,
                env={**os.environ, **(environment or {})},
                stderr=self.log,
            ).stdout
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise RaceError(f"{error}\n{self.log_tail()}") from error

    def start_object_store(self) -> ObjectStore:
        """An S3 server on the origin, with an empty bucket."""
        store = ObjectStore(
            self.work / "object-store", self.lab.addresses["origin"], ports=own_grpc_ports()
        )
        server = self.start("origin", store.server_command())
        # Asked to end it takes longer than the lab waits, and nothing it holds is needed.
        self.ending.callback(server.kill)
        self.run("origin", store.bucket_command(BUCKET), store.environment())
        return store

    def wait_until(self, is_true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PREPARE_TIMEOUT_S
        while not is_true():
            if time.monotonic() > deadline:
                raise RaceError(f"{what}: not within {PREPARE_TIMEOUT_S} s\n{self.log_tail()}")
            time.sleep(POLL_S)

    def log_tail(self) -> str:
        lines = Path(self.log.name).read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])


def say_go(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """One line on the input of each; what `Arena.start` started can wait for it."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()


def place_for(byte_count: int) -> Path:
    """Memory where so much fits into it, so that no disk of this machine is measured."""
    if MEMORY_DIRECTORY.is_dir() and shutil.disk_usage(MEMORY_DIRECTORY).free > byte_count:
        return MEMORY_DIRECTORY
    return Path(tempfile.gettempdir())


@contextlib.contextmanager
def open_arena(scenario: Scenario, parent: Path) -> Iterator[Arena]:
    """Builds the arena in a new directory under `parent` and removes it afterwards."""
    work = Path(tempfile.mkdtemp(prefix="race-", dir=parent))
    try:
        with contextlib.ExitStack() as stack:
            file = work / "model" / "model.bin"
            _write_random(file, scenario.file_mib)
            for node in scenario.node_names():
                _make_disk(stack, work / "nodes" / node, scenario)
            log = stack.enter_context((work / "log").open("ab"))
            lab = stack.enter_context(Lab(scenario.hosts()))
            yield Arena(scenario=scenario, lab=lab, work=work, file=file, log=log, ending=stack)
    finally:
        shutil.rmtree(work)


def race(contestant: Contestant, arena: Arena, *, limit_s: float) -> Result:
    """Runs one contestant once; raises RaceError when it fails or takes longer than `limit_s`."""
    scenario = arena.scenario
    contestant.prepare(arena)
    sent = arena.lab.sent_bytes("origin")
    cpu = _cpu_seconds(contestant)
    begun = time.monotonic()
    contestant.go(arena)
    seconds = sorted(_watch(contestant, arena, begun, limit_s).values())
    sent = arena.lab.sent_bytes("origin") - sent
    cpu = _cpu_seconds(contestant) - cpu
    _compare(contestant, arena)
    return Result(
        system=contestant.name,
        nodes=scenario.nodes,
        p50_ratio=round(seconds[len(seconds) // 2] / scenario.bound_s, 3),
        last_ratio=round(seconds[-1] / scenario.bound_s, 3),
        origin_copies=round(sent / scenario.file_bytes, 3),
        cpu_s=round(cpu, 2),
    )


def _watch(contestant: Contestant, arena: Arena, begun: float, limit_s: float) -> dict[str, float]:
    """Seconds from the start to the moment each node had finished."""
    finished: dict[str, float] = {}
    waiting = arena.scenario.node_names()
    while waiting:
        for node in list(waiting):
            if contestant.is_finished(arena, node):
                finished[node] = time.monotonic() - begun
                waiting.remove(node)
        ended = [p.pid for p in contestant.node_processes() if p.poll() is not None]
        if ended or time.monotonic() - begun > limit_s:
            reason = f"processes {ended} ended" if ended else f"{limit_s:.0f} s are over"
            raise RaceError(
                f"{contestant.name}: {reason}, {waiting} not finished\n{arena.log_tail()}"
            )
        time.sleep(POLL_S)
    return finished


def _compare(contestant: Contestant, arena: Arena) -> None:
    for node in arena.scenario.node_names():
        if not filecmp.cmp(arena.file, contestant.copy_of(arena, node), shallow=False):
            raise RaceError(f"{contestant.name}: {node} has other bytes than were handed out")


def _cpu_seconds(contestant: Contestant) -> float:
    """User and system time of the node processes and of their children that have ended."""
    total = 0
    for process in contestant.node_processes():
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(int(ticks) for ticks in fields[11:15])
    return total / CLOCK_TICKS_PER_S


def _write_random(path: Path, size_mib: int) -> None:
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        for _ in range(size_mib):
            file.write(secrets.token_bytes(MIB))


def _make_disk(stack: contextlib.ExitStack, directory: Path, scenario: Scenario) -> None:
    directory.mkdir(parents=True)
    if scenario.disk_mib_per_s is not None:
        # Twice the file and a file system's own needs.
        size_mib = 2 * scenario.file_mib + 64
        rate = scenario.disk_mib_per_s
        stack.enter_context(SlowDisk(directory, size_mib=size_mib, write_mib_per_s=rate))
