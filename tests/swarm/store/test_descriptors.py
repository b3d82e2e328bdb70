"""Open files: bounded, shared by threads, and never closed under a transfer."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path

import pytest

from swarm.store.descriptors import Descriptors


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    found = [tmp_path / str(index) for index in range(10)]
    for path in found:
        path.write_text(path.name)
    return found


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def open_path(path: Path) -> int:
    return os.open(path, os.O_RDONLY)


def test_a_descriptor_is_opened_once(paths: list[Path]) -> None:
    descriptors = Descriptors()
    first = descriptors.acquire((1, 0), lambda: open_path(paths[0]))
    again = descriptors.acquire((1, 0), lambda: open_path(paths[0]))
    assert first is again
    descriptors.forget_owner(1)


def test_the_oldest_idle_one_is_closed(paths: list[Path]) -> None:
    descriptors = Descriptors(limit=2)
    used = []
    for index, path in enumerate(paths[:3]):
        used.append(descriptors.acquire((1, index), partial(open_path, path)))
        descriptors.release(used[-1])
    assert [is_open(descriptor.fd) for descriptor in used[1:]] == [True, True]
    assert used[0].is_forgotten
    assert len(descriptors) == 2
    descriptors.forget_owner(1)


def test_a_pinned_one_stays_open_past_the_limit(paths: list[Path]) -> None:
    descriptors = Descriptors(limit=1)
    pinned = descriptors.acquire((1, 0), lambda: open_path(paths[0]))
    for index, path in enumerate(paths[1:], start=1):
        descriptors.release(descriptors.acquire((1, index), partial(open_path, path)))
    assert os.pread(pinned.fd, 10, 0) == b"0"
    assert len(descriptors) == 2
    descriptors.forget_owner(1)
    assert is_open(pinned.fd), "forgotten, and closed only with its last pin"
    descriptors.release(pinned)
    assert not is_open(pinned.fd)


def test_one_owner_is_forgotten_alone(paths: list[Path]) -> None:
    descriptors = Descriptors()
    mine = descriptors.acquire((1, 0), lambda: open_path(paths[0]))
    other = descriptors.acquire((2, 0), lambda: open_path(paths[1]))
    descriptors.release(mine)
    descriptors.release(other)
    descriptors.forget_owner(1)
    assert not is_open(mine.fd)
    assert is_open(other.fd)
    descriptors.forget_owner(2)


def test_a_name_that_changed_while_it_was_opened_is_opened_again(paths: list[Path]) -> None:
    """`forget` between the open and its entry into the cache: the old inode is not kept."""
    descriptors = Descriptors()
    opened = []

    def opener() -> int:
        fd = open_path(paths[0])
        opened.append(fd)
        if len(opened) == 1:
            paths[1].rename(paths[0])
            descriptors.forget((1, 0))
        return fd

    found = descriptors.acquire((1, 0), opener)
    assert len(opened) == 2
    assert os.pread(found.fd, 10, 0) == b"1"
    descriptors.release(found)
    descriptors.forget_owner(1)


def test_two_threads_that_miss_together_share_one(paths: list[Path]) -> None:
    descriptors = Descriptors()
    barrier = threading.Barrier(2, timeout=5)
    found = []

    def opener() -> int:
        barrier.wait()
        return open_path(paths[0])

    threads = [
        threading.Thread(target=lambda: found.append(descriptors.acquire((1, 0), opener)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert found[0] is found[1]
    assert found[0].pins == 2
    descriptors.release(found[0])
    descriptors.release(found[1])
    descriptors.forget_owner(1)
    assert not is_open(found[0].fd)
