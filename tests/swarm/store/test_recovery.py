"""Killed, restarted, tampered with: what a cache still holds, and what it must hash again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from swarm.errors import LockedError
from swarm.protocol.ids import ChunkIndex
from tests.support.caches import kill, open_cache, open_made, part, tamper
from tests.support.versions import MadeVersion, fill, small_version


def test_an_orderly_restart_hashes_nothing_and_keeps_all(cache: Path, made: MadeVersion) -> None:
    store = open_cache(cache)
    version = open_made(store, made)
    fill(version, made, made.chunks[:4])
    held, generation = version.have.copy(), version.state_generation
    store.close()
    with open_cache(cache) as store:
        version = open_made(store, made)
        assert version.have == held
        assert version.state_generation == generation


def test_bytes_changed_between_orderly_runs_are_found(cache: Path, made: MadeVersion) -> None:
    store = open_cache(cache)
    version = open_made(store, made)
    fill(version, made, made.chunks[:-3])
    before = len(version.have)
    store.close()
    tamper(part(version.directory, "model-1.safetensors"), 200_000)
    with open_cache(cache) as store:
        version = open_made(store, made)
        assert len(version.have) == before - 1
        fill(version, made)
        version.publish_ready()


@pytest.mark.parametrize("seed", range(12))
def test_a_killed_download_resumes(cache: Path, seed: int) -> None:
    """Killed at random moments with chunks half written, tampered with in between; each
    restart loses at most what was tampered with, and in the end all is whole."""
    rng = random.Random(seed)
    made = small_version(seed)
    for _ in range(6):
        store = open_cache(cache)
        version = open_made(store, made)
        missing = [chunk for chunk in made.chunks if chunk not in version.have]
        fill(version, made, rng.sample(missing, min(len(missing), 2)))
        held = version.have.copy()
        for chunk in rng.sample(list(made.chunks), 2):
            writer = version.writer(ChunkIndex(chunk))
            writer.write(0, memoryview(made.chunk_bytes_of(chunk))[:100])
        kill(store, version)
        spoiled = spoil(rng, made, Path(version.directory))
        with open_cache(cache) as store:
            version = open_made(store, made)
            assert {chunk for chunk in held if chunk not in version.have} == set(held) & spoiled
    with open_cache(cache) as store:
        version = open_made(store, made)
        fill(version, made)
        version.publish_ready()


def spoil(rng: random.Random, made: MadeVersion, directory: Path) -> set[int]:
    """Cut the last 4 KiB of a file, zero a page, delete a part, or nothing; the chunks that are
    now right at no position."""
    # Of the two shards only these chunks have one position each.
    path = "model-1.safetensors"
    found = [p for p in (directory / path, part(str(directory), path)) if p.exists()]
    action = rng.choice(["cut", "zero", "delete", "nothing"])
    if not found or action == "nothing":
        return set()
    index = [entry.path for entry in made.manifest.files].index(path)
    chunks = made.manifest.file_chunks[index]
    if action == "cut":
        os.truncate(found[0], made.manifest.files[index].size - 4096)
        return {chunks[-1]}
    if action == "zero":
        offset = made.manifest.chunk_bytes * 3 + 8192
        changed_at_ns = found[0].stat().st_mtime_ns
        with found[0].open("r+b") as file:
            file.seek(offset)
            file.write(bytes(4096))
        # As if the page had never reached the disk: no time tells of it.
        os.utime(found[0], ns=(changed_at_ns, changed_at_ns))
        return {chunks[3]}
    found[0].unlink()
    return set(chunks[2:])


def test_a_killed_process_leaves_a_cache_that_resumes(cache: Path) -> None:
    """One real SIGKILL of a process in the middle of writing."""
    program = """
import sys
from swarm.store.disk import DiskStore
from tests.support.versions import fill, small_version
made = small_version(5, chunks=40)
store = DiskStore.open_cache(sys.argv[1])
version = store.open_version(made.manifest, made.manifest_bytes)
for chunk in made.chunks:
    fill(version, made, [chunk])
    if chunk == 20:
        version.writer(chunk + 1).write(0, memoryview(made.chunk_bytes_of(chunk + 1))[:5000])
        print("killme", flush=True)
        sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(cache)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"killme\n"
    with pytest.raises(LockedError, match=f"pid {process.pid} "):
        open_cache(cache)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    process.stdout.close()
    process.stdin.close()
    made = small_version(5, chunks=40)
    with open_cache(cache) as store:
        version = open_made(store, made)
        assert len(version.have) == 21
        assert version.state_generation == 2
        fill(version, made)
        version.publish_ready()


def test_a_ready_version_is_taken_over_without_hashing(cache: Path, made: MadeVersion) -> None:
    """The agent is killed under a running server, its successor goes on."""
    store = open_cache(cache)
    version = open_made(store, made)
    fill(version, made)
    version.publish_ready()
    inodes = [Path(version.directory, path).stat().st_ino for path in made.contents]
    kill(store, version)
    with open_cache(cache) as store:
        version = open_made(store, made)
        assert version.is_ready
        assert version.have.is_full
        assert [Path(version.directory, path).stat().st_ino for path in made.contents] == inodes


def test_bytes_changed_after_ready_are_found(cache: Path, made: MadeVersion) -> None:
    """READY's own time counts: the state file may be written later."""
    store = open_cache(cache)
    version = open_made(store, made)
    fill(version, made)
    version.publish_ready()
    store.close()
    tamper(Path(version.directory, "model-1.safetensors"), 200_000)
    later = os.stat(version.directory).st_mtime_ns + 60_000_000_000
    os.utime(Path(version.directory, ".swarm", "state"), ns=(later, later))
    with open_cache(cache) as store:
        version = open_made(store, made)
        assert not version.is_ready
        assert len(version.have) == len(made.chunks) - 1
        fill(version, made)
        version.publish_ready()


def test_a_lost_file_of_a_ready_version_is_noticed(cache: Path, made: MadeVersion) -> None:
    store = open_cache(cache)
    version = open_made(store, made)
    fill(version, made)
    version.publish_ready()
    store.channels.point("prod", made.manifest.version)
    store.close()
    Path(version.directory, "config.json").unlink()
    with open_cache(cache) as store:
        version = open_made(store, made)
        assert not version.is_ready
        assert store.channels.names() == ()
        assert len(version.have) == len(made.chunks) - 1
        fill(version, made)
        version.publish_ready()


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"SWARMST1" + b"\0" * 300])
def test_a_damaged_state_file_costs_a_hash_and_no_bytes(
    cache: Path, made: MadeVersion, content: bytes
) -> None:
    store = open_cache(cache)
    version = open_made(store, made)
    fill(version, made, made.chunks[:5])
    held = version.have.copy()
    store.close()
    Path(version.directory, ".swarm", "state").write_bytes(content)
    with open_cache(cache) as store:
        assert open_made(store, made).have == held


def test_a_copied_position_that_was_lost_is_copied_again(cache: Path, made: MadeVersion) -> None:
    store = open_cache(cache)
    version = open_made(store, made)
    fill(version, made)
    kill(store, version)
    Path(version.directory, "model-2.safetensors").unlink()
    with open_cache(cache) as store:
        version = open_made(store, made)
        # Only the chunk that lies nowhere else is gone.
        assert len(version.have) == len(made.chunks) - 1
        fill(version, made)
        version.publish_ready()
