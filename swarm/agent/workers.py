"""The threads that hash and write, and the lanes that keep one link's work in order.

A lane is a queue whose jobs run one after another, on whichever thread is free; different lanes run
in parallel, so payload uses as many cores as there are threads. A thread that has a lane goes on
with it while it has jobs: at full rate the loop appends to a list and wakes nobody. Compared with
`trio.to_thread.run_sync` for each MiB this saves a wake-up of the loop per hop: a job says itself
when the loop must hear of it (`call_soon`), once per chunk.

Threads are joined, never abandoned: a write that hangs in the kernel holds the shutdown up, because
a write that lands after another owner took the file would be worse.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

import trio

Job = Callable[[], None]

JOBS_PER_TURN = 8
"""A lane under steady load gives its thread up after so many jobs, so that it starves no other."""


class Workers:
    """A fixed number of threads; made and closed in the trio loop."""

    def __init__(self, count: int, token: trio.lowlevel.TrioToken) -> None:
        assert count > 0
        self._token = token
        self._ready: queue.SimpleQueue[Lane | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"payload-{index}", daemon=True)
            for index in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def lane(self) -> Lane:
        return Lane(self._ready)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Run `function` in the trio loop; called from a job."""
        self._token.run_sync_soon(function)

    async def close(self) -> None:
        """End the threads once all jobs are done."""
        for _ in self._threads:
            self._ready.put(None)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._finish)

    def _finish(self) -> None:
        for thread in self._threads:
            thread.join()
        # A lane that gave its thread up while we closed stands behind the threads' ends.
        while not self._ready.empty():
            lane = self._ready.get()
            if lane is not None:
                lane.take_turn()

    def _run(self) -> None:
        while (lane := self._ready.get()) is not None:
            try:
                lane.take_turn()
            except BaseException as error:
                # Jobs translate what the world does to them; this is a bug of ours.
                self._token.run_sync_soon(_crash, error)
                raise


def _crash(error: BaseException) -> None:
    raise AssertionError("a payload job failed") from error


class Lane:
    """Jobs of one link, in order. `submit` is the loop's, `take_turn` the threads'."""

    __slots__ = ("_is_running", "_jobs", "_lock", "_ready")

    def __init__(self, ready: queue.SimpleQueue[Lane | None]) -> None:
        self._ready = ready
        self._jobs: deque[Job] = deque()
        self._lock = threading.Lock()
        # A thread has us, or we are queued for one.
        self._is_running = False

    def submit(self, job: Job) -> None:
        with self._lock:
            self._jobs.append(job)
            if self._is_running:
                return
            self._is_running = True
        self._ready.put(self)

    def take_turn(self) -> None:
        for _ in range(JOBS_PER_TURN):
            with self._lock:
                if not self._jobs:
                    self._is_running = False
                    return
                job = self._jobs.popleft()
            job()
        self._ready.put(self)
