"""The flags that commands share, each built from the name of its setting.

`setting` ties a flag to its environment variable and to its key in the TOML file, so the three can
not drift apart; the order of precedence is click's own: command line, variable, file, default.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click
from click.decorators import FC

from swarm import config
from swarm.errors import SwarmError
from swarm.protocol.ids import Address, parse_address

T = TypeVar("T")

PROGRESS_MODES = ("auto", "bar", "lines", "json", "none")


def parsed(parse: Callable[[str], T]) -> Callable[[str], T]:
    """`parse` with its UsageError as click's, which adds the name of the flag or variable."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except SwarmError as error:
            raise click.BadParameter(
                f"{error.message} — {error.hint}" if error.hint else error.message
            ) from error

    return convert


def parse_listen_address(text: str) -> Address:
    """``:7000`` listens on every interface."""
    return parse_address(f"0.0.0.0{text}" if text.startswith(":") else text)


def setting(
    name: str,
    help: str,
    *,
    metavar: str | None = None,
    parse: Callable[[str], object] = str,
    default: str | None = None,
    choices: tuple[str, ...] | None = None,
) -> Callable[[FC], FC]:
    """The flag of a setting of `swarm.config`; repeatable or a switch where the setting is."""
    assert name in config.SETTINGS, name
    flag, parameter, variable = f"--{name}", name.replace("-", "_"), config.variable(name)
    if name in config.SWITCHES:
        return click.option(flag, parameter, envvar=variable, is_flag=True, help=help)
    if name in config.TEXTS:
        return click.option(
            flag,
            parameter,
            envvar=variable,
            multiple=True,
            type=parsed(parse),
            metavar=metavar,
            help=help,
        )
    return click.option(
        flag,
        parameter,
        envvar=variable,
        type=click.Choice(choices) if choices else parsed(parse),
        metavar=metavar,
        default=default,
        show_default=default is not None,
        help=help,
    )


def together(*options: Callable[[FC], FC]) -> Callable[[FC], FC]:
    """Several options as one decorator; ``--help`` shows them in the order given."""

    def decorate(function: FC) -> FC:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _load_config(context: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    """Make the file's values this command's defaults."""
    if path is not None:
        values = config.read_config(path)
        context.default_map = {name.replace("-", "_"): value for name, value in values.items()}


def common(function: FC) -> FC:
    """What every command understands."""
    options: Callable[[FC], FC] = together(
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout."),
        click.option(
            "--config",
            envvar=config.variable("config"),
            type=Path,
            metavar="FILE",
            is_eager=True,
            expose_value=False,
            callback=_load_config,
            help="Read settings from a TOML file; flags and SWARM_… variables win over it.",
        ),
        click.option(
            "--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors."
        ),
    )
    return options(function)


progress_option = setting(
    "progress",
    "How to show progress on stderr: a bar on a terminal, else a line every 10 s.",
    choices=PROGRESS_MODES,
    default="auto",
)

tracker_options = together(
    setting("tracker", "A tracker; repeat for several.", metavar="URL"),
    setting(
        "cluster-key-file",
        "The key of the cluster, from `swarm keys new`.",
        parse=Path,
        metavar="FILE",
    ),
    setting(
        "operator-token-file",
        "The operators' token, where the tracker asks for one.",
        parse=Path,
        metavar="FILE",
    ),
)
