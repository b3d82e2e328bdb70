"""An agent's life around its run: start it, let the caller wait for what it came for, leave well.

A cancellation from outside (a signal) must not reach the agent's tasks before it has said Bye and
let the chunks in flight end, so they run in a shielded scope that only `serving` itself ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from swarm.agent.agent import Agent
from swarm.errors import SwarmError
from swarm.protocol.ids import Address


@asynccontextmanager
async def serving(agent: Agent) -> AsyncIterator[Address]:
    """Run `agent` while the body runs; yields the address that peers connect to. What the body
    raises is raised as it is, after the agent has left."""
    is_over = trio.Event()
    failure: SwarmError | None = None
    async with trio.open_nursery() as outer:
        bound = await outer.start(_run_until, agent, is_over)
        try:
            yield bound
        except SwarmError as error:
            # Raised below, outside the nursery, which would wrap it in a group.
            failure = error
        finally:
            is_over.set()
    if failure is not None:
        raise failure


async def _run_until(
    agent: Agent, is_over: trio.Event, *, task_status: trio.TaskStatus[Address]
) -> None:
    try:
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                task_status.started(await nursery.start(agent.run))
                await is_over.wait()
                await agent.leave()
                nursery.cancel_scope.cancel()
    finally:
        await agent.close()
