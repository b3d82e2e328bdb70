"""One simulated run as every command needs it: with its rules checked, and repeatable when one of
them breaks.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from simulations.checks import CheckFailed, Checks
from simulations.cluster import Cluster
from simulations.measure import Outcome
from simulations.scenario import Scenario
from swarm.errors import SwarmError

Watch = Callable[[Cluster], None]
"""Is given the cluster before it runs; may look at it from the timeline and change nothing."""


class FailedRun(SwarmError):
    """A rule of the simulation is broken, or somebody is left without the version: a bug of ours,
    or a scenario that cannot end. The hint is the command that shows it."""

    def __init__(self, message: str, command: str) -> None:
        super().__init__(message, object_name=command, hint=f"repeat with: {command}")


def simulate(scenario: Scenario, seed: int, command: str, *, watch: Watch | None = None) -> Outcome:
    """Run until every living node has the version; `command` repeats it. Raises FailedRun."""
    try:
        cluster = Cluster(scenario, seed, checks=Checks(is_sparse=True))
        if watch is not None:
            watch(cluster)
        outcome = cluster.run()
        cluster.require_finished()
    except (CheckFailed, AssertionError) as error:
        raise FailedRun(str(error) or repr(error), command) from error
    return outcome


def repeat_command(verb: str, file: str, seed: int, settings: Sequence[str]) -> str:
    """What a shell has to be told to see that again."""
    words = [f"--set={setting}" for setting in settings]
    return shlex.join(["swarm-sim", verb, file, f"--seed={seed}", *words])


def commit_of_code() -> str:
    """Of the code that runs; "" outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
