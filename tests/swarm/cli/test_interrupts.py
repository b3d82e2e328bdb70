"""One signal ends a command in seconds, two at once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from swarm.cli.interrupts import Interrupts
from tests.support.command_line import SWARM, environment

# Each prints "on" and then waits in another way: in plain code, under trio, under trio with a
# clean-up that does not end, in a loop that never lets trio run.
PLAIN = "print('on', flush=True); time.sleep(30)"
UNDER_TRIO = """
async def main():
    print('on', flush=True)
    await trio.sleep(30)
interrupts.run(main)
"""
STUBBORN = """
async def main():
    try:
        print('on', flush=True)
        await trio.sleep(30)
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(30)
interrupts.run(main, grace_s=GRACE)
"""
BUSY = """
async def main():
    print('on', flush=True)
    while True: pass
interrupts.run(main, grace_s=GRACE)
"""


def start(body: str, grace_s: float = 30.0) -> subprocess.Popen[str]:
    inner = "\n".join("    " + line for line in body.strip().splitlines())
    script = (
        "import sys, time, trio\n"
        "from swarm.cli.failures import failure_of\n"
        "from swarm.cli.interrupts import Interrupts\n"
        f"GRACE = {grace_s}\n"
        "interrupts = Interrupts()\n"
        "try:\n"
        "  with interrupts.watched():\n"
        f"{inner}\n"
        "except BaseException as error:\n"
        "    failure = failure_of(error)\n"
        "    print(failure.line(), file=sys.stderr)\n"
        "    sys.exit(failure.exit_code)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    return process


def end_of(process: subprocess.Popen[str], within_s: float) -> tuple[int, str]:
    started = time.monotonic()
    _, errors = process.communicate(timeout=20)
    assert time.monotonic() - started < within_s
    return process.returncode, errors


@pytest.mark.parametrize("body", [PLAIN, UNDER_TRIO])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_ends_a_command(body: str, number: signal.Signals, code: int) -> None:
    process = start(body)
    process.send_signal(number)
    found, errors = end_of(process, within_s=3)
    assert found == code
    assert errors == f"stopped by {number.name}\n"


@pytest.mark.parametrize("body", [STUBBORN, BUSY])
def test_a_second_signal_ends_it_at_once(body: str) -> None:
    process = start(body)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    process.send_signal(signal.SIGINT)
    assert end_of(process, within_s=1) == (130, "")


@pytest.mark.parametrize("body", [STUBBORN, BUSY])
def test_a_clean_up_that_does_not_end_is_ended(body: str) -> None:
    process = start(body, grace_s=0.5)
    process.send_signal(signal.SIGTERM)
    assert end_of(process, within_s=3) == (143, "")


def test_a_command_that_waits_ends_without_a_traceback() -> None:
    process = subprocess.Popen(
        [*SWARM, "wait", "ab" * 32, "--cache", "/nonexistent", "--json"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=5)
    assert process.returncode == 143
    assert errors.endswith("\nstopped by SIGTERM\n")
    assert "Traceback" not in errors
    assert '"code": 143' in output


def test_a_result_comes_back() -> None:
    async def answer() -> int:
        return 42

    assert Interrupts().run(answer) == 42
