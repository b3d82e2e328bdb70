"""Cells on the workers of a Dask cluster: the same code, on other machines.

The workers need this package, in the same version: each result carries the fingerprint of the code
that made it, and another one is refused (`cells`). One thread a worker process is best (``dask
worker --nthreads 1``), as a run keeps a core busy. A run that kills its worker three times is given
up by the scheduler and is a failure like any other.

A scheduler that does not answer at the start and one that has no worker end in an error after a
deadline of their own. Cells that are under way when it is lost are failures; what has landed stays.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import Protocol

from simulations.cells import Cell, CellResult, Landed, Pool, run_cell
from swarm.errors import UsageError

TICK_S = 1.0
_ADDRESS = re.compile(r"(?:(?:tcp|tls)://)?(?:[^\s:/\[\]]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}/?")
INSTALL = "pip install 'weightswarm[dask]'"


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long each thing may take before it is an error."""

    # For the scheduler to answer; on one network it takes milliseconds.
    connect_s: float = 10.0
    # For its connection to be back, where Dask has not given up its runs itself.
    lost_s: float = 60.0
    # For a first worker: nodes boot more slowly than a user waits in silence.
    worker_s: float = 60.0


class Future(Protocol):
    """What we use of Dask's, which has no types of its own."""

    def add_done_callback(self, told: Callable[[Future], None]) -> None: ...

    def cancelled(self) -> bool: ...

    def exception(self) -> BaseException | None: ...

    def result(self) -> object: ...


class Client(Protocol):
    """The same."""

    status: str

    def submit(
        self, work: Callable[[Cell], CellResult], cell: Cell, *, pure: bool, key: str
    ) -> Future: ...

    def cancel(self, futures: Sequence[Future], *, force: bool) -> None: ...

    def nthreads(self) -> Mapping[str, int]: ...

    def close(self, timeout: float) -> None: ...


def dask_pool(address: str, deadlines: Deadlines | None = None) -> Pool:
    """On whatever workers the scheduler at `address` has."""
    return partial(_run, address, deadlines or Deadlines())


@contextmanager
def _run(
    address: str, deadlines: Deadlines, cells: Sequence[Cell]
) -> Iterator[Iterator[Landed | None]]:
    """Raises UsageError if Dask is not installed, or its scheduler is not to be used."""
    client = _connect(address, deadlines.connect_s)
    landed: SimpleQueue[int] = SimpleQueue()
    futures: list[Future] = []
    try:
        for index, cell in enumerate(cells):
            future = client.submit(run_cell, cell, pure=False, key=f"cell-{index}-{time.time_ns()}")
            future.add_done_callback(partial(_note, landed, index))
            futures.append(future)
        yield _land(client, address, deadlines, futures, landed)
    finally:
        if client.status == "running":
            client.cancel(futures, force=True)
        client.close(timeout=deadlines.connect_s)


def _note(landed: SimpleQueue[int], index: int, _future: Future) -> None:
    landed.put(index)


def _connect(address: str, within_s: float) -> Client:
    if not _ADDRESS.fullmatch(address):
        raise UsageError(
            f"--scheduler {address}: no address of a scheduler",
            object_name=address,
            hint="write tcp://HOST:8786 or tls://HOST:8786",
        )
    try:
        distributed = import_module("distributed")
    except ImportError as error:
        raise UsageError("--scheduler needs Dask, which is not installed", hint=INSTALL) from error
    # It reports its own retries and losses at length; what matters is told by us.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        client: Client = distributed.Client(address, timeout=within_s, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--scheduler {address}: no Dask scheduler answers within {within_s:.0f} s ({error})",
            object_name=address,
            hint="start one with `dask scheduler`; the address is tcp://HOST:8786",
        ) from error
    return client


def _land(
    client: Client,
    address: str,
    deadlines: Deadlines,
    futures: Sequence[Future],
    landed: SimpleQueue[int],
) -> Iterator[Landed | None]:
    left = len(futures)
    seen_at = time.monotonic()
    has_worker = False
    while left:
        try:
            index = landed.get(timeout=TICK_S)
        except Empty:
            now = time.monotonic()
            if client.status == "running":
                has_worker = has_worker or bool(client.nthreads())
                if has_worker:
                    seen_at = now
                elif now - seen_at > deadlines.worker_s:
                    what = f"has no worker after {deadlines.worker_s:.0f} s"
                    raise _lost(address, what) from None
            elif now - seen_at > deadlines.lost_s:
                raise _lost(address, f"is gone for {deadlines.lost_s:.0f} s") from None
            yield None
            continue
        left -= 1
        seen_at = time.monotonic()
        has_worker = True
        yield index, _result(futures[index])


def _lost(address: str, what: str) -> UsageError:
    hint = "start workers with `dask worker ADDRESS --nthreads 1`"
    return UsageError(f"the scheduler at {address} {what}", object_name=address, hint=hint)


def _result(future: Future) -> CellResult:
    """Of a future that is over."""
    if future.cancelled():
        return CellResult({}, "lost with its Dask scheduler")
    error = future.exception()
    if error is not None:
        return CellResult({}, f"on its Dask worker: {type(error).__name__}: {error}")
    said = future.result()
    assert isinstance(said, CellResult)
    return said
