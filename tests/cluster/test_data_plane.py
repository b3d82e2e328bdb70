"""The data-plane benchmark in small: real processes of both systems, every byte verified."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.cluster
def test_both_systems_move_a_file_and_are_reported() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.data_plane", "--gib", "0.03", "--runs", "1", "--json"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    report = json.loads(done.stdout)
    assert set(report) == {"swarm", "libtorrent", "ratio"}
    for system in ("swarm", "libtorrent"):
        assert report[system]["gb_per_s"] > 0
        assert set(report[system]) == {
            "gb_per_s",
            "send_core_s_per_gb",
            "receive_core_s_per_gb",
        }
