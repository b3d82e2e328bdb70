"""Counts bytes wherever they are worked on, and reports from one place."""

from __future__ import annotations

import threading
from collections.abc import Callable

import trio

from swarm.publish.record import Phase, PublishProgress

REPORT_INTERVAL_S = 0.1
"""Ten times a second: a bar that moves, at no cost."""


class ProgressMeter:
    """`add` may be called from any thread; `report` is only called from the loop."""

    def __init__(self, report: Callable[[PublishProgress], None]) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._phase = Phase.SCAN
        self._done_bytes = 0
        self._total_bytes = 0

    def begin(self, phase: Phase, total_bytes: int = 0) -> None:
        """Enter a phase, and say so at once."""
        with self._lock:
            self._phase, self._done_bytes, self._total_bytes = phase, 0, total_bytes
        self.tell()

    def add(self, size: int) -> None:
        with self._lock:
            self._done_bytes += size

    def tell(self) -> None:
        with self._lock:
            # Equal files count once each in the total and may be found stored twice.
            done_bytes = min(self._done_bytes, self._total_bytes)
            now = PublishProgress(self._phase, done_bytes, self._total_bytes)
        self._report(now)

    async def tell_regularly(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(REPORT_INTERVAL_S)
            self.tell()
