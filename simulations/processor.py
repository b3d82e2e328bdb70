"""Processors that do one thing after the other, for one node or for all that share a machine."""

from __future__ import annotations

import heapq


class Processor:
    """`count` of them with one queue: each job goes to the one that is free first."""

    def __init__(self, count: int) -> None:
        self._free_at = [0.0] * count

    def take(self, now: float, job_s: float) -> float:
        """Queue a job; when it will be done."""
        done_at = max(self._free_at[0], now) + job_s
        heapq.heapreplace(self._free_at, done_at)
        return done_at
