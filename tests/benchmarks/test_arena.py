"""What a race reports about a system whose behaviour is known: one copy of the file per node, from
a plain HTTP server; and what it refuses to report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.arena import Arena, RaceError, Result, open_arena, race, say_go
from benchmarks.scenario import Scenario

pytestmark = pytest.mark.root

SCENARIO = Scenario(nodes=3, node_mbit=400, origin_mbit=100, file_mib=2)
PORT = 8000
FETCH = """
import pathlib, shutil, sys, time, urllib.request
sys.stdin.readline()
url, target = sys.argv[1], pathlib.Path(sys.argv[2])
with urllib.request.urlopen(url, timeout=20) as answer, target.open("wb") as file:
    shutil.copyfileobj(answer, file)
    file.write(sys.argv[3].encode())
if sys.argv[4] == "stays":
    target.with_suffix(".finished").touch()
    time.sleep(600)
"""


class PlainHttp:
    """Every node downloads from the origin; `tail` is added to each copy."""

    name = "http"

    def __init__(self, *, tail: str = "", then: str = "stays") -> None:
        self._tail = tail
        self._then = then
        self._clients: list[subprocess.Popen[bytes]] = []

    def prepare(self, arena: Arena) -> None:
        address = arena.lab.addresses["origin"]
        server = [sys.executable, "-m", "http.server", "--bind", address, str(PORT)]
        arena.start("origin", [*server, "--directory", str(arena.source)])
        url = f"http://{address}:{PORT}/{arena.file.name}"
        probe = f"import socket; socket.create_connection(({address!r}, {PORT}), timeout=1)"
        command = arena.lab.command("origin", [sys.executable, "-c", probe])
        arena.wait_until(
            lambda: subprocess.run(command, stderr=arena.log, check=False).returncode == 0,
            "server listens",
        )
        for node in arena.scenario.node_names():
            target = str(self.copy_of(arena, node))
            argv = [sys.executable, "-c", FETCH, url, target, self._tail, self._then]
            self._clients.append(arena.start(node, argv))

    def go(self, arena: Arena) -> None:
        say_go(self._clients)

    def is_finished(self, arena: Arena, node: str) -> bool:
        return self.copy_of(arena, node).with_suffix(".finished").exists()

    def copy_of(self, arena: Arena, node: str) -> Path:
        return arena.node_directory(node) / arena.file.name

    def node_processes(self) -> list[subprocess.Popen[bytes]]:
        return self._clients


def run(contestant: PlainHttp, parent: Path, *, limit_s: float = 20.0) -> Result:
    with open_arena(SCENARIO, parent) as arena:
        return race(contestant, arena, limit_s=limit_s)


def test_copies_times_and_cpu_are_those_of_plain_downloads(tmp_path: Path) -> None:
    """Three copies over the origin's card take three times the bound, less what the bucket lets
    through at once (0.25 of 2 MiB)."""
    result = run(PlainHttp(), tmp_path)
    assert (result.system, result.nodes) == ("http", 3)
    assert 3.0 < result.origin_copies < 3.2
    assert 2.5 < result.last_ratio < 9
    assert 0 < result.p50_ratio <= result.last_ratio
    assert 0 < result.cpu_s < 20
    assert list(tmp_path.iterdir()) == [], "the arena left files behind"


def test_a_wrong_copy_is_not_a_result(tmp_path: Path) -> None:
    with pytest.raises(RaceError, match="node0 has other bytes"):
        run(PlainHttp(tail="x"), tmp_path)


def test_a_process_that_ends_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(RaceError, match="ended"):
        run(PlainHttp(then="ends"), tmp_path)


def test_a_race_that_takes_too_long_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RaceError, match="0 s are over"):
        run(PlainHttp(), tmp_path, limit_s=0.05)
