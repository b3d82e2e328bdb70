"""Several workers on one list of jobs: bounded, and the first failure stops the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

from swarm.errors import SwarmError

Job = TypeVar("Job")


async def work_through(
    jobs: Iterable[Job], work: Callable[[Job], Awaitable[None]], *, at_once: int
) -> None:
    """Run `work` for every job, in order of start, at most `at_once` at a time. The first
    SwarmError cancels the others and is raised as itself, not in a group."""
    pending = iter(jobs)
    failures: list[SwarmError] = []

    async def worker() -> None:
        for job in pending:  # One iterator for all workers.
            try:
                await work(job)
            except SwarmError as error:
                failures.append(error)
                nursery.cancel_scope.cancel()
                return

    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(worker)
    if failures:
        raise failures[0]
