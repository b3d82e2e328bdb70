"""What makes READY count."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.protocol.ids import VersionId
from swarm.store.readiness import is_ready, mount_id, withdraw, write_durable, write_ready
from swarm.store.tree import Tree
from tests.support.caches import open_cache, open_made
from tests.support.versions import MadeVersion, fill

VERSION = VersionId(bytes(range(32)))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / ".swarm").mkdir()
    return tmp_path


def mark_ready(directory: Path) -> None:
    tree = Tree(str(directory))
    write_ready(tree, VERSION, "agent:1")
    tree.close()


def change(directory: Path, name: str, value: str) -> None:
    ready = directory / ".swarm" / "READY"
    lines = [
        f"{name} {value}" if line.split(" ")[0] == name else line
        for line in ready.read_text().splitlines()
    ]
    assert any(line == f"{name} {value}" for line in lines)
    ready.write_text("\n".join(lines) + "\n")


def test_nothing_is_not_ready(tmp_path: Path) -> None:
    assert not is_ready(str(tmp_path))
    assert not is_ready(str(tmp_path / "nowhere"))
    (tmp_path / "file").write_text("")
    assert not is_ready(str(tmp_path / "file"))


def test_ready_counts_where_it_was_written(directory: Path) -> None:
    mark_ready(directory)
    assert is_ready(str(directory))


@pytest.mark.parametrize(
    ("name", "value"), [("boot", "0" * 32), ("device", "1"), ("mount", "999999")]
)
def test_ready_counts_nowhere_else(directory: Path, name: str, value: str) -> None:
    mark_ready(directory)
    change(directory, name, value)
    assert not is_ready(str(directory))


def test_an_empty_mark_does_not_count(directory: Path) -> None:
    (directory / ".swarm" / "READY").write_text("")
    (directory / ".swarm" / "DURABLE").write_text("")
    assert not is_ready(str(directory))


def test_durable_counts_always(directory: Path) -> None:
    mark_ready(directory)
    tree = Tree(str(directory))
    write_durable(tree, VERSION)
    change(directory, "boot", "0" * 32)
    assert is_ready(str(directory))
    withdraw(tree)
    assert not is_ready(str(directory))
    withdraw(tree)
    tree.close()


def test_through_another_mount_ready_counts_while_its_writer_lives(
    cache: Path, made: MadeVersion
) -> None:
    """The serving container sees the same volume under another mount id."""
    with open_cache(cache) as store:
        version = open_made(store, made)
        fill(version, made)
        version.publish_ready()
        directory = Path(version.directory)
        change(directory, "mount", "999999")
        assert is_ready(str(directory))
    assert not is_ready(str(directory)), "nobody vouches for the mount in between"
    with open_cache(cache) as store:
        assert not is_ready(str(directory)), "another agent is not the one that wrote it"
        version = open_made(store, made)
        assert version.have.is_full
        version.publish_ready()


def test_the_mount_id_is_the_kernels(tmp_path: Path) -> None:
    tree = Tree(str(tmp_path))
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    assert mount_id(tree.fd) in {line.split(" ")[0] for line in mounts}
    tree.close()
