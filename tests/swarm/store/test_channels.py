"""Channel links lead to ready versions or nowhere."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from swarm.errors import NotFoundError
from swarm.store.disk import DiskStore
from tests.support.caches import open_cache, open_made
from tests.support.versions import MadeVersion, fill, small_version


def put(store: DiskStore, made: MadeVersion) -> None:
    version = open_made(store, made)
    fill(version, made)
    version.publish_ready()


def test_a_link_leads_to_the_files(cache: Path, made: MadeVersion) -> None:
    with open_cache(cache) as store:
        put(store, made)
        store.channels.point("prod", made.manifest.version)
        link = cache / "channels" / "prod"
        assert str(link.readlink()) == f"../versions/{made.manifest.version.hex()}"
        assert (link / "config.json").read_bytes() == made.contents["config.json"]
        assert store.channels.target("prod") == made.manifest.version
        store.channels.remove("prod")
        store.channels.remove("prod")
        assert store.channels.target("prod") is None


def test_no_link_to_a_version_that_is_not_ready(cache: Path, made: MadeVersion) -> None:
    with open_cache(cache) as store:
        open_made(store, made)
        with pytest.raises(NotFoundError, match="not ready"):
            store.channels.point("prod", made.manifest.version)
        assert store.channels.names() == ()


def test_a_link_is_never_missing_while_it_moves(cache: Path) -> None:
    """A reader in a loop during 50 switches sees one version or the other."""
    first, second = small_version(1), small_version(2)
    configs = {made.contents["config.json"] for made in (first, second)}
    is_over = threading.Event()
    seen: set[bytes] = set()
    problems: list[Exception] = []

    def read() -> None:
        while not is_over.is_set():
            try:
                seen.add((cache / "channels" / "prod" / "config.json").read_bytes())
            except OSError as error:
                problems.append(error)

    with open_cache(cache) as store:
        put(store, first)
        put(store, second)
        store.channels.point("prod", first.manifest.version)
        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(25):
            store.channels.point("prod", second.manifest.version)
            store.channels.point("prod", first.manifest.version)
        is_over.set()
        reader.join(10)
    assert problems == []
    assert seen <= configs


def test_foreign_things_in_the_directory_are_left_alone(cache: Path, made: MadeVersion) -> None:
    with open_cache(cache) as store:
        put(store, made)
        store.channels.point("prod", made.manifest.version)
        (cache / "channels" / "notes.txt").write_text("mine")
        (cache / "channels" / "odd").symlink_to("../versions/zz")
        assert store.channels.names() == ("prod",)
        assert store.channels.remove_stale() == ()
        (cache / "channels" / "odd").unlink()
