"""Runs the command line as users do: another process, its streams and its exit code.

`swarm` starts a new interpreter. `call` forks this one, which has everything imported already: the
same main function with its own streams, signals and exit code, for a fifth of the CPU. It is for
tests that have no thread of their own running.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from typing import NoReturn, TextIO, TypedDict

from swarm.cli.main import main

CALL_TIMEOUT_S = 20.0
"""On a machine that a dozen others share; alone the slowest takes 0.5 s."""
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


def call(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """As `swarm`, in a fork of this process."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with warnings.catch_warnings():
            # Python 3.12 warns where idle workers of an earlier test remain; trio forgets them in
            # the child, and nothing else of ours keeps threads.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            _become_command(list(arguments), variables, output, errors)
        code = _wait_for(child)
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, code, output.read(), errors.read())


def _become_command(
    arguments: list[str], variables: dict[str, str], output: TextIO, errors: TextIO
) -> NoReturn:
    """In the child: run the command with streams of its own; never comes back."""
    code = 99  # What no command ends with, should `main` fail to end itself.
    try:
        os.dup2(output.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        kept = environment(**variables)
        os.environ.clear()
        os.environ.update(kept)
        main(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _wait_for(child: int) -> int:
    """The exit code; kills a child that takes longer than any command here should."""
    give_up_at = time.monotonic() + CALL_TIMEOUT_S
    while time.monotonic() < give_up_at:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError(f"the command did not end within {CALL_TIMEOUT_S:g} s")


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
