"""The demonstration itself: it ends in time, says the truth, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.command_line import SWARM, environment, swarm

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("origin", [(), ("--s3",)])
def test_a_small_fleet_shares_one_copy(tmp_path: Path, origin: tuple[str, ...]) -> None:
    """The rate is low enough for a busy machine, so that the ratio is the swarm's own."""
    size = ("--nodes", "3", "--size", "16MiB", "--rate", "64Mbit/s")
    done = swarm("demo", *size, *origin, "--json", timeout_s=90, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["ready"] is True
    assert document["nodes"] == 3
    assert sum(document["bytes_by_source"].values()) == 3 * document["bytes"]
    assert 1.0 <= document["origin_copies"] < 1.5
    assert document["bytes_by_source"]["peer_same_zone"] > document["bytes"]
    assert document["time_ratio"] > 0.9
    assert not list(tmp_path.iterdir())


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*SWARM, "demo", "--nodes", "2", "--size", "64MiB", "--rate", "8Mbit/s"],
        env=environment(TMPDIR=str(tmp_path)),
        stderr=subprocess.PIPE,
        text=True,
    )
    give_up_at = time.monotonic() + 40
    while len(children := descendants(process.pid)) < 4 and time.monotonic() < give_up_at:
        time.sleep(0.1)
    assert len(children) >= 4, "tracker, origin and two agents"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "stopped by SIGINT"
    assert not [pid for pid in children if is_running(pid)]
    assert not list(tmp_path.iterdir())


def test_a_killed_demonstration_takes_its_processes_along(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*SWARM, "demo", "--nodes", "1", "--size", "64MiB", "--rate", "8Mbit/s"],
        env=environment(TMPDIR=str(tmp_path)),
        stderr=subprocess.DEVNULL,
    )
    give_up_at = time.monotonic() + 40
    while len(children := descendants(process.pid)) < 3 and time.monotonic() < give_up_at:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(5)
    while any(is_running(pid) for pid in children) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    assert not any(is_running(pid) for pid in children)


def descendants(pid: int) -> list[int]:
    """The children of a process, as the kernel lists them."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except FileNotFoundError:
        return []
    return [int(word) for word in text.split()]


def is_running(pid: int) -> bool:
    """Not gone, and no zombie that waits for its new parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
