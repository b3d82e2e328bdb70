"""Agents that are killed or told to go, and what they leave.

These agents are processes: what a kill leaves, and how long an end takes, cannot be seen inside.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from swarm.errors import NotFoundError
from swarm.protocol.ids import ChunkIndex
from swarm.protocol.locations import Locations, decode_locations, locations_key
from swarm.protocol.manifest import Manifest, decode_manifest
from swarm.store.state_file import HELD
from tests.support.command_line import SWARM, environment
from tests.support.fault_proxy import Fault
from tests.support.fleet import CHUNK_BYTES, Fleet
from tests.support.models import M8, write_model
from tests.support.warm_starts import warm_starts

pytestmark = pytest.mark.cluster

ROUNDS = 20
ROUNDS_OF_ONE = 5
STATE_HEADER_BYTES = 64


def held_chunks(directory: Path) -> set[int]:
    """What the state file says; nothing while there is none."""
    state = directory / ".swarm" / "state"
    states = state.read_bytes()[STATE_HEADER_BYTES:] if state.exists() else b""
    return {chunk for chunk, byte in enumerate(states) if byte == HELD}


def has_chunks(directory: Path, count: float) -> bool:
    return len(held_chunks(directory)) >= count


def place_of(directory: Path, path: str) -> Path:
    part = directory / ".swarm" / "parts" / path
    return part if part.exists() else directory / path


def cut_a_file(directory: Path, manifest: Manifest, held: set[int]) -> set[int]:
    """(a): 4 KiB off the end of the file that was written last."""
    files = [place_of(directory, entry.path) for entry in manifest.files]
    # A file that has just been made may still be empty.
    long = [path for path in files if path.exists() and path.stat().st_size > 4096]
    last = max(long, key=lambda path: path.stat().st_mtime_ns)
    end = last.stat().st_size - 4096
    with last.open("r+b") as file:
        file.truncate(end)
    index = files.index(last)
    return {
        chunk
        for chunk in held
        for position in manifest.chunks[chunk].positions
        if position.file_index == index and position.offset + manifest.chunks[chunk].length > end
    }


def zero_a_page(directory: Path, manifest: Manifest, held: set[int]) -> set[int]:
    """(b): 4 KiB of zeros inside a chunk that counts as verified."""
    chunk = max(held, key=lambda chunk: manifest.chunks[chunk].length)
    position = manifest.chunks[chunk].positions[0]
    with place_of(directory, manifest.files[position.file_index].path).open("r+b") as file:
        file.seek(position.offset + 4096)
        file.write(bytes(4096))
    return {chunk}


def delete_a_file(directory: Path, manifest: Manifest, held: set[int]) -> set[int]:
    """(c): one partial file is gone."""
    parts = sorted((directory / ".swarm" / "parts").rglob("*.safetensors"))
    if not parts:
        return set()
    parts[0].unlink()
    name = parts[0].name
    return {
        chunk
        for chunk in held
        if any(manifest.files[p.file_index].path == name for p in manifest.chunks[chunk].positions)
    }


TAMPERINGS: list[Callable[[Path, Manifest, set[int]], set[int]]] = [
    cut_a_file, zero_a_page, delete_a_file,
]  # fmt: skip


async def test_a_killed_download_loses_only_what_was_broken(
    fleet_alone: Fleet, tmp_path: Path
) -> None:
    """Four downloads, each killed five times at random shares of the version, with its files
    tampered with in between. Each start finds all that was verified before, less what was broken,
    by hashing it again, and asks the origin for none of it."""
    fleet, rng = fleet_alone, random.Random(2)
    result = await fleet.publish(write_model(tmp_path / "model", M8))
    version = result.version.hex()
    manifest = decode_manifest(result.manifest_bytes)
    raw = (fleet.served.directory / locations_key(result.version)).read_bytes()
    places = chunk_places(manifest, decode_locations(raw))
    fleet.served.proxy.faults.append(Fault(target_part="/files/", delay=0.1))
    agent = fleet.process("--version", version)
    directory = agent.directory(version)

    def has_looked() -> bool:
        """Whether this start has hashed what it found."""
        try:
            return bool(agent.status()["versions"])
        except NotFoundError:
            return False

    kept: set[int] = set()
    killed_at: list[float] = []
    with warm_starts() as starts:
        for number in range(ROUNDS):
            if number % ROUNDS_OF_ONE == 0:
                kept = set()
                shutil.rmtree(directory, ignore_errors=True)
                targets = sorted(rng.random() for _ in range(ROUNDS_OF_ONE))
            seen = len(fleet.served.proxy.requests)
            pid = await trio.to_thread.run_sync(starts.start, agent.argv, agent.log)
            await fleet.wait(has_looked, f"round {number} has looked")
            found = agent.bytes_by_source(version)["local"]
            expected = sum(manifest.chunks[chunk].length for chunk in kept)
            assert found >= expected, f"round {number}: {found} bytes found, {expected} were there"
            enough = targets[number % ROUNDS_OF_ONE] * result.chunks
            await fleet.wait(partial(has_chunks, directory, enough), f"round {number}: {enough}")
            await trio.to_thread.run_sync(starts.kill, pid)
            asked = {
                chunk
                for request in fleet.served.proxy.requests[seen:]
                if "/files/" in request.target
                for chunk in chunks_asked(places, request.target, request.headers["range"])
            }
            assert not asked & kept, f"round {number}: asked again for what was there"
            held = held_chunks(directory)
            killed_at.append(len(held) / result.chunks)
            if agent.is_ready(version):
                # The last chunks came between the look and the kill.
                shutil.rmtree(directory)
                held = set()
            broken = TAMPERINGS[number % 3](directory, manifest, held) if held else set()
            kept = held - broken
    assert min(killed_at) < 0.3, killed_at
    assert max(killed_at) > 0.7, killed_at

    fleet.served.proxy.faults.clear()
    await trio.to_thread.run_sync(agent.start)
    ready = directory / ".swarm" / "READY"
    await fleet.wait(ready.exists, "whole in the end")
    assert await trio.to_thread.run_sync(agent.stop) == 143
    assert "Traceback" not in agent.log.read_text()


def chunk_places(manifest: Manifest, locations: Locations) -> dict[str, list[tuple[int, int, int]]]:
    """The chunks of each key: number, first byte and the one behind the last."""
    places: dict[str, list[tuple[int, int, int]]] = {}
    for chunk in range(len(manifest.chunks)):
        place = locations.place(manifest, ChunkIndex(chunk))
        end = place.offset + place.length
        places.setdefault(place.key, []).append((chunk, place.offset, end))
    return places


def chunks_asked(
    places: dict[str, list[tuple[int, int, int]]], target: str, byte_range: str
) -> list[int]:
    """The chunks that a GET reads; it begins and ends with a chunk."""
    first, last = map(int, byte_range.removeprefix("bytes=").split("-"))
    chunks = [
        (chunk, begin, end)
        for chunk, begin, end in places[target.lstrip("/")]
        if begin <= last and end > first
    ]
    assert (chunks[0][1], chunks[-1][2]) == (first, last + 1), (target, byte_range)
    return [chunk for chunk, _, _ in chunks]


async def test_a_page_zeroed_after_ready_is_not_shown_again(
    fleet_alone: Fleet, tmp_path: Path
) -> None:
    """On a whole version: killed, zeroed, started: found before anybody may read it, and
    fetched once more."""
    fleet = fleet_alone
    result = await fleet.publish(write_model(tmp_path / "model", M8))
    manifest = decode_manifest(result.manifest_bytes)
    agent = fleet.process("--version", result.version.hex())
    directory = agent.directory(result.version.hex())
    await trio.to_thread.run_sync(agent.start)
    durable = directory / ".swarm" / "DURABLE"
    await fleet.wait(durable.exists, "whole")
    await trio.to_thread.run_sync(agent.kill)
    for path in directory.rglob("*.safetensors"):
        path.chmod(0o644)
    zero_a_page(directory, manifest, held_chunks(directory))
    seen = fleet.file_requests()
    await trio.to_thread.run_sync(agent.start)
    await fleet.wait(lambda: fleet.file_requests() > seen, "the page is fetched again")
    await fleet.wait(durable.exists, "whole again")
    assert fleet.file_requests() == seen + 1
    assert await trio.to_thread.run_sync(agent.stop) == 143


PULL_FAULTS = {
    "mid-chunk": Fault(target_part="/files/", stall_after=1000),
    "back-off": Fault(target_part="/files/", status=503, body=b"SlowDown"),
    "first byte": Fault(target_part="/manifest", delay=60.0),
}


def start_pull(version: str, directory: Path, origin: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as stream:
        return subprocess.Popen(
            [*SWARM, "pull", version, str(directory), "--origin", origin],
            env=environment(),
            stdout=stream,
            stderr=stream,
        )


@pytest.mark.parametrize("moment", [*PULL_FAULTS, "dialling", "twice"])
async def test_a_pull_that_is_interrupted_ends_soon(
    fleet_alone: Fleet, tmp_path: Path, moment: str, silent_url: str
) -> None:
    """Within five seconds and with 130; a second signal ends it within one."""
    fleet = fleet_alone
    result = await fleet.publish(write_model(tmp_path / "model", M8))
    fleet.served.proxy.faults.append(PULL_FAULTS.get(moment, PULL_FAULTS["mid-chunk"]))
    origin = silent_url if moment == "dialling" else fleet.served.url
    log = tmp_path / "pull.log"
    process = start_pull(result.version.hex(), tmp_path / "pulled", origin, log)
    lock = tmp_path / "pulled" / ".swarm" / "lock"
    await fleet.wait(lock.exists, "it has begun")
    await trio.sleep(0.7)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    limit_s = 5.0
    if moment == "twice":
        await trio.sleep(0.1)
        process.send_signal(signal.SIGINT)
        limit_s = 1.0
    assert await trio.to_thread.run_sync(process.wait, 10) == 130
    assert time.monotonic() - began <= limit_s
    assert "Traceback" not in log.read_text()
    if moment == "mid-chunk":
        fleet.served.proxy.faults.clear()
        status = await fleet.pull(result.version.hex(), tmp_path / "pulled")
        assert status.is_ready


async def test_the_leases_of_an_agent_that_leaves_go_to_another_at_once(
    fleet: Fleet, tmp_path: Path
) -> None:
    """SIGTERM in the middle of stalled reads; another node is not kept waiting for them."""
    result = await fleet.publish(write_model(tmp_path / "model", M8))
    stall = Fault(target_part="/files/", stall_after=CHUNK_BYTES // 2)
    fleet.served.proxy.faults.append(stall)
    leaving = fleet.process("--version", result.version.hex(), *fleet.tracker_flags)
    await trio.to_thread.run_sync(leaving.start)
    await fleet.wait(lambda: fleet.file_requests() > 0, "it reads what it has leases for")
    await trio.sleep(0.5)
    fleet.served.proxy.faults.clear()
    (other,) = await fleet.start(1, versions=(result.version.hex(),))
    await trio.sleep(0.5)
    began = time.monotonic()
    assert await trio.to_thread.run_sync(leaving.stop) == 143
    assert time.monotonic() - began <= 5
    took_s = await fleet.wait_ready([other], result.version)
    assert took_s <= 3
