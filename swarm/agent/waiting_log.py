"""Says in the log what an agent that is not done waits for, and how far it has come.

Silence is what people reported of every comparable tool: a node that stood still looked like one
that worked. So whatever is not READY is named at intervals, whether it moves or not; an agent with
nothing to do says nothing. Faults of open versions are logged where they are met.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from swarm.agent.status import transit_reasons, unready_reasons

if TYPE_CHECKING:
    from swarm.agent.agent import Agent

logger = logging.getLogger(__name__)

FIRST_S = 5.0
"""After the start: most of what is waited for has come by then."""
SILENCE_S = 20.0
"""Between two lines of a version; people begin to wonder after half a minute."""
LINES_MAX = 20
"""Of one look; a node with more than that in want has one cause for most of it."""


async def say_what_is_waited_for(
    agent: Agent, *, first_s: float = FIRST_S, silence_s: float = SILENCE_S
) -> None:
    """Until cancelled."""
    await trio.sleep(first_s)
    while True:
        reasons = unready_reasons(agent) + transit_reasons(agent)
        for reason in reasons[:LINES_MAX]:
            logger.info("waiting: %s", reason)
        if len(reasons) > LINES_MAX:
            logger.info("waiting: and %d more, see `swarm status`", len(reasons) - LINES_MAX)
        await trio.sleep(silence_s)
