"""Who a node is over restarts, copies and damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from swarm.protocol.ids import Identity
from swarm.store.identity import next_identity
from swarm.store.tree import Tree


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    path.mkdir()
    return path


def start(path: Path) -> Identity:
    tree = Tree(str(path))
    try:
        return next_identity(tree, "node")
    finally:
        tree.close()


def test_the_id_stays_and_the_generation_grows(home: Path) -> None:
    first, second = start(home), start(home)
    assert second == Identity(first.node_id, 2)
    assert first.generation == 1


def test_a_copied_cache_is_another_node(home: Path, tmp_path: Path) -> None:
    first = start(home)
    shutil.copytree(home, tmp_path / "copy")
    clone = start(tmp_path / "copy")
    assert clone.node_id != first.node_id
    assert clone.generation == 1
    assert start(home) == Identity(first.node_id, 2)


def test_another_host_is_another_node(home: Path) -> None:
    first = start(home)
    lines = (home / "node").read_text().splitlines()
    assert lines[2].startswith("host ")
    (home / "node").write_text("\n".join([*lines[:2], "host " + "0" * 32]) + "\n")
    assert start(home).node_id != first.node_id


@pytest.mark.parametrize("content", ["", "node zz\n", "\0" * 200, "x" * 10_000])
def test_a_damaged_node_file_makes_a_new_node(home: Path, content: str) -> None:
    first = start(home)
    (home / "node").write_text(content)
    assert start(home).node_id != first.node_id
    assert start(home).generation == 2
