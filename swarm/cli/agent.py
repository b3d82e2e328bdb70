"""``swarm agent``: the process beside the serving engine that fetches, serves and hands over."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from swarm.cli.agent_options import agent_options, agent_settings
from swarm.cli.interrupts import Interrupts
from swarm.cli.logs import LEVELS, start_logging
from swarm.cli.options import common, setting, together

if TYPE_CHECKING:
    from swarm.agent.agent import Agent

logger = logging.getLogger(__name__)

_CLEAN_UP_S = 5.0
"""After the leave grace: closing the store and the clients."""


@click.command()
@together(
    setting("cache", "Where versions are kept; one agent a cache.", parse=Path, metavar="DIR"),
    setting("version", "Fetch and serve this version; repeatable.", metavar="REF"),
    setting("channel", "Follow this channel; repeatable.", metavar="NAME"),
)
@agent_options
@setting("log-level", "How much to log on stderr.", choices=LEVELS, default="info")
@common
@click.pass_context
def agent(
    context: click.Context,
    /,
    cache: Path | None,
    version: tuple[str, ...],
    channel: tuple[str, ...],
    log_level: str,
    **_flags: object,
) -> None:
    """Keep versions on this node and serve them to others, until SIGTERM.

    On SIGTERM the agent says goodbye, finishes the chunks in flight and ends with 143.
    """
    if cache is None:
        raise click.UsageError("missing option --cache", context)
    start_logging(log_level)
    settings = replace(agent_settings(context, cache), versions=version, channels=channel)
    interrupts = context.find_object(Interrupts)
    assert interrupts is not None
    from swarm.agent.run import run_agent

    interrupts.run(
        partial(run_agent, settings, on_start=_started),
        grace_s=settings.leave_grace_s + _CLEAN_UP_S,
    )


def _started(agent: Agent) -> None:
    logger.info(
        "node %s, generation %d, cache %s",
        agent.identity.node_id.hex(),
        agent.identity.generation,
        agent.settings.cache,
    )
