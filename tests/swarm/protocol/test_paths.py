"""Which names a version may hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.protocol.paths import directory_conflict, path_problem


@pytest.mark.parametrize(
    "path",
    [
        "config.json", "unet/model/model.ckpt", "a\\b", "CON", "with space", "ünï/模型.bin", "...",
        "..a", "x/.swarm", ".swarmx", "a" * 255, "/".join(["d" * 200] * 20), ".keep", "-x", "a:b",
    ],
)  # fmt: skip
def test_ordinary_names_are_kept(path: str) -> None:
    assert path_problem(path) is None


@pytest.mark.parametrize(
    "path",
    [
        "", "/etc/passwd", "../../etc/passwd", "a/../../x", "a//b", "a/", ".", "..", "a/./b",
        "a\0b", "a\nb", "a\x7fb", "a\x85b", "\x1b[2J", "x" * 5000, "x" * 256, "é" * 128,
        "d/" + "x" * 256, ".swarm", ".swarm/state", ".SWARM/x", ".ſwarm/x", "bad\udcff",
    ],
)  # fmt: skip
def test_names_that_could_leave_the_directory_or_hide_are_refused(path: str) -> None:
    assert path_problem(path)


@pytest.mark.parametrize(
    ("paths", "conflict"),
    [
        ([], None),
        (["a", "a-b", "b/a"], None),
        (["a", "a-b", "a/b"], ("a", "a/b")),
        (["a/b", "a/b/c/d"], ("a/b", "a/b/c/d")),
        (["x", "x"], ("x", "x")),
        (["A", "a/b"], None),
    ],
)
def test_a_file_that_is_also_a_directory_is_found(
    paths: list[str], conflict: tuple[str, str] | None
) -> None:
    assert directory_conflict(paths) == conflict
    assert directory_conflict(reversed(paths)) == conflict


COMPONENT = st.text("ab-./"[:3], min_size=1, max_size=2)


@given(st.lists(st.lists(COMPONENT, min_size=1, max_size=3).map("/".join), max_size=8))
def test_conflicts_agree_with_comparing_all_pairs(paths: list[str]) -> None:
    by_pairs = any(
        left == right or right.startswith(left + "/")
        for i, left in enumerate(paths)
        for j, right in enumerate(paths)
        if i != j
    )
    assert (directory_conflict(paths) is not None) == by_pairs
