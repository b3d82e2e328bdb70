"""What is stored comes back, and a damaged file is refused by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swarm.errors import LockedError, NotFoundError, TrackerError, UsageError
from swarm.protocol.ids import VersionId
from swarm.protocol.operator_api import ModeChange
from swarm.protocol.tracker_api import ChannelChange, Mode
from tests.support.tracker_fleet import VERSION, publish_record
from tracker.store.sqlite import SqliteStore, store_path

OTHER = VersionId(b"o" * 32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tracker.db"


def change(channel: str, revision: int, version: VersionId | None) -> ChannelChange:
    return ChannelChange(channel, revision, version, 5.0, "me", "because")


def filled(path: Path) -> None:
    store = SqliteStore(path)
    store.start_epoch()
    store.register(publish_record(name="m", tag="v1"), b"manifest", now=1.0)
    store.register(publish_record(name="m", tag="latest"), b"manifest", now=2.0)
    store.record_channel(change("prod", 1, VERSION))
    store.record_channel(change("prod", 2, None))
    store.record_channel(change("canary", 9, VERSION))
    store.record_mode(ModeChange(VERSION, Mode.STOP, "incident 7", 6.0, "me"))
    store.record_mode(ModeChange(VERSION, Mode.ORIGIN, "swarm is slow", 7.0, "me"))
    store.close()


def test_everything_is_there_after_a_restart(path: Path) -> None:
    filled(path)
    store = SqliteStore(path)
    state = store.start_epoch()
    assert state.epoch == 2
    assert state.records == (publish_record(name="m", tag="v1"),)
    assert set(state.names) == {("m", "v1", VERSION), ("m", "latest", VERSION)}
    assert set(state.channels) == {change("prod", 2, None), change("canary", 9, VERSION)}
    assert state.modes == (ModeChange(VERSION, Mode.ORIGIN, "swarm is slow", 7.0, "me"),)
    assert store.manifest(VERSION) == b"manifest"
    assert [entry.revision for entry in store.channel_history("prod", limit=10)] == [2, 1]
    assert len(store.channel_history("prod", limit=1)) == 1
    with pytest.raises(NotFoundError):
        store.manifest(OTHER)
    store.close()


def test_a_second_tracker_is_kept_out(path: Path, tmp_path: Path) -> None:
    """By whatever name it reaches the file; and the first one's end frees it."""
    store = SqliteStore(path)
    store.start_epoch()
    link, directory = tmp_path / "link.db", tmp_path / "also"
    link.symlink_to(path)
    directory.symlink_to(tmp_path)
    for name in (path, link, directory / path.name):
        with pytest.raises(
            LockedError, match=f"another tracker \\(pid {os.getpid()} on "
        ) as caught:
            SqliteStore(name)
        assert str(name) in caught.value.message
    assert store.start_epoch().epoch == 2
    store.close()
    store = SqliteStore(link)
    assert store.start_epoch().epoch == 3
    store.close()


def test_a_store_that_is_refused_is_not_kept_locked(path: Path) -> None:
    path.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(TrackerError, match="empty"):
            SqliteStore(path)


def test_the_epoch_grows_with_each_start(path: Path) -> None:
    for epoch in (1, 2, 3):
        store = SqliteStore(path)
        assert store.start_epoch().epoch == epoch
        store.close()


def test_a_revision_is_written_once(path: Path) -> None:
    store = SqliteStore(path)
    store.record_channel(change("prod", 1, VERSION))
    with pytest.raises(TrackerError):
        store.record_channel(change("prod", 1, OTHER))
    assert store.channel_history("prod", limit=9) == (change("prod", 1, VERSION),)
    store.close()


def test_a_nonce_is_new_once_until_it_is_forgotten(path: Path) -> None:
    store = SqliteStore(path)
    assert store.remember_nonce(b"n" * 16, now=0.0, kept_s=600.0)
    assert not store.remember_nonce(b"n" * 16, now=599.0, kept_s=600.0)
    assert store.remember_nonce(b"n" * 16, now=601.0, kept_s=600.0)
    store.close()


def test_nonces_outlive_the_process(path: Path) -> None:
    store = SqliteStore(path)
    store.remember_nonce(b"n" * 16, now=0.0, kept_s=600.0)
    store.close()
    store = SqliteStore(path)
    assert not store.remember_nonce(b"n" * 16, now=1.0, kept_s=600.0)
    store.close()


def test_the_file_is_private(path: Path) -> None:
    filled(path)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", ["empty", "zeros", "cut", "another database", "text"])
def test_a_damaged_store_is_refused_by_name(path: Path, damage: str) -> None:
    """Never start empty where something was: agents would be told that no channel is set."""
    filled(path)
    whole = path.read_bytes()
    for log in path.parent.glob("tracker.db-*"):
        log.unlink()
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "zeros":
        path.write_bytes(bytes(len(whole)))
    elif damage == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "text":
        path.write_text("hello\n" * 1000)
    else:
        path.write_bytes(whole[:68] + b"\0\0\0\0" + whole[72:])
    with pytest.raises(TrackerError) as caught:
        SqliteStore(path)
    assert str(path) in caught.value.message


def test_a_store_of_a_later_release_is_refused(path: Path) -> None:
    filled(path)
    raw = bytearray(path.read_bytes())
    raw[60:64] = (9).to_bytes(4, "big")
    path.write_bytes(raw)
    with pytest.raises(TrackerError, match="format is 9"):
        SqliteStore(path)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrackerError, match="nowhere"):
        SqliteStore(tmp_path / "nowhere" / "t.db")


def test_a_full_disk_changes_nothing(path: Path) -> None:
    store = SqliteStore(path)
    store._connection.execute("PRAGMA max_page_count = 20")
    with pytest.raises(TrackerError, match="full"):
        store.register(publish_record(), b"m" * 1_000_000, now=1.0)
    assert store.start_epoch().records == ()
    store.close()


def test_store_urls() -> None:
    assert store_path("sqlite:///var/lib/t.db") == Path("/var/lib/t.db")
    for url in ("sqlite://relative", "/var/lib/t.db", "etcd://x", "sqlite:t.db"):
        with pytest.raises(UsageError):
            store_path(url)
