"""What `wait` and `run` share: where to look for a version, and the wait itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from swarm.cli.local_version import (
    Look,
    is_local_reference,
    look_at_agent,
    look_in_cache,
    wait_until_ready,
)
from swarm.cli.options import setting, together, tracker_options
from swarm.cli.tracker_access import resolve
from swarm.errors import UsageError
from swarm.units import parse_duration

ready_options = together(
    setting("cache", "Look in this cache directory.", parse=Path, metavar="DIR"),
    setting("socket", "Ask the agent at this Unix socket.", parse=Path, metavar="PATH"),
    setting(
        "timeout",
        "Give up with E_STALLED after so long.",
        parse=parse_duration,
        metavar="SECONDS",
        default="3600",
    ),
    tracker_options,
)


def ready_directory(context: click.Context, reference: str) -> str:
    """Wait for `reference` on this node as the flags say; the directory of its files."""
    cache: Path | None = context.params["cache"]
    socket: Path | None = context.params["socket"]
    look: Callable[[str], Look]
    if cache is not None:
        look = partial(look_in_cache, cache)
    elif socket is not None:
        look = partial(_look_at_socket, socket)
    else:
        raise UsageError(
            "nowhere to look", hint="give --cache DIR or --socket PATH of this node's agent"
        )
    wanted = reference if is_local_reference(reference) else resolve(context, reference)
    timeout_s: float = context.params["timeout"]
    return wait_until_ready(partial(look, wanted), reference=reference, timeout_s=timeout_s)


def _look_at_socket(socket: Path, reference: str) -> Look:
    from swarm.cli.agent_api import AgentPlace  # Imports the standard HTTP client.

    return look_at_agent(AgentPlace(socket=socket), reference)
