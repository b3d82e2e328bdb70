"""When a version may be seen, and when it may not any more: damage, eviction, reboots, flushes."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.errors import LockedError, StoreError
from swarm.store.lock import ReaderLock
from swarm.store.readiness import is_ready
from swarm.store.verify import verify_directory
from tests.support.caches import open_cache, open_made, tamper
from tests.support.versions import MadeVersion, fill


def test_damage_takes_ready_and_its_links_away(cache: Path, made: MadeVersion) -> None:
    with open_cache(cache) as store:
        version = open_made(store, made)
        fill(version, made)
        version.publish_ready()
        version.make_durable()
        store.channels.point("prod", made.manifest.version)
        old = Path(version.directory, "model-1.safetensors").stat().st_ino
        tamper(Path(version.directory, "model-1.safetensors"), 200_000)
        damage = verify_directory(version.directory, made.manifest)
        assert [one.path for one in damage] == ["model-1.safetensors"]
        chunk = damage[0].chunk
        assert chunk is not None
        assert damage[0].offset <= 200_000 < damage[0].offset + made.manifest.lengths[chunk]
        assert not version.verify_chunk(chunk)
        assert not is_ready(version.directory)
        assert store.channels.names() == ()
        fill(version, made, [chunk])
        version.publish_ready()
        assert Path(version.directory, "model-1.safetensors").stat().st_ino != old


def test_eviction_waits_for_no_reader(cache: Path, made: MadeVersion) -> None:
    with open_cache(cache) as store:
        version = open_made(store, made)
        fill(version, made)
        version.publish_ready()
        store.channels.point("prod", made.manifest.version)
        version.close()
        reader = ReaderLock(version.directory)
        with pytest.raises(LockedError, match="in use"):
            store.evict(made.manifest.version)
        assert is_ready(version.directory)
        reader.release()
        store.evict(made.manifest.version)
        assert store.channels.names() == ()
        assert not Path(version.directory).exists()


def test_durable_counts_after_a_reboot(cache: Path, made: MadeVersion) -> None:
    store = open_cache(cache)
    version = open_made(store, made)
    fill(version, made)
    version.publish_ready()
    version.make_durable()
    store.close()
    forge_other_boot(Path(version.directory))
    with open_cache(cache) as store:
        assert is_ready(version.directory)
        assert open_made(store, made).is_ready


def test_ready_alone_does_not_survive_a_reboot(cache: Path, made: MadeVersion) -> None:
    store = open_cache(cache)
    version = open_made(store, made)
    fill(version, made)
    version.publish_ready()
    store.channels.point("prod", made.manifest.version)
    store.close()
    forge_other_boot(Path(version.directory))
    tamper(Path(version.directory, "model-1.safetensors"), 200_000)
    assert not is_ready(version.directory)
    with open_cache(cache) as store:
        assert not Path(version.directory, ".swarm", "READY").exists()
        assert store.channels.names() == ()
        version = open_made(store, made)
        assert len(version.have) == len(made.chunks) - 1
        fill(version, made)
        version.publish_ready()


def forge_other_boot(directory: Path) -> None:
    ready = directory / ".swarm" / "READY"
    lines = [
        f"boot {'0' * 32}" if line.startswith("boot ") else line
        for line in ready.read_text().splitlines()
    ]
    ready.write_text("\n".join(lines) + "\n")
    state = directory / ".swarm" / "state"
    raw = bytearray(state.read_bytes())
    raw[8:24] = bytes(16)
    state.write_bytes(raw)


def test_a_failed_flush_withdraws_ready(cache: Path, made: MadeVersion) -> None:
    store = open_cache(cache)
    version = open_made(store, made)
    fill(version, made)
    version.publish_ready()
    gone = Path(version.directory, "config.json")
    gone.rename(gone.with_name("elsewhere"))
    with pytest.raises(StoreError):
        version.make_durable()
    assert not version.is_ready
    assert not is_ready(version.directory)
    gone.with_name("elsewhere").rename(gone)
    store.close()
    with open_cache(cache) as store:
        version = open_made(store, made)
        # Not closed in order: everything was hashed, and everything was right.
        assert version.have.is_full
        version.publish_ready()
