"""Errors as one line: class, object, cause, next step, and never a secret."""

from __future__ import annotations

import click
import pytest

from swarm.cli.failures import failure_of, without_secrets
from swarm.cli.interrupts import Interrupted
from swarm.errors import AuthError, InputError, OriginError, SwarmError


def test_the_object_is_added_where_the_message_does_not_name_it() -> None:
    error = InputError("not what it should be", object_name="a.safetensors", hint="fix it")
    assert failure_of(error).line() == (
        "error: E_INPUT: not what it should be (a.safetensors) — fix it"
    )
    named = InputError("a.safetensors is truncated", object_name="a.safetensors")
    assert failure_of(named).line() == "error: E_INPUT: a.safetensors is truncated"


def test_a_message_of_many_lines_becomes_one() -> None:
    assert "\n" not in failure_of(InputError("one\ntwo\r\n  three", hint="a\nb")).line()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "GET https://b.s3.amazonaws.com/k?X-Amz-Signature=abc&X-Amz-Credential=d failed",
            "GET https://b.s3.amazonaws.com/k failed",
        ),
        ("http://user:secret@host:80/a/b: 403", "http://host:80/a/b: 403"),
        ("s3://models/w and file:///srv/w", "s3://models/w and file:///srv/w"),
        ("is it there? yes", "is it there? yes"),
    ],
)
def test_a_url_is_shown_without_its_secrets(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
    assert failure_of(OriginError(text, hint=text)).hint == shown


def test_a_bug_is_told_apart_and_points_to_debug() -> None:
    failure = failure_of(ZeroDivisionError("division by zero"))
    assert (failure.error_class, failure.exit_code) == ("E_INTERNAL", 1)
    assert "--debug" in failure.line()


def group(*errors: BaseException) -> BaseException:
    return BaseExceptionGroup("tasks", [errors[0], BaseExceptionGroup("inner", errors[1:])])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (group(AuthError("a"), OriginError("b")), AuthError.exit_code),
        (group(AuthError("a"), Interrupted(15)), 143),
        (group(AuthError("a"), Interrupted(15), KeyError("bug")), 1),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (SwarmError("x"), 1),
    ],
)
def test_of_a_group_a_bug_wins_then_the_interruption(error: BaseException, code: int) -> None:
    assert failure_of(error).exit_code == code
