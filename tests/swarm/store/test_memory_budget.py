"""The memory store's budget follows the smaller of machine and container."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.store.memory_budget import memory_budget_bytes


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal: 4000 kB\nMemAvailable:    1000 kB\n")
    return path


def test_a_machine_without_a_limit_spends_four_fifths(tmp_path: Path, meminfo: Path) -> None:
    assert memory_budget_bytes(meminfo, tmp_path) == 819_200
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert memory_budget_bytes(meminfo, tmp_path) == 819_200


def test_a_container_spends_what_its_limit_leaves(tmp_path: Path, meminfo: Path) -> None:
    (tmp_path / "memory.max").write_text("500000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert memory_budget_bytes(meminfo, tmp_path) == 80_000
    (tmp_path / "memory.current").write_text("600000\n")
    assert memory_budget_bytes(meminfo, tmp_path) == 0
