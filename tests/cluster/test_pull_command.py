"""`pull` as a user sees it: progress in a log and on a terminal, Ctrl-C, resuming."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm.cli.demo_processes import accepts, free_ports
from tests.support.command_line import SWARM, environment, error_class, swarm

pytestmark = pytest.mark.cluster

SIZE = 6_000_000
LINE = re.compile(r"fetching \d+% \| .+ of 6\.00 MB \| .+B/s \| .*\d+ peers \| .+")


@pytest.fixture
def version(tmp_path: Path) -> str:
    """A published version of 6 MB; its origin is `tmp_path`/origin."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.bin").write_bytes(os.urandom(SIZE))
    origin = f"file://{tmp_path}/origin"
    chunk_size = ("--chunk-size", "64KiB")
    done = swarm("publish", str(tmp_path / "model"), "--origin", origin, *chunk_size)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextlib.contextmanager
def served(directory: Path, rate: str) -> Iterator[str]:
    """The directory over HTTP at a rate; yields the URL."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "swarm.origin.range_server", str(directory)]
    command += ["--listen", f"127.0.0.1:{port}", "--rate", rate]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        give_up_at = time.monotonic() + 10
        while not accepts(port):
            assert time.monotonic() < give_up_at, "the range server does not start"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def test_a_log_gets_lines_and_ctrl_c_leaves_what_can_be_resumed(
    tmp_path: Path, version: str
) -> None:
    """At 300 kB/s the whole takes 20 s: after 12 s there is a line from the middle."""
    directory, log = tmp_path / "pulled", tmp_path / "log"
    with served(tmp_path / "origin", "300kB/s") as url, log.open("wb") as stream:
        process = subprocess.Popen(
            [*SWARM, "pull", version, str(directory), "--origin", url, "--json"],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=stream,
        )
        time.sleep(12)
        assert process.poll() is None, log.read_text()
        interrupted_at = time.monotonic()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=10)
        assert time.monotonic() - interrupted_at < 5
    assert process.returncode == 130
    assert json.loads(output)["error"]["class"] == "E_INTERRUPTED"
    text = log.read_text()
    assert "Traceback" not in text
    assert not set("\r\x1b") & set(text)
    lines = [line for line in text.splitlines() if LINE.fullmatch(line)]
    assert len(lines) >= 2, text
    assert "eta" not in lines[0], "at the start nobody knows"
    assert "from origin" in lines[-1]
    assert all("| eta " in line for line in lines[1:])
    assert not (directory / "weights.bin").exists()

    done = swarm("pull", version, str(directory), "--origin", f"file://{tmp_path}/origin", "--json")
    document = json.loads(done.stdout)
    assert document["ready"] is True
    assert document["bytes_by_source"]["local"] > SIZE // 10
    assert sum(document["bytes_by_source"].values()) == document["bytes"]
    assert (directory / "weights.bin").stat().st_size == SIZE


def test_a_terminal_gets_a_bar_and_stdout_one_object(tmp_path: Path, version: str) -> None:
    origin = f"file://{tmp_path}/origin"
    leader, follower = pty.openpty()
    try:
        done = subprocess.run(
            [*SWARM, "pull", version, str(tmp_path / "p"), "--origin", origin, "--json"],
            env=environment(TERM="xterm", COLUMNS="120"),
            stdout=subprocess.PIPE,
            stderr=follower,
            timeout=30,
            check=True,
        )
        os.close(follower)
        drawn = read_all(leader)
    finally:
        os.close(leader)
    assert json.loads(done.stdout)["bytes"] == SIZE
    assert "100%" in drawn
    assert "\x1b[" in drawn


def read_all(fd: int) -> str:
    """What was written to a terminal whose other side is closed."""
    pieces = []
    with contextlib.suppress(OSError):
        while piece := os.read(fd, 65536):
            pieces.append(piece)
    return b"".join(pieces).decode()


def test_json_progress_never_falls(tmp_path: Path, version: str) -> None:
    origin = ("--origin", f"file://{tmp_path}/origin")
    done = swarm("pull", version, str(tmp_path / "p"), *origin, "--progress", "json")
    assert done.stdout.strip() == str(tmp_path / "p")
    looks = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    fetching = [look["percent"] for look in looks if look["phase"] in ("fetching", "ready")]
    assert fetching == sorted(fetching)
    assert fetching[-1] == 100


def test_refusals(tmp_path: Path, version: str) -> None:
    directory = str(tmp_path / "p")
    origin = ("--origin", f"file://{tmp_path}/origin")
    assert error_class(swarm("pull", version, directory)) == "E_USAGE"
    assert error_class(swarm("pull", "model@v1", directory, *origin)) == "E_USAGE"
    assert error_class(swarm("pull", "ab" * 32, directory, *origin)) == "E_NOTFOUND"
    gone = ("--origin", "http://127.0.0.1:1", "--stall-timeout", "1")
    assert error_class(swarm("pull", version, directory, *gone)) == "E_STALLED"
    limit = ("--downlink-limit", "10G")
    refused = swarm("pull", version, directory, *origin, *limit)
    assert error_class(refused) == "E_USAGE"
    assert "bit or byte" in refused.stderr
    memory = swarm("pull", version, directory, *origin, "--store", "memory")
    assert error_class(memory) == "E_USAGE"


def test_the_downlink_limit_holds_for_the_origin(tmp_path: Path, version: str) -> None:
    """At a third of the version a second, within the burst that the bucket allows."""
    origin = ("--origin", f"file://{tmp_path}/origin")
    limit = ("--downlink-limit", f"{SIZE // 3}B/s")
    done = swarm("pull", version, str(tmp_path / "p"), *origin, *limit, "--json")
    assert 2.5 < json.loads(done.stdout)["seconds"] < 10
