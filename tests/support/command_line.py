"""Runs the command line as users do: another process, its streams and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TypedDict

SWARM = (sys.executable, "-m", "swarm.cli")


class ErrorDocument(TypedDict):
    """What ``--json`` prints under "error"."""

    code: int
    message: str
    object: str
    hint: str


def environment(**variables: str) -> dict[str, str]:
    """Ours, without settings that this machine may have."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SWARM_")}
    return kept | variables


def swarm(
    *arguments: str, timeout_s: float = 20.0, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SWARM, *arguments],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def failure(result: subprocess.CompletedProcess[str]) -> ErrorDocument:
    """The one error object on stdout, whose code is the exit code."""
    document = json.loads(result.stdout)
    assert list(document) == ["error"]
    assert list(document["error"]) == ["class", "code", "message", "object", "hint"]
    assert document["error"]["code"] == result.returncode
    error: ErrorDocument = document["error"]
    return error


def error_class(result: subprocess.CompletedProcess[str]) -> str:
    """The class on the one line of stderr."""
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return lines[0].split(": ")[1]
