"""``swarm run``: wait for a version, then become the command that uses it."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import NoReturn

import click

from swarm.cli.options import common
from swarm.cli.output import warn
from swarm.cli.ready_options import ready_directory, ready_options
from swarm.config import MODEL_DIRECTORY_VARIABLE
from swarm.errors import NotFoundError, StoreError, UsageError
from swarm.store.lock import ReaderLock
from swarm.store.readiness import is_ready


@click.command()
@click.argument("reference", metavar="REF")
@click.argument("command", metavar="-- CMD...", nargs=-1, required=True)
@ready_options
@common
@click.pass_context
def run(
    context: click.Context, /, reference: str, command: tuple[str, ...], **_flags: object
) -> None:
    """Wait until REF is ready on this node, then run CMD in this process's place.

    CMD finds the directory in SWARM_MODEL_DIR and wherever an argument says {dir} or {} (an
    argument that is a JSON document is left alone). The version is not evicted while CMD runs.
    The exit code is CMD's.
    """
    directory = ready_directory(context, reference)
    _hold_while_running(directory)
    become([placed(word, directory) for word in command], directory)


def placed(argument: str, directory: str) -> str:
    """`argument` with the directory in its places."""
    value = argument.partition("=")[2] if argument.startswith("-") else argument
    if value != "{}" and _is_json(value):
        return argument
    return argument.replace("{dir}", directory).replace("{}", directory)


def become(command: list[str], directory: str) -> NoReturn:
    """Replace this process; raises UsageError if there is no such program."""
    # Python ignores these, and what is ignored stays so in the next program.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], command, os.environ | {MODEL_DIRECTORY_VARIABLE: directory})
    except OSError as error:
        raise UsageError(
            f"cannot run {command[0]}: {error.strerror}",
            object_name=command[0],
            hint="name a program on the PATH after --",
        ) from error


def _hold_while_running(directory: str) -> None:
    """Keep the version from being evicted for as long as the command lives."""
    try:
        ReaderLock(directory).outlive_exec()
    except StoreError as error:
        # Some network file systems have no locks; the agent's own rules still protect the version.
        warn("no-reader-lock", error.message)
    if not is_ready(directory):
        raise NotFoundError(
            f"{directory} was evicted while the command started",
            object_name=directory,
            hint="pin the version, or raise the cache's budget",
        )


def _is_json(text: str) -> bool:
    if not text.startswith(("{", "[")):
        return False
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
