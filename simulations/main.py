"""``swarm-sim``: ask the simulator.

Data goes to stdout, words to stderr; with ``--json`` stdout gets exactly one object. A run that
breaks a rule, or in which somebody is left without the version, ends with 1 and the command that
repeats it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from simulations.commands.calibrate import calibrate_command
from simulations.commands.plan import plan
from simulations.commands.replay import replay
from simulations.commands.run import run
from simulations.commands.sweep import sweep
from swarm.errors import SwarmError, UsageError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def cli() -> None:
    """Whole fleets in virtual time, decided by the very policy that production runs."""


cli.add_command(run)
cli.add_command(sweep)
cli.add_command(plan)
cli.add_command(calibrate_command)
cli.add_command(replay)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script: one line and one exit code for each class of error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    code: object = None
    try:
        # What `Context.exit` was given; None of a command that just returns.
        code = cli.main(given, "swarm-sim", standalone_mode=False)
    except click.ClickException as error:
        _fail(UsageError(error.format_message(), hint="see `swarm-sim --help`"), given)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except SwarmError as error:
        _fail(error, given)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(error: SwarmError, given: Sequence[str]) -> NoReturn:
    hint = f" — {error.hint}" if error.hint else ""
    click.echo(f"error: {error.code}: {error.message}{hint}", err=True)
    if "--json" in given:
        told = {
            "class": error.code,
            "code": error.exit_code,
            "message": error.message,
            "object": error.object_name,
            "hint": error.hint,
        }
        click.echo(json.dumps({"error": told}))
    sys.exit(error.exit_code)
