"""The command ``swarm``: which commands there are, and how every one of them ends.

A command is imported when it is used, and imports what is heavy (trio, httpx, botocore, rich) where
it needs it: on a small machine a dozen agents start at once, and ``--help`` should answer at once.
Whatever a command raises ends here as one line on stderr, with ``--json`` one object on stdout, and
the exit code of its class.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from swarm.cli.failures import failure_of
from swarm.cli.interrupts import Interrupted, Interrupts
from swarm.cli.output import note, print_json
from swarm.config import check_environment
from swarm.errors import EXIT_CODES, UsageError

COMMANDS = (
    "publish", "pull", "agent", "wait", "run", "status", "verify", "channel", "versions", "cache",
    "control", "keys", "bench", "demo",
)  # fmt: skip
"""In the order of ``--help``; each is the object of that name in ``swarm.cli.<name>``."""
GC_THRESHOLD = 20_000
"""New objects between two collections. With Python's 700 they took a twentieth of the CPU of a pull
of 1 GiB, most of it while modules were loaded, and found nothing."""


def _exit_code_table() -> str:
    cells = [f"{name} {code}" for name, code in sorted(EXIT_CODES.items(), key=lambda x: x[1])]
    cells = ["success 0", "E_INTERNAL 1", *cells, "SIGINT 130", "SIGTERM 143"]
    rows = [cells[start : start + 4] for start in range(0, len(cells), 4)]
    return "\n".join("  ".join(f"{cell:<17}" for cell in row).rstrip() for row in rows)


class CommandTable(click.Group):
    """The commands by name, imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"swarm.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise UsageError(f"no command {args[0]!r}", object_name="swarm", hint=_nearest(args[0]))
        return super().resolve_command(ctx, args)


@click.command(
    cls=CommandTable,
    no_args_is_help=False,
    epilog=f"Exit codes:\n\n\b\n{_exit_code_table()}",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="weightswarm", prog_name="swarm")
def swarm() -> None:
    """Start a fleet of GPU nodes on the same weights: each byte leaves the origin about once, and
    nodes serve each other while they download.

    Settings: a flag wins over its SWARM_… variable, that over the file of --config.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script: run a command and exit with its code."""
    gc.set_threshold(GC_THRESHOLD)
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run(given, Interrupts()))


def run(arguments: list[str], interrupts: Interrupts) -> int:
    """Run one command; its exit code."""
    try:
        with interrupts.watched():
            check_environment(os.environ)
            result = swarm.main(arguments, "swarm", standalone_mode=False, obj=interrupts)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has gone; nothing is left to say, and to nobody.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, Interrupted, KeyboardInterrupt, BaseExceptionGroup) as error:
        # The one place where any exception ends: it becomes a line and an exit code.
        return _report(error, arguments)
    return result if isinstance(result, int) else 0


def _report(error: BaseException, arguments: list[str]) -> int:
    failure = failure_of(error)
    if _has_flag(arguments, "--debug"):
        traceback.print_exception(error)
    note(failure.line())
    if _has_flag(arguments, "--json"):
        print_json(failure.document())
    return failure.exit_code


def _has_flag(arguments: list[str], flag: str) -> bool:
    """Looked up in the raw words, because errors of the parser itself obey it as well."""
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return flag in ours


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, COMMANDS, n=1)
    return f"did you mean {close[0]}?" if close else "see `swarm --help`"
