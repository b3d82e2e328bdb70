"""Hash many ranges at once: on all cores, in batches, in order.

BLAKE3 and `preadv` both release the interpreter lock, so plain threads scale until memory or disk
is the limit. The threads end with the call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Above eight the memory bus, not the cores, is the limit (10 GB/s a core).
_THREADS_MAX = 8
# Items a task, so that 250,000 tiny chunks are not 250,000 futures.
_BATCH = 64


def map_parallel(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """`work` on each item, results in order. The first exception ends the call."""
    if len(items) < 2:
        return [work(item) for item in items]
    batch = max(1, min(_BATCH, len(items) // _THREADS_MAX))
    batches = [items[start : start + batch] for start in range(0, len(items), batch)]
    threads = min(_THREADS_MAX, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(threads, thread_name_prefix="hash") as pool:
        done = pool.map(lambda some: [work(item) for item in some], batches)
        return [result for results in done for result in results]
