"""What the object store gives this machine: one connection, several, and the wait for a first
byte."""

from __future__ import annotations

import statistics
import time

import trio

from swarm.capacity.profile import OriginProfile
from swarm.errors import NotFoundError, UsageError
from swarm.origin.origin import MIB, ObjectInfo, Origin, open_origin

RANGE_BYTES = 16 * MIB
"""A chunk of a large model."""
RANGE_BYTES_MIN = 4 * MIB
"""Of less the rate is that of the start."""
ROOM_BYTES = MIB
CONNECTION_COUNT = 8
OBJECTS_LISTED_MAX = 1000


class _Timed:
    """A sink that forgets bytes and remembers when they came."""

    def __init__(self) -> None:
        self.begun_at = time.perf_counter()
        self.first_at: float | None = None
        self.count = 0
        self._room = memoryview(bytearray(ROOM_BYTES))

    def room(self) -> memoryview | None:
        return self._room

    async def wait(self) -> None:
        raise AssertionError("there is always room")

    def filled(self, count: int) -> None:
        if self.first_at is None:
            self.first_at = time.perf_counter()
        self.count += count


async def measure_origin(url: str, key: str, byte_count: int, limit_s: float) -> OriginProfile:
    """Read an object (`key`, or the largest that is listed) in ranges, first over one connection,
    then over several; `byte_count` and `limit_s` bound each. Raises NotFoundError, UsageError, and
    what the origin raises."""
    origin = open_origin(url)
    try:
        what = await _find(origin, key)
        first, rates = await _read_one(origin, what, byte_count, limit_s)
        total = await _read_many(origin, what, byte_count, limit_s)
    finally:
        await origin.aclose()
    return OriginProfile(
        connection_bytes_per_s=statistics.median(rates),
        total_bytes_per_s=total,
        connection_count=CONNECTION_COUNT,
        first_byte_s_min=min(first),
        first_byte_s_median=statistics.median(first),
        first_byte_s_max=max(first),
    )


async def _find(origin: Origin, key: str) -> ObjectInfo:
    if key:
        found = await origin.head(key)
        if found is None:
            raise NotFoundError(f"there is no {key} in {origin.url}", object_name=key)
    else:
        found = await _largest(origin)
    if found.size < RANGE_BYTES_MIN:
        raise UsageError(
            f"{found.key} in {origin.url} has {found.size} bytes, too few to measure a rate",
            object_name=found.key,
            hint=f"name a larger one with --object, of {RANGE_BYTES_MIN >> 20} MiB at least",
        )
    return found


async def _largest(origin: Origin) -> ObjectInfo:
    largest: ObjectInfo | None = None
    count = 0
    async for found in origin.list_objects(""):
        count += 1
        if largest is None or found.size > largest.size:
            largest = found
        if count >= OBJECTS_LISTED_MAX:
            break
    if largest is None:
        raise NotFoundError(
            f"{origin.url} is empty", object_name=origin.url, hint="publish a version there first"
        )
    return largest


async def _read_one(
    origin: Origin, what: ObjectInfo, byte_count: int, limit_s: float
) -> tuple[list[float], list[float]]:
    """(seconds to the first byte, bytes/s after it) of each range; the first one opens the
    connection and only counts if it stays the only one."""
    first: list[float] = []
    rates: list[float] = []
    begun = time.perf_counter()
    read = 0
    while not rates or (read < byte_count and time.perf_counter() - begun < limit_s):
        length = min(RANGE_BYTES, what.size)
        offset = (read % (what.size - length + 1)) if what.size > length else 0
        sink = _Timed()
        await origin.read_range(what.key, offset, length, etag=what.etag or None, sink=sink)
        assert sink.first_at is not None
        first.append(sink.first_at - sink.begun_at)
        rates.append(length / max(time.perf_counter() - sink.begun_at - first[-1], 1e-9))
        read += length
    return (first[1:] or first), (rates[1:] or rates)


async def _read_many(origin: Origin, what: ObjectInfo, byte_count: int, limit_s: float) -> float:
    """Bytes/s over all connections together."""
    length = min(RANGE_BYTES, what.size)
    begun = time.perf_counter()
    sinks: list[_Timed] = []

    async def work() -> None:
        while (
            sum(sink.count for sink in sinks) < byte_count and time.perf_counter() - begun < limit_s
        ):
            sink = _Timed()
            sinks.append(sink)
            await origin.read_range(what.key, 0, length, etag=what.etag or None, sink=sink)

    async with trio.open_nursery() as nursery:
        for _ in range(CONNECTION_COUNT):
            nursery.start_soon(work)
    return sum(sink.count for sink in sinks) / (time.perf_counter() - begun)
