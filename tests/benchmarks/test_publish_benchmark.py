"""The publishing benchmark measures what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.publish import measure


def test_both_are_measured_on_the_same_bytes(tmp_path: Path) -> None:
    size, chunk_bytes = 4_000_001, 1 << 18
    outcome = measure(tmp_path, size, chunk_bytes, rounds=2)
    assert (outcome.bytes, outcome.chunk_bytes, outcome.rounds) == (size, chunk_bytes, 2)
    assert outcome.chunks == 1 + 16
    assert outcome.ratio == pytest.approx(
        outcome.swarm_gb_per_s / outcome.blake3_gb_per_s, rel=0.05
    )
    assert outcome.swarm_core_s_per_gb > 0
