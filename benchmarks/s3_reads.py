"""One reader of one S3 server: our origin, httpx and botocore, interleaved, as ratios of one run.

    python -m benchmarks.s3_single --reads [--size 256MiB] [--rounds 5]

All read the same object from SeaweedFS in ranges of 16 MiB and drop the bytes, over one connection
and over four (botocore over one: its streams block). The first round warms up and is not counted;
a line is the median of the others. `core_s_per_gb` counts this process alone, so it is the client's
share, and the number to compare on a machine where the server takes the other half of the cores.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, cast

import httpx
import trio
from botocore.config import Config
from botocore.session import Session

from benchmarks.object_store import ACCESS_KEY, REGION, SECRET_KEY
from swarm.origin.aws_environment import CredentialTriple
from swarm.origin.origin import MIB, Origin, OriginSettings, open_origin
from swarm.origin.s3_signing import signed_headers

RANGE_BYTES = 16 * MIB  # What AWS advises, and what a chunk of a large model is cut into.
KEY = "object"
TRIPLE = CredentialTriple(ACCESS_KEY, SECRET_KEY, "")

ReadRange = Callable[[int, int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read the object, measured."""

    system: str
    connections: int
    gb_per_s: float
    core_s_per_gb: float


class RandomSource:
    """An object to upload: one block of random bytes, repeated."""

    part_bytes = RANGE_BYTES

    def __init__(self, size: int) -> None:
        self.size = size
        self._block = os.urandom(RANGE_BYTES)

    async def read_part(self, index: int) -> bytes:
        await trio.lowlevel.checkpoint()
        return self._block[: self.size - index * RANGE_BYTES]


async def measure(endpoint: str, bucket: str, size: int, rounds: int) -> list[Reading]:
    """Medians over `rounds` rounds of all systems; the environment of this process leads to the
    server."""
    origin = open_origin(f"s3://{bucket}", settings=OriginSettings(uses_proxy_environment=False))
    await origin.upload(KEY, RandomSource(size), progress=lambda _: None)
    samples: dict[tuple[str, int], list[tuple[float, float]]] = {}
    url = f"{endpoint}/{bucket}/{KEY}"
    async with httpx.AsyncClient(trust_env=False) as client:
        readers: list[tuple[str, int, ReadRange]] = [
            (name, connections, reader)
            for connections in (1, 4)
            for name, reader in (("swarm", _swarm(origin)), ("httpx", _httpx(client, url)))
        ]
        readers.append(("botocore", 1, _botocore(endpoint, bucket)))
        for round_index in range(rounds + 1):
            for name, connections, reader in readers:
                sample = await _timed(reader, size, connections)
                if round_index:
                    samples.setdefault((name, connections), []).append(sample)
    await origin.aclose()
    return [
        Reading(
            name,
            connections,
            round(statistics.median(rate for rate, _ in found), 3),
            round(statistics.median(cost for _, cost in found), 3),
        )
        for (name, connections), found in samples.items()
    ]


async def _timed(reader: ReadRange, size: int, connections: int) -> tuple[float, float]:
    """GB/s and core-seconds per GB of reading the object once."""
    offsets = iter(range(0, size, RANGE_BYTES))

    async def work() -> None:
        for offset in offsets:
            await reader(offset, min(RANGE_BYTES, size - offset))

    started_at, cpu_s = time.perf_counter(), _cpu_s()
    async with trio.open_nursery() as nursery:
        for _ in range(connections):
            nursery.start_soon(work)
    gigabytes = size / 1e9
    return gigabytes / (time.perf_counter() - started_at), (_cpu_s() - cpu_s) / gigabytes


class _Drop:
    """A sink that forgets."""

    _room = memoryview(bytearray(MIB))

    def room(self) -> memoryview | None:
        return self._room

    async def wait(self) -> None:
        raise AssertionError("there is always room")

    def filled(self, count: int) -> None:
        return


def _swarm(origin: Origin) -> ReadRange:
    async def read(offset: int, length: int) -> None:
        await origin.read_range(KEY, offset, length, etag=None, sink=_Drop())

    return read


def _httpx(client: httpx.AsyncClient, url: str) -> ReadRange:
    async def read(offset: int, length: int) -> None:
        headers = signed_headers(
            "GET",
            url,
            {"Range": f"bytes={offset}-{offset + length - 1}"},
            TRIPLE,
            region=REGION,
            clock_offset_s=0,
        )
        async with client.stream("GET", url, headers=headers) as response:
            response.raise_for_status()
            async for _ in response.aiter_raw():
                pass

    return read


class _ObjectClient(Protocol):
    """The one call used here of a client whose methods botocore makes at run time."""

    def get_object(self, *, Bucket: str, Key: str, Range: str) -> dict[str, _Body]: ...


class _Body(Protocol):
    def iter_chunks(self, size: int) -> Iterator[bytes]: ...


def _botocore(endpoint: str, bucket: str) -> ReadRange:
    made = Session().create_client("s3", endpoint_url=endpoint, config=Config(proxies={}))
    client = cast("_ObjectClient", made)

    def read_blocking(offset: int, length: int) -> None:
        wanted = f"bytes={offset}-{offset + length - 1}"
        for _ in client.get_object(Bucket=bucket, Key=KEY, Range=wanted)["Body"].iter_chunks(MIB):
            pass

    async def read(offset: int, length: int) -> None:
        await trio.to_thread.run_sync(read_blocking, offset, length)

    return read


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
