"""A cache whose invariants are checked when the test is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.invariants import invariants
from tests.support.versions import MadeVersion, small_version


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "root"
    root.mkdir()
    (root / "neighbour.txt").write_text("not ours")
    with invariants(root / "cache"):
        yield root / "cache"


@pytest.fixture
def made() -> MadeVersion:
    return small_version()
