"""``swarm keys``: making the secrets that agents, trackers and operators share.

A key file is never overwritten: the fleet that uses the old key would be cut in two. An empty file
may be filled, because a script or a volume often makes the file first. The file is closed to others
before the key is in it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from pathlib import Path

import click

from swarm.cli.options import common
from swarm.cli.output import emit
from swarm.errors import ConflictError, InputError, LockedError, PermissionDeniedError, UsageError
from swarm.protocol.keys import KEY_BYTES, KeyKind, format_key


@click.group(no_args_is_help=False)
def keys() -> None:
    """Make the keys of a cluster."""


@keys.command()
@click.option(
    "--kind",
    type=click.Choice(["cluster", "operator", "signing"]),
    default="cluster",
    show_default=True,
    help="Whom the key lets in: agents and trackers, operators, or signers of versions.",
)
@click.argument("file", type=Path)
@common
def new(kind: str, file: Path, as_json: bool) -> None:
    """Write a new random key to FILE, mode 0600."""
    if kind == "signing":
        raise UsageError(
            "signing keys come with signed manifests, which this release does not have",
            object_name="--kind signing",
            hint="use --kind cluster or --kind operator",
        )
    write_new_key(file, format_key(KeyKind(kind), secrets.token_bytes(KEY_BYTES)))
    emit(
        {"file": str(file), "kind": kind},
        as_json=as_json,
        data=str(file),
        summary=f"new {kind} key; copy it to every node over a safe way and keep its mode 0600",
    )


def write_new_key(path: Path, line: str) -> None:
    """Put `line` into a file that does not exist or is empty; raises ConflictError otherwise."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise PermissionDeniedError(
            f"cannot write the key file {path}: {error.strerror}",
            object_name=str(path),
            hint="choose a directory that exists and that you may write to",
        ) from error
    try:
        _take_empty_file(fd, path)
        os.fchmod(fd, 0o600)
        os.write(fd, line.encode())
        os.fsync(fd)
    finally:
        os.close(fd)


def _take_empty_file(fd: int, path: Path) -> None:
    """Hold the file against a second writer, and see that nothing is in it."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is not a regular file", object_name=str(path))
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise LockedError(
            f"another process writes the key file {path}", object_name=str(path)
        ) from error
    if os.fstat(fd).st_size:
        raise ConflictError(
            f"{path} already holds something; keys are never overwritten",
            object_name=str(path),
            hint="choose another file name, or remove the file if no agent uses it",
        )
