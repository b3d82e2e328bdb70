"""What two machines move between them: a made-up model that both can name.

Its bytes come from a fixed seed, so both sides derive the same version ids from the size alone and
nothing has to be copied from one terminal to the other. It is published twice: in large chunks, of
which a rate is measured, and in small ones, of which the cost of a chunk is.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from swarm.origin.origin import MIB, open_origin
from swarm.protocol.ids import VersionId
from swarm.protocol.manifest import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN
from swarm.publish.publish import publish
from swarm.publish.record import PublishOptions

LARGE_CHUNK_COUNT = 64
SMALL_CHUNK_COUNT = 1024
"""So many chunks tell a rate, and so many what each costs, at any size."""
SEED = 20_261_201
DIRECTORY = "model"
FILE = "weights.bin"


@dataclass(frozen=True, slots=True)
class Payload:
    """Both versions; their bytes lie under `origin`, a file:// URL."""

    origin: str
    large: VersionId
    small: VersionId
    size: int


async def make_payload(work: Path, size: int) -> Payload:
    """Write the model under `work` and publish it in place. Raises what publishing raises."""
    directory = work / DIRECTORY
    directory.mkdir()
    _write(directory / FILE, size)
    origin_url = f"file://{work}"
    versions: list[VersionId] = []
    for count in (LARGE_CHUNK_COUNT, SMALL_CHUNK_COUNT):
        chunk_bytes = _chunk_bytes(size, count)
        origin = open_origin(origin_url)
        try:
            options = PublishOptions(chunk_bytes=chunk_bytes, is_in_place=True)
            result = await publish(DIRECTORY, origin, options, lambda _: None)
        finally:
            await origin.aclose()
        versions.append(result.version)
    large, small = versions
    return Payload(origin_url, large, small, size)


def _chunk_bytes(size: int, count: int) -> int:
    """The power of two that gives about `count` chunks."""
    return min(max(1 << (size // count).bit_length() - 1, CHUNK_BYTES_MIN), CHUNK_BYTES_MAX)


def _write(path: Path, size: int) -> None:
    rng = random.Random(SEED)
    with path.open("wb") as file:
        for start in range(0, size, MIB):
            file.write(rng.randbytes(MIB)[: size - start])
