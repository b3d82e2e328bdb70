"""Putting an agent together from its settings, for the two commands that run one: `agent` and
`pull`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import trio

from swarm.agent.agent import Agent
from swarm.agent.discovery import find_trackers
from swarm.agent.local_api import serve_local_api
from swarm.agent.origin_client import OriginClient
from swarm.agent.rate_limit import RateLimit
from swarm.agent.serving import serving
from swarm.agent.settings import AgentSettings
from swarm.agent.status import VersionStatus, version_status, waiting_reason
from swarm.agent.trace_file import tracing
from swarm.agent.tracker_client import TrackerClient
from swarm.agent.waiting_log import say_what_is_waited_for
from swarm.errors import (
    AuthError,
    IntegrityError,
    NoSpaceError,
    NotFoundError,
    OriginError,
    PermissionDeniedError,
    StalledError,
    StoreError,
    SwarmError,
    TrackerError,
    UsageError,
)
from swarm.origin.origin import open_origin
from swarm.protocol.ids import VersionId, version_id_from_hex
from swarm.protocol.request_auth import Role
from swarm.store.disk import DiskStore
from swarm.store.memory import MemoryStore
from swarm.store.memory_budget import memory_budget_bytes
from swarm.store.readiness import is_ready

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S = 0.25
"""Between two looks at a running pull: a live bar moves four times a second."""
RESOLVE_RETRY_S = 2.0
"""Between two attempts to resolve a name while no tracker answers, or none knows it."""

Watcher = Callable[[Agent, VersionStatus | None, str], None]
"""Hears of progress: the agent, the version's status (None before its manifest is here) and the
reason for waiting."""


async def run_agent(settings: AgentSettings, *, on_start: Callable[[Agent], None]) -> None:
    """Serve until cancelled, then leave."""
    settings = await _with_discovery(settings)
    store = await trio.to_thread.run_sync(DiskStore.open_cache, str(settings.cache))
    try:
        async with _built(settings, store) as agent, serving(agent), trio.open_nursery() as nursery:
            on_start(agent)
            # Before anybody can ask: an agent that wants nothing yet would call itself ready.
            _adopt_from_cache(agent, store)
            for reference in settings.versions:
                agent.unresolved[reference] = "the tracker was not asked yet"
                nursery.start_soon(_want_reference, agent, reference)
            nursery.start_soon(say_what_is_waited_for, agent)
            await nursery.start(serve_local_api, agent)
            await trio.sleep_forever()
    finally:
        store.close()


async def pull(
    settings: AgentSettings,
    reference: str,
    directory: Path,
    *,
    watch: Watcher,
    seed_for_s: float = 0.0,
) -> VersionStatus:
    """Fetch one version into `directory` and return when it is READY and DURABLE.

    Raises NotFoundError, OriginError, IntegrityError, AuthError when no other source is left,
    NoSpaceError, PermissionDeniedError, StoreError at once, StalledError after the stall time-out.
    """
    if settings.store == "memory":
        raise UsageError(
            f"a pull puts files into {directory}; --store memory would leave none there",
            hint="leave --store out, or run `swarm agent --store memory`",
        )
    settings = await _with_discovery(settings)
    version, origin = await _resolve(settings, reference)
    settings = replace(settings, origin=settings.origin or origin)
    if not settings.origin and not settings.trackers and not settings.peers:
        raise UsageError(
            "nowhere to pull from: no origin, no tracker, no peer",
            hint="give --origin URL, --tracker URL or --peer HOST:PORT",
        )
    store = await trio.to_thread.run_sync(DiskStore.open_directory, str(directory))
    try:
        async with _built(settings, store) as agent, serving(agent):
            agent.want(version)
            await _watch(agent, version, watch)
            held = agent.shelf.held[version]
            await held.durable.wait()
            if (problem := agent.shelf.problems.get(version)) is not None:
                raise problem
            watch(agent, version_status(agent, version), "")
            await trio.sleep(seed_for_s)
            status = version_status(agent, version)
            assert status is not None
            return status
    finally:
        store.close()


async def _watch(agent: Agent, version: VersionId, watch: Watcher) -> None:
    """Until the version is ready; raises what ends it before."""
    started_at = met_at = trio.current_time()
    met: SwarmError | None = None
    while not agent.shelf.is_ready(version):
        now = trio.current_time()
        status = version_status(agent, version)
        reason = waiting_reason(agent, version)
        watch(agent, status, reason)
        problem = agent.shelf.problems.get(version)
        if problem is not met:
            met, met_at = problem, now
        if problem is not None and _is_final(agent, version, problem):
            raise problem
        idle_s = status.idle_s if status is not None else now - started_at
        if idle_s > agent.settings.stall_timeout_s:
            is_cause = problem is not None and met_at >= now - idle_s
            raise _stalled(version, idle_s, reason, problem, is_cause=is_cause)
        await _pause(agent, version)


def _stalled(
    version: VersionId, idle_s: float, reason: str, problem: SwarmError | None, *, is_cause: bool
) -> SwarmError:
    """What ends a pull that got nothing for too long. Where the origin has said for good that it
    cannot help, since the last byte came, that is the news: whoever else might have did not."""
    if problem is not None and is_cause and _is_lasting(problem):
        return problem
    return StalledError(
        f"no verified byte of {version.hex()[:12]} for {idle_s:.0f} s: {reason}"
        + (f"; last fault: {problem.message}" if problem else ""),
        object_name=version.hex(),
        hint="check the sources named here, or raise --stall-timeout",
    )


def _is_lasting(problem: SwarmError) -> bool:
    """A fault of the origin that time does not mend."""
    if isinstance(problem, OriginError):
        return not problem.is_retryable
    return isinstance(problem, NotFoundError | AuthError | IntegrityError)


async def _pause(agent: Agent, version: VersionId) -> None:
    """Until the next look, or the end: a short pull shall not wait for a tick that nobody sees."""
    held = agent.shelf.held.get(version)
    if held is None or held.durable.is_set():
        await trio.sleep(WATCH_INTERVAL_S)
        return
    with trio.move_on_after(WATCH_INTERVAL_S):
        await held.durable.wait()


def _is_final(agent: Agent, version: VersionId, problem: SwarmError) -> bool:
    """Our own disk always ends a pull; the origin does when nobody else could help."""
    if isinstance(problem, NoSpaceError | PermissionDeniedError | StoreError):
        return True
    if version not in agent.shelf.wanted:
        return True
    if version not in agent.shelf.held:
        # Every source was asked for the manifest, neighbours among them.
        return not problem.is_retryable
    return not (agent.neighbour_count or problem.is_retryable) and _is_lasting(problem)


@asynccontextmanager
async def _built(settings: AgentSettings, store: DiskStore) -> AsyncIterator[Agent]:
    """An agent with its clients; they are closed afterwards."""
    # Whoever reads for this agent repeats by itself and tells the fleet; a second loop below would
    # ask a throttling origin behind everybody's back.
    patience = replace(settings.origin_settings, retry_for_s=0.0)
    origin = open_origin(settings.origin, settings=patience) if settings.origin else None
    downlink = RateLimit(settings.downlink_bytes_per_s)
    client = OriginClient(origin, limiter=downlink) if origin is not None else None
    tracker = (
        TrackerClient(settings.trackers, key=settings.cluster_key, identity=store.identity)
        if settings.trackers
        else None
    )
    try:
        is_memory = settings.store == "memory"
        agent = Agent(
            settings,
            MemoryStore(memory_budget_bytes()) if is_memory else store,
            store.identity,
            links=None if is_memory else store.channels,
            origin=client,
            tracker=tracker,
            downlink=downlink,
        )
        with tracing(agent):
            yield agent
    finally:
        with trio.CancelScope(shield=True), trio.move_on_after(2.0):
            if tracker is not None:
                await tracker.aclose()
            if client is not None:
                await client.aclose()


def _adopt_from_cache(agent: Agent, store: DiskStore) -> None:
    """Serve what an earlier run left whole, and its channel links until the tracker speaks."""
    for channel in agent.settings.channels:
        version = store.channels.target(channel)
        if version is not None:
            agent.follower.adopt(channel, version)
    for version in store.versions():
        if is_ready(store.version_directory(version)):
            agent.want(version)


async def _want_reference(agent: Agent, reference: str) -> None:
    """Resolve `--version` once, as soon as the tracker knows it, and fetch it."""
    while True:
        try:
            version, _ = await _resolve(agent.settings, reference)
        except (TrackerError, NotFoundError, AuthError) as error:
            if agent.unresolved[reference] != error.message:
                logger.warning("version %s: %s", reference, error.message)
            agent.unresolved[reference] = error.message
            await trio.sleep(RESOLVE_RETRY_S)
        else:
            agent.want(version)
            del agent.unresolved[reference]
            return


async def _resolve(settings: AgentSettings, reference: str) -> tuple[VersionId, str]:
    """The version that a reference names, and its origin URL ("" if unknown)."""
    if len(reference) == 64:
        try:
            return version_id_from_hex(reference), ""
        except UsageError:
            pass
    if not settings.trackers:
        raise UsageError(
            f"{reference!r} is a name, and names are known to the tracker only",
            hint="give --tracker URL, or the version's 64 hex digits",
        )
    client = TrackerClient(settings.trackers, key=settings.cluster_key, role=Role.AGENT)
    try:
        record = await client.show_version(reference)
    finally:
        await client.aclose()
    return record.version, record.origin


async def _with_discovery(settings: AgentSettings) -> AgentSettings:
    if not settings.discover or settings.trackers:
        return settings
    found = await find_trackers()
    if not found:
        raise TrackerError(
            "no tracker answered on this network", hint="give --tracker URL; clouds carry no mDNS"
        )
    logger.info("found tracker %s", ", ".join(found))
    return replace(settings, trackers=found)
