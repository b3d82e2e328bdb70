"""The swarm in a race, from outside: its command line, its files, nothing else.

SeaweedFS is the origin, the tracker has a host of its own, the agents follow a channel that is not
set yet. The race begins with `swarm channel set`, whose own start-up is part of the time, and a
node has finished when the version's READY file stands.
"""

from __future__ import annotations

import functools
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.arena import BUCKET, Arena

BIN = Path(sys.executable).parent
CHANNEL = "race"
REFERENCE = "model@v1"
TRACKER_PORT = 7070
AGENT_PORT = 7000
# From the last agent's first answer to the start: every agent has told the tracker and heard it.
SETTLE_S = 2.0


class Swarm:
    """One origin, one tracker, one agent per node."""

    name = "swarm"

    def __init__(self, *, has_traces: bool = False) -> None:
        self._has_traces = has_traces
        self._version = ""
        self._agents: list[subprocess.Popen[bytes]] = []
        self._tracker_flags: list[str] = []

    def prepare(self, arena: Arena) -> None:
        store = arena.start_object_store()
        self._start_tracker(arena)
        environment = store.environment()
        chunk_size = f"{arena.scenario.chunk_bytes // 1024}KiB"
        argv = _swarm("publish", str(arena.source), "--origin", f"s3://{BUCKET}/race", "--json")
        argv += ["--name", "model", "--tag", "v1", "--chunk-size", chunk_size]
        published = arena.run("origin", [*argv, *self._tracker_flags], environment)
        self._version = str(json.loads(published)["version"])
        for node in arena.scenario.node_names():
            argv = self._agent_command(arena, node)
            self._agents.append(arena.start(node, argv, environment))
        for node in arena.scenario.node_names():
            answers = functools.partial(_accepts, _socket_path(arena, node))
            arena.wait_until(answers, f"{node}: agent answers")
        time.sleep(SETTLE_S)

    def go(self, arena: Arena) -> None:
        argv = _swarm("channel", "set", CHANNEL, REFERENCE, *self._tracker_flags)
        arena.start("tracker", argv)

    def is_finished(self, arena: Arena, node: str) -> bool:
        return (self._directory(arena, node) / ".swarm" / "READY").exists()

    def copy_of(self, arena: Arena, node: str) -> Path:
        return self._directory(arena, node) / arena.file.name

    def trace_of(self, arena: Arena, node: str) -> Path:
        """What its agent writes down of the cold start, where that was asked for."""
        return arena.node_directory(node) / "trace.jsonl"

    def node_processes(self) -> list[subprocess.Popen[bytes]]:
        return self._agents

    def _directory(self, arena: Arena, node: str) -> Path:
        return arena.node_directory(node) / "cache" / "versions" / self._version

    def _start_tracker(self, arena: Arena) -> None:
        key = arena.work / "cluster.key"
        arena.run("tracker", _swarm("keys", "new", str(key)))
        listen = f"{arena.lab.addresses['tracker']}:{TRACKER_PORT}"
        argv = [str(BIN / "swarm-tracker"), "serve", "--listen", listen]
        argv += ["--store", f"sqlite:///{arena.work}/tracker.db", "--cluster-key-file", str(key)]
        arena.start("tracker", argv)
        url = f"http://{listen}"
        self._tracker_flags = ["--tracker", url, "--cluster-key-file", str(key)]
        probe = _swarm("channel", "list", "--json", *self._tracker_flags)
        arena.wait_until(lambda: _succeeds(arena, probe), "tracker answers")

    def _agent_command(self, arena: Arena, node: str) -> list[str]:
        directory = arena.node_directory(node)
        argv = _swarm("agent", "--origin", f"s3://{BUCKET}/race", "--channel", CHANNEL)
        argv += ["--cache", str(directory / "cache"), "--socket", str(_socket_path(arena, node))]
        argv += ["--listen", f"{arena.lab.addresses[node]}:{AGENT_PORT}", *self._tracker_flags]
        if self._has_traces:
            argv += ["--trace", str(self.trace_of(arena, node))]
        if arena.scenario.flow_cap_mbit is not None:
            argv += ["--flow-cap", f"{arena.scenario.flow_cap_mbit:g}Mbit/s"]
        return argv


def _swarm(*arguments: str) -> list[str]:
    return [str(BIN / "swarm"), *arguments]


def _socket_path(arena: Arena, node: str) -> Path:
    return arena.work / f"{node}.sock"


def _accepts(path: Path) -> bool:
    """Whether somebody listens on the Unix socket."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


def _succeeds(arena: Arena, argv: list[str]) -> bool:
    command = arena.lab.command("tracker", argv)
    done = subprocess.run(command, stdout=arena.log, stderr=arena.log, timeout=30, check=False)
    return done.returncode == 0
