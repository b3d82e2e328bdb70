"""No name leads out of the root."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swarm.store.tree import Tree


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.mkdir()
    (path / "file").write_text("theirs")
    return path


@pytest.fixture
def tree(tmp_path: Path, outside: Path) -> Iterator[Tree]:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(outside)
    (root / "file-link").symlink_to(outside / "file")
    made = Tree(str(root))
    yield made
    made.close()


STEPS: dict[str, Callable[[Tree], object]] = {
    "open": lambda tree: tree.open("link/file", os.O_RDONLY),
    "open a link": lambda tree: tree.open("file-link", os.O_RDWR),
    "create": lambda tree: tree.create("link/new", 0o644),
    "create over a link": lambda tree: tree.create("file-link", 0o644),
    "write": lambda tree: tree.write_file("link/new", b"x"),
    "rename into": lambda tree: tree.rename("file-link", "link/x"),
    "rename from": lambda tree: tree.rename("link/file", "x"),
    "unlink": lambda tree: tree.unlink("link/file"),
    "make": lambda tree: tree.make_directory("link/new"),
    "link": lambda tree: tree.replace_link("x", "link/new"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_link_on_the_way_is_an_error(tree: Tree, outside: Path, step: str) -> None:
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        STEPS[step](tree)
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "theirs"


def test_a_link_is_no_regular_file(tree: Tree) -> None:
    assert tree.regular_size("file-link") is None
    assert tree.regular_size("link/file") is None
    assert tree.read_link("file-link") is not None


def test_a_fifo_blocks_nobody(tree: Tree) -> None:
    os.mkfifo(f"{tree.path}/fifo")
    assert tree.read_file("fifo", 100) is None
    assert tree.regular_size("fifo") is None


def test_a_small_file_is_replaced_whole(tree: Tree) -> None:
    tree.write_file("deep/er/mark", b"one")
    tree.write_file("deep/er/mark", b"two", is_synced=True)
    assert tree.read_file("deep/er/mark", 3) == b"two"
    assert tree.read_file("deep/er/mark", 2) is None
    assert tree.read_file("deep/nothing", 2) is None
    assert tree.names("deep/er") == ["mark"]
    assert tree.names("nowhere") == []


def test_no_descriptor_is_left_open(tree: Tree) -> None:
    before = len(os.listdir("/proc/self/fd"))
    tree.write_file("a/b/c/d", b"x")
    with pytest.raises(FileNotFoundError):
        tree.open("a/b/x/d", os.O_RDONLY)
    with pytest.raises(NotADirectoryError):
        tree.open("a/b/c/d/e", os.O_RDONLY)
    assert len(os.listdir("/proc/self/fd")) == before
