"""Cells on the cores of this machine, each in a process of its own.

A process that dies (out of memory, killed) takes its own cell with it and no other, which a shared
pool of processes cannot promise, and it starts with a heap that no earlier cell has filled. It is
forked from a server that has the simulator loaded and nothing else, so a start costs a few
milliseconds and no thread is ever copied. It never sees Ctrl-C: the parent ends it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

from simulations.cells import Cell, CellResult, Landed, Pool, run_cell

TICK_S = 0.5
"""The consumer hears so often that nothing has landed."""
JOIN_S = 10.0
"""A process that has said its result, or was killed, is gone well before."""
SERVER = "simulations.pool_server"
"""The module that the server loads beside this one."""


def local_pool(process_count: int) -> Pool:
    """At most so many cells at once."""
    return partial(_run, process_count)


def core_count() -> int:
    """What this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if TYPE_CHECKING:
    _Pipes = dict[Connection[CellResult, CellResult], "_Running"]


@dataclass(frozen=True, slots=True)
class _Running:
    index: int
    process: BaseProcess
    connection: Connection[CellResult, CellResult]

    def result(self) -> CellResult:
        """Of a process that has said it, or died before."""
        try:
            said: object = self.connection.recv()
        except EOFError:
            said = None
        self.process.join(JOIN_S)
        if isinstance(said, CellResult):
            return said
        return CellResult({}, f"its process {_ending(self.process.exitcode)}")


def _ending(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name} (out of memory?)"
    return f"ended with {exit_code}; its last words are above"


@contextmanager
def _run(process_count: int, cells: Sequence[Cell]) -> Iterator[Iterator[Landed | None]]:
    running: _Pipes = {}
    try:
        yield _land(process_count, cells, running)
    finally:
        for one in running.values():
            one.process.kill()
        for one in running.values():
            one.process.join(JOIN_S)


def _land(process_count: int, cells: Sequence[Cell], running: _Pipes) -> Iterator[Landed | None]:
    # The longest first: then no core idles at the end beside a long one that began late.
    waiting = sorted(range(len(cells)), key=lambda index: (cells[index].weight, -index))
    while waiting or running:
        while waiting and len(running) < process_count:
            one = _start(waiting[-1], cells[waiting[-1]])
            waiting.pop()
            running[one.connection] = one
        ready = wait(list(running), TICK_S)
        for one in [running[connection] for connection in running if connection in ready]:
            result = one.result()
            del running[one.connection]
            one.connection.close()
            yield one.index, result
        if not ready:
            yield None


def _start(index: int, cell: Cell) -> _Running:
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__, SERVER])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(cell, theirs), daemon=True)
    # The mask is inherited: a child, and the server it is forked from, must not die of a Ctrl-C
    # that the terminal sends to all of us. Ours comes when the mask is lifted.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return _Running(index, process, ours)


def _work(cell: Cell, connection: Connection[CellResult, CellResult]) -> None:
    connection.send(run_cell(cell))
    connection.close()
