"""A new version takes from ready ones what it shares with them."""

from __future__ import annotations

import os
import random
from pathlib import Path

from swarm.store.disk import DiskStore
from swarm.store.readiness import is_ready
from swarm.store.stored_version import StoredVersion
from tests.support.caches import open_cache, open_made, rot, tamper
from tests.support.versions import MadeVersion, fill, make_version

CHUNK = 64 << 10
SHARD = random.Random(1).randbytes(5 * CHUNK + 77)
OTHER = random.Random(2).randbytes(2 * CHUNK)
OLD = make_version({"config.json": b"{}", "a.bin": SHARD, "b.bin": OTHER})


def put(store: DiskStore, made: MadeVersion) -> StoredVersion:
    version = open_made(store, made)
    fill(version, made)
    version.publish_ready()
    return version


def inode(version: StoredVersion, path: str) -> int:
    return os.stat(Path(version.directory, path)).st_ino


def test_equal_files_are_linked_whatever_their_name(cache: Path) -> None:
    new = make_version({"config.json": b"{1}", "sub/renamed.bin": SHARD, "b.bin": OTHER})
    with open_cache(cache) as store:
        old = put(store, OLD)
        version = open_made(store, new)
        assert version.missing_bytes == len(b"{1}")
        assert inode(version, "sub/renamed.bin") == inode(old, "a.bin")
        assert inode(version, "b.bin") == inode(old, "b.bin")
        fill(version, new)
        version.publish_ready()
        version.make_durable()
        old.close()
        store.evict(OLD.manifest.version)
        assert is_ready(version.directory)


def test_changed_files_share_their_equal_chunks(cache: Path) -> None:
    changed = SHARD[:CHUNK] + random.Random(3).randbytes(CHUNK) + SHARD[2 * CHUNK :]
    new = make_version({"config.json": b"{}", "a.bin": changed})
    with open_cache(cache) as store:
        old = put(store, OLD)
        version = open_made(store, new)
        assert version.missing_bytes == CHUNK
        assert inode(old, "a.bin") not in {
            path.stat().st_ino for path in Path(version.directory).rglob("*.bin")
        }
        fill(version, new)
        version.publish_ready()


def test_another_mode_is_another_inode(cache: Path) -> None:
    new = make_version({"a.bin": SHARD}, executable=frozenset({"a.bin"}))
    with open_cache(cache) as store:
        old = put(store, OLD)
        version = open_made(store, new)
        assert version.have.is_full
        assert inode(version, "a.bin") != inode(old, "a.bin")
        assert os.access(Path(version.directory, "a.bin"), os.X_OK)
        version.publish_ready()


def test_a_linked_file_feeds_the_other_places_of_its_chunks(cache: Path) -> None:
    new = make_version({"a.bin": SHARD, "twice.bin": SHARD[: 2 * CHUNK] + b"more"})
    with open_cache(cache) as store:
        old = put(store, OLD)
        version = open_made(store, new)
        assert version.missing_bytes == len(b"more")
        assert inode(version, "a.bin") == inode(old, "a.bin")
        fill(version, new)
        version.publish_ready()


def test_damage_in_a_linked_file_stops_where_it_is_copied(cache: Path) -> None:
    """Rot that no time stamp tells of: the link is made, the copy is hashed, and the new version
    takes a new inode."""
    new = make_version({"a.bin": SHARD, "twice.bin": SHARD[: 2 * CHUNK] + b"more"})
    with open_cache(cache) as store:
        old = put(store, OLD)
        rot(Path(old.directory, "a.bin"), 5)
        version = open_made(store, new)
        assert version.missing_bytes == 2 * CHUNK + len(b"more")
        # The source was checked as well, and takes a new inode of its own.
        assert len(old.have) == len(OLD.chunks) - 1
        fill(version, new)
        version.publish_ready()
        fill(old, OLD)
        old.publish_ready()
        assert inode(version, "a.bin") != inode(old, "a.bin")


def test_a_file_changed_since_ready_is_not_linked(cache: Path) -> None:
    new = make_version({"a.bin": SHARD, "x": b"x"})
    with open_cache(cache) as store:
        old = put(store, OLD)
        tamper(Path(old.directory, "a.bin"), 5)
        version = open_made(store, new)
        assert version.missing_bytes == CHUNK + 1
        assert not is_ready(old.directory)
        fill(version, new)
        version.publish_ready()
        fill(old, OLD)
        old.publish_ready()


def test_nothing_is_taken_from_a_version_that_is_not_ready(cache: Path) -> None:
    new = make_version({"a.bin": SHARD, "x": b"x"})
    with open_cache(cache) as store:
        fill(open_made(store, OLD), OLD)
        assert not open_made(store, new).have


def test_a_bad_source_chunk_is_refused_and_its_version_withdrawn(cache: Path) -> None:
    """Copied chunks are hashed on the way; damage found there is the source's."""
    new = make_version({"longer.bin": SHARD + b"tail"})
    with open_cache(cache) as store:
        old = put(store, OLD)
        old.make_durable()
        old.close()
        tamper(Path(old.directory, "a.bin"), 3 * CHUNK + 5)
        version = open_made(store, new)
        # The damaged chunk, and the last one, which the longer file does not share.
        assert version.missing_bytes == CHUNK + 77 + 4
        assert not is_ready(old.directory)
        old = open_made(store, OLD)
        assert len(old.have) == len(OLD.chunks) - 1
        fill(old, OLD)
        old.publish_ready()
        fill(version, new)
        version.publish_ready()


def test_damage_in_a_linked_file_is_repaired_in_a_new_inode(cache: Path) -> None:
    """The other version may be mapped: its inode is not written."""
    new = make_version({"a.bin": SHARD, "x": b"x"})
    with open_cache(cache) as store:
        old = put(store, OLD)
        version = open_made(store, new)
        rot(Path(old.directory, "a.bin"), 5)
        chunk = new.manifest.file_chunks[0][0]
        assert not version.verify_chunk(chunk)
        fill(version, new)
        version.publish_ready()
        assert inode(version, "a.bin") != inode(old, "a.bin")
        assert not old.verify_chunk(OLD.manifest.file_chunks[0][0])
        fill(old, OLD)
        old.publish_ready()
