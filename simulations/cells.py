"""Many runs at once: what is to be run, where, and what came of it.

A cell is one run: a scenario and a seed. It travels to a process of this machine (`local_pool`) or
to a worker of a Dask cluster (`dask_pool`) and comes back as a record of numbers and text, so the
result does not depend on where it ran, or on how many ran beside it. A cell that breaks a rule, or
whose process dies, is a result too: the others go on.
"""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

from simulations.cost import cost_document, cost_of
from simulations.prices import Prices
from simulations.progress import CellProgress
from simulations.report import document
from simulations.scenario import Scenario
from simulations.trial import FailedRun, simulate


@dataclass(frozen=True, slots=True)
class Cell:
    """One run that is to be."""

    scenario: Scenario
    seed: int
    prices: Prices
    # What repeats it in a shell.
    command: str

    @property
    def weight(self) -> int:
        """Its work, about: all chunks of all nodes."""
        return self.scenario.node_count * self.scenario.version.chunk_count


@dataclass(frozen=True, slots=True)
class CellResult:
    """What came of one. `told` is what `swarm-sim run --json` says, without what differs from run
    to run; empty if there is an `error`."""

    told: dict[str, object]
    error: str = ""
    # Of the code that ran it.
    code: str = ""


Landed = tuple[int, CellResult]
Pool = Callable[[Sequence[Cell]], AbstractContextManager[Iterator[Landed | None]]]
"""Runs cells in any order and yields (index, result) as they land, and None every second or so in
between, for progress. Leaving it ends what still runs."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """Results in the order of the cells; None where it was interrupted before."""

    results: tuple[CellResult | None, ...]
    # What a command ends with that was interrupted: 130 (SIGINT), 143 (SIGTERM); 0: it was not.
    interrupted_code: int = 0


def run_cell(cell: Cell) -> CellResult:
    """Here and now, in this process."""
    code = fingerprint()
    try:
        outcome = simulate(cell.scenario, cell.seed, cell.command)
    except FailedRun as error:
        return CellResult({}, error.message, code)
    told = document(cell.scenario, cell.seed, outcome)
    told["cost"] = cost_document(cost_of(cell.scenario, outcome, cell.prices))
    return CellResult(told, code=code)


def gather(cells: Sequence[Cell], pool: Pool) -> Gathered:
    """Run all, with progress on stderr. Ctrl-C and SIGTERM end it with what is done."""
    results: list[CellResult | None] = [None] * len(cells)
    progress = CellProgress([cell.weight for cell in cells])
    try:
        with _terminating(), pool(cells) as landing:
            for landed in landing:
                if landed is not None:
                    index, result = landed
                    results[index] = _checked(result)
                    progress.landed(index)
                progress.tell()
    except Terminated:
        return Gathered(tuple(results), 128 + signal.SIGTERM)
    except KeyboardInterrupt:
        return Gathered(tuple(results), 128 + signal.SIGINT)
    return Gathered(tuple(results))


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends what runs as Ctrl-C does, for a batch system sends this one."""


@contextmanager
def _terminating() -> Iterator[None]:
    """Without it nobody would end the processes of the cells."""

    def terminate(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _checked(result: CellResult) -> CellResult:
    """A worker elsewhere may run other code, whose numbers would not belong beside ours."""
    if result.error or result.code == fingerprint():
        return result
    return CellResult(
        {}, "ran on a worker with another version of the code; install the same there"
    )


@cache
def fingerprint() -> str:
    """Of all sources that decide what a run says."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.blake2b(digest_size=8)
    for package in ("simulations", "swarm", "tracker"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
