"""Cache locks and reader locks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm.errors import LockedError
from swarm.store.lock import CacheLock, ReaderLock, has_reader, is_held_by
from swarm.store.tree import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    made = Tree(str(tmp_path))
    yield made
    made.close()


def test_the_holder_is_named(tree: Tree) -> None:
    lock = CacheLock(tree, "lock")
    lock.describe("node:1")
    with pytest.raises(LockedError, match=f"pid {os.getpid()} on "):
        CacheLock(tree, "lock")
    lock.release()
    CacheLock(tree, "lock").release()


@pytest.mark.parametrize("pid", [1, 2**22 - 1])
def test_a_lock_file_left_behind_is_free(tree: Tree, pid: int) -> None:
    """By a dead pid, or one that now names another process."""
    Path(tree.path, "lock").write_text(f"pid {pid}\nhost here\nowner gone:1\n")
    assert not is_held_by(f"{tree.path}/lock", "gone:1")
    CacheLock(tree, "lock").release()


def test_a_probe_sees_the_owner_and_takes_nothing(tree: Tree) -> None:
    path = f"{tree.path}/lock"
    assert not is_held_by(path, "node:1")
    lock = CacheLock(tree, "lock")
    lock.describe("node:1")
    assert is_held_by(path, "node:1")
    assert not is_held_by(path, "node:2")
    lock.release()
    assert not is_held_by(path, "node:1")


def test_another_process_cannot_take_it(tree: Tree) -> None:
    program = (
        "import sys; from swarm.store.lock import CacheLock; from swarm.store.tree import Tree;"
        "CacheLock(Tree(sys.argv[1]), 'lock')"
    )
    command = [sys.executable, "-c", program, tree.path]
    lock = CacheLock(tree, "lock")
    lock.describe("node:1")
    refused = subprocess.run(command, capture_output=True, timeout=20, check=False)
    lock.release()
    assert b"LockedError" in refused.stderr
    assert subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0


def test_readers_share_and_keep_a_version(tree: Tree) -> None:
    assert not has_reader(tree)
    Path(tree.path, ".swarm").mkdir()
    Path(tree.path, ".swarm", "manifest").write_bytes(b"m")
    assert not has_reader(tree)
    first, second = ReaderLock(tree.path), ReaderLock(tree.path)
    first.release()
    assert has_reader(tree)
    second.release()
    assert not has_reader(tree)
