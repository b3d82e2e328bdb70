"""From an exception to one line, one object and one exit code.

A user reads: class, what happened, the object, what to do next. A traceback is a bug report and is
printed only with ``--debug``. Whatever the text came from, a URL loses its query and its user part
here as well, so that no credential reaches a terminal or a log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import click

from swarm.cli.interrupts import Interrupted
from swarm.cli.output import one_line
from swarm.errors import SwarmError, UsageError
from swarm.http.messages import Json

INTERRUPTED = "E_INTERRUPTED"
_URL = re.compile(
    r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)(?:[^\s/@'\"]*@)?(?P<rest>[^\s?'\"]*)(?:\?[^\s'\"]*)?"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a command ended, in words for people and for machines."""

    # E_INPUT, …
    error_class: str
    exit_code: int
    message: str
    object_name: str
    hint: str

    def line(self) -> str:
        """``error: E_INPUT: what (object) — hint``, on one line whatever the message holds. To be
        stopped is no error: it is how an agent ends."""
        if self.error_class == INTERRUPTED:
            return self.message
        text = f"error: {self.error_class}: {self.message}"
        if self.object_name and self.object_name not in self.message:
            text += f" ({self.object_name})"
        if self.hint:
            text += f" — {self.hint}"
        return one_line(text)

    def document(self) -> Json:
        return {
            "error": {
                "class": self.error_class,
                "code": self.exit_code,
                "message": self.message,
                "object": self.object_name,
                "hint": self.hint,
            }
        }


def failure_of(error: BaseException) -> Failure:
    """What to tell about `error`."""
    cause = root_cause(error)
    match cause:
        case SwarmError():
            found = Failure(
                cause.code, cause.exit_code, cause.message, cause.object_name, cause.hint
            )
        case click.ClickException():
            found = _usage(cause)
        case Interrupted():
            found = Failure(INTERRUPTED, cause.exit_code, f"stopped by {cause}", "", "")
        case KeyboardInterrupt() | click.Abort():
            found = Failure(INTERRUPTED, 130, "stopped by SIGINT", "", "")
        case _:
            what = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
            found = Failure("E_INTERNAL", 1, what, "", "run with --debug for the traceback")
    return Failure(
        found.error_class,
        found.exit_code,
        without_secrets(found.message),
        without_secrets(found.object_name),
        without_secrets(found.hint),
    )


def root_cause(error: BaseException) -> BaseException:
    """The exception that decides: of a group the first that nobody planned, else an interruption,
    else the first planned one."""
    leaves = list(_leaves(error))
    for leaf in leaves:
        if not isinstance(leaf, SwarmError | Interrupted | KeyboardInterrupt):
            return leaf
    for leaf in leaves:
        if isinstance(leaf, Interrupted | KeyboardInterrupt):
            return leaf
    return leaves[0]


def without_secrets(text: str) -> str:
    """`text` with each URL cut down to scheme, host and path."""
    return _URL.sub(lambda match: match["scheme"] + match["rest"], text)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _usage(error: click.ClickException) -> Failure:
    """The parser's complaint, in the style of all others."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context is not None else "swarm"
    message = error.format_message().rstrip(".")
    message = message[:1].lower() + message[1:]
    return Failure(UsageError.code, UsageError.exit_code, message, path, f"see `{path} --help`")
