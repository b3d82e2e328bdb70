"""Calling the tracker for an operator: the client, its key, and one call's life."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from swarm.cli.interrupts import Interrupts
from swarm.config import read_key
from swarm.errors import UsageError
from swarm.protocol.keys import KeyKind
from swarm.protocol.request_auth import Role

if TYPE_CHECKING:
    from swarm.agent.tracker_client import TrackerClient

T = TypeVar("T")


@asynccontextmanager
async def open_tracker(
    context: click.Context, role: Role = Role.OPERATOR
) -> AsyncIterator[TrackerClient | None]:
    """The trackers that the flags name, None if they name none; closed afterwards."""
    trackers: tuple[str, ...] = context.params["tracker"]
    if not trackers:
        yield None
        return
    key = operator_key(context)
    from swarm.agent.tracker_client import TrackerClient  # Imports trio.

    client = TrackerClient(trackers, key=key, role=role)
    try:
        yield client
    finally:
        await client.aclose()


def ask_tracker(
    context: click.Context,
    call: Callable[[TrackerClient], Awaitable[T]],
    *,
    role: Role = Role.OPERATOR,
) -> T:
    """Run one call against the trackers that the flags name; raises UsageError without any."""
    interrupts = context.find_object(Interrupts)
    assert interrupts is not None

    async def ask() -> T:
        async with open_tracker(context, role) as client:
            if client is None:
                raise UsageError(
                    "this needs a tracker",
                    object_name=context.command_path,
                    hint="give --tracker URL",
                )
            return await call(client)

    return interrupts.run(ask)


def operator_key(context: click.Context) -> bytes | None:
    """The operators' key if one is given, else the cluster's, which authorises operators where
    the tracker has no other."""
    token_file: Path | None = context.params["operator_token_file"]
    if token_file is not None:
        return read_key(token_file, KeyKind.OPERATOR)
    key_file: Path | None = context.params["cluster_key_file"]
    return read_key(key_file, KeyKind.CLUSTER) if key_file is not None else None


def resolve(context: click.Context, reference: str) -> str:
    """The version id, 64 hex, that the tracker has for a name; raises NotFoundError."""

    async def show(client: TrackerClient) -> str:
        return (await client.show_version(reference)).version.hex()

    if not context.params["tracker"]:
        raise UsageError(
            f"{reference!r} is a name, and names are known to the tracker only",
            object_name=reference,
            hint="give --tracker URL, or the version's 64 hex digits",
        )
    # Nodes have the cluster's key and no operator's; it is enough for a look-up.
    has_token = context.params["operator_token_file"] is not None
    return ask_tracker(context, show, role=Role.OPERATOR if has_token else Role.AGENT)


def caller_name() -> str:
    """user@host; in a container the user may have a number only."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid{os.geteuid()}"
    return f"{user}@{socket.gethostname()}"
