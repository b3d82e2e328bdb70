"""`swarm bench fleet`: one machine serves a made-up model, another measures and writes a profile.

Both sides are agents as they run in production, with the cluster's key: what is measured is what a
fleet gets, handshakes, hashing and disk included.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import trio

from swarm.agent.agent import Agent
from swarm.agent.run import run_agent
from swarm.agent.settings import AgentSettings
from swarm.bench.machine import (
    measure_disk,
    measure_hashing,
    measure_process_start,
    this_machine,
)
from swarm.bench.network import measure_network, now_utc
from swarm.bench.payload import Payload, make_payload
from swarm.bench.store_reads import measure_origin
from swarm.capacity.profile import AgentProfile, NetworkProfile, OriginProfile, Profile
from swarm.errors import PermissionDeniedError

POLL_S = 0.05
NIC_BYTES_PER_S = 50_000_000_000
"""What both sides are told their cards give where nothing else is said: an agent that guesses its
card paces itself by the guess, and here it is what the card gives that is asked for."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What is measured, and how much it may take."""

    # Of the made-up model, and of each measurement of disk and origin.
    byte_count: int
    # Of each measurement.
    limit_s: float
    # "" leaves the origin out.
    origin: str
    object_key: str
    # The command line, for the profile.
    command: str


async def serve(
    settings: AgentSettings,
    byte_count: int,
    for_s: float,
    on_ready: Callable[[Agent, Payload], None],
) -> None:
    """Offer the payload for `for_s` seconds; `on_ready` hears when it can be fetched."""
    with _workplace(settings.cache) as work:
        payload = await make_payload(work, byte_count)
        own = replace(
            settings,
            cache=work / "cache",
            origin=payload.origin,
            peers=(),
            nic_bytes_per_s=settings.nic_bytes_per_s or NIC_BYTES_PER_S,
            versions=(payload.large.hex(), payload.small.hex()),
        )
        agents: list[Agent] = []
        with trio.move_on_after(for_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_run, own, agents)
                while not agents or not _is_ready(agents[0], payload):  # noqa: ASYNC110
                    # Once in an agent's life, and it has nobody to tell of being ready.
                    await trio.sleep(POLL_S)
                on_ready(agents[0], payload)


async def _run(settings: AgentSettings, agents: list[Agent]) -> None:
    await run_agent(settings, on_start=agents.append)


def _is_ready(agent: Agent, payload: Payload) -> bool:
    return agent.shelf.is_ready(payload.large) and agent.shelf.is_ready(payload.small)


async def measure(settings: AgentSettings, plan: BenchPlan, say: Callable[[str], None]) -> Profile:
    """Everything that can be measured from here: this machine, the network to `settings.peers` if
    there are any, and the origin if there is one."""
    notes: list[str] = []
    network, agent, origin = NetworkProfile(), AgentProfile(), OriginProfile()
    with _workplace(settings.cache) as work:
        say("hashing and disk")
        hashing = await trio.to_thread.run_sync(measure_hashing)
        disk = await trio.to_thread.run_sync(measure_disk, work, plan.byte_count, plan.limit_s)
        say("the start of an agent")
        start_s = await trio.to_thread.run_sync(measure_process_start, work)
        if settings.peers:
            say(f"the network to {', '.join(map(str, settings.peers))}")
            payload = await make_payload(work, plan.byte_count)
            nic = settings.nic_bytes_per_s or NIC_BYTES_PER_S
            told = replace(settings, nic_bytes_per_s=nic)
            network, agent, notes = await measure_network(told, payload, work, plan.limit_s)
        if plan.origin:
            say(f"the origin {plan.origin}")
            origin = await measure_origin(
                plan.origin, plan.object_key, plan.byte_count, plan.limit_s
            )
    return Profile(
        measured_at=now_utc(),
        command=plan.command,
        machine=this_machine(),
        network=network,
        agent=replace(agent, process_start_s=start_s),
        disk=disk,
        hashing=hashing,
        origin=origin,
        notes=tuple(notes),
    )


@contextmanager
def _workplace(parent: Path) -> Iterator[Path]:
    """A directory on the disk that is measured, removed afterwards."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        place = tempfile.TemporaryDirectory(prefix="swarm-bench-", dir=parent)
    except OSError as error:
        raise PermissionDeniedError(
            f"cannot write to {parent}: {error.strerror}",
            object_name=str(parent),
            hint="name a directory on the cache's disk with --cache",
        ) from error
    with place:
        yield Path(place.name)
