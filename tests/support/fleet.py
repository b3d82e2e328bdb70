"""A fleet in one process: real agents in one loop, a real tracker process, an HTTP origin that
fails by a script.

Twenty agents cost twenty sockets and not twenty interpreters, so a case about many of them takes
seconds. What must die by a signal, or is judged by what it prints, belongs to `cluster.py`.

    tmp_path/origin      what was published; nobody but the publisher writes there
    tmp_path/nodes/<n>   one cache each
    tmp_path/tracker.*   database and log of the tracker
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import trio

from swarm.agent.accounting import Source
from swarm.agent.agent import Agent
from swarm.agent.run import pull, run_agent
from swarm.agent.settings import AgentSettings
from swarm.agent.status import VersionStatus, unready_reasons, version_status
from swarm.agent.tracker_client import TrackerClient
from swarm.cli.demo_processes import free_ports
from swarm.errors import TrackerError
from swarm.origin.origin import OriginSettings, open_origin
from swarm.protocol.ids import Address, VersionId
from swarm.publish.publish import publish
from swarm.publish.record import PublishOptions, PublishResult
from tests.support.cluster import LOOPBACK, TRACKER, AgentService, Service
from tests.support.command_line import SWARM, environment
from tests.support.served_directory import ServedDirectory, serve_directory

CHUNK_BYTES = 64 * 1024
POLL_S = 0.01
WAIT_S = 30.0
QUICK = OriginSettings(
    connect_timeout_s=1.0,
    first_byte_timeout_s=1.0,
    idle_timeout_s=1.0,
    retry_for_s=6.0,
    retry_pause_s=0.1,
    retry_pause_s_max=1.0,
    uses_proxy_environment=False,
)
"""An origin's patience divided by about twenty, so that a stall costs a second."""


@dataclass(slots=True)
class FleetNode:
    """One agent and its cache; started again on the same cache, it is the node's next boot."""

    name: str
    settings: AgentSettings
    fleet: Fleet
    agent: Agent | None = None
    _scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    _ended: trio.Event = field(default_factory=trio.Event)

    @property
    def cache(self) -> Path:
        return self.settings.cache

    async def start(self) -> Agent:
        """Until it has its agent; the network comes up in the background."""
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        self.agent = await self.fleet.nursery.start(self._run)
        return self.agent

    async def _run(self, *, task_status: trio.TaskStatus[Agent]) -> None:
        try:
            with self._scope:
                await run_agent(self.settings, on_start=task_status.started)
        finally:
            self.agent = None
            self._ended.set()

    async def stop(self) -> None:
        """In order, as after SIGTERM."""
        self._scope.cancel()
        with trio.fail_after(WAIT_S):
            await self._ended.wait()

    def change(self, **changes: object) -> None:
        """Settings for the next start."""
        # Keywords of many types under one name; a wrong one fails in the dataclass at once.
        self.settings = replace(self.settings, **changes)  # type: ignore[arg-type]

    @property
    def running(self) -> Agent:
        assert self.agent is not None, f"{self.name} does not run"
        return self.agent

    def directory(self, version: VersionId) -> Path:
        return self.cache / "versions" / version.hex()

    def is_ready(self, version: VersionId) -> bool:
        return self.running.shelf.is_ready(version)

    def status(self, version: VersionId) -> VersionStatus:
        found = version_status(self.running, version)
        assert found is not None, f"{self.name} has not opened {version.hex()[:12]}"
        return found

    def received(self, version: VersionId, source: Source) -> int:
        return self.status(version).bytes_by_source[source]

    def describe(self) -> str:
        if self.agent is None:
            return f"{self.name}: ended"
        held = [f"{v.chunks_held}/{v.chunks}" for v in map(self.status, self.agent.shelf.held)]
        return f"{self.name}: {held}, {self.agent.neighbour_count} neighbours; {self.reasons()}"

    def problem(self) -> str:
        """The latest fault of each version, in words."""
        return "; ".join(error.message for error in self.running.shelf.problems.values())

    def reasons(self) -> str:
        """What the readiness probe would say; "" when ready."""
        return "\n".join(unready_reasons(self.running))


@dataclass(slots=True)
class Fleet:
    """Made by `running_fleet`."""

    directory: Path
    nursery: trio.Nursery
    served: ServedDirectory
    tracker: Service
    tracker_url: str
    cluster_key: bytes
    nodes: list[FleetNode] = field(default_factory=list)
    # Agents that are processes; ended with the fleet.
    processes: list[AgentService] = field(default_factory=list)

    def node(self, **changes: object) -> FleetNode:
        """A further node with an empty cache, not started. `changes` are of `AgentSettings`."""
        name = f"node{len(self.nodes)}"
        settings = AgentSettings(
            cache=self.directory / "nodes" / name,
            trackers=(self.tracker_url,),
            origin=self.served.url,
            origin_settings=QUICK,
            listen=Address(LOOPBACK, 0),
            cluster_key=self.cluster_key,
            leave_grace_s=2.0,
        )
        # As in `FleetNode.change`.
        made = FleetNode(name, replace(settings, **changes), self)  # type: ignore[arg-type]
        self.nodes.append(made)
        return made

    def process(self, *flags: str) -> AgentService:
        """A `swarm agent` with an empty cache, not started; for what a signal does."""
        name = f"agent{len(self.processes)}"
        cache, place = self.directory / "nodes" / name, self.directory / f"{name}.sock"
        argv = (
            *SWARM, "agent", "--origin", self.served.url, "--cache", str(cache),
            "--socket", str(place), "--listen", f"{LOOPBACK}:0", *flags,
        )  # fmt: skip
        log = self.directory / f"{name}.log"
        made = AgentService(name, argv, environment(), log, cache=cache, socket=place)
        self.processes.append(made)
        return made

    @property
    def tracker_flags(self) -> tuple[str, ...]:
        return (
            "--tracker", self.tracker_url,
            "--cluster-key-file", str(self.directory / "cluster.key"),
        )  # fmt: skip

    async def start(self, count: int, **changes: object) -> list[FleetNode]:
        """`count` further nodes that run."""
        made = [self.node(**changes) for _ in range(count)]
        for node in made:
            await node.start()
        return made

    async def pull(self, version: str, directory: Path, **changes: object) -> VersionStatus:
        """As the command does it; raises what ends the command. Without a tracker unless named."""
        settings = self.node(**{"trackers": (), **changes}).settings
        self.nodes.pop()
        return await pull(settings, version, directory, watch=lambda *_: None)

    async def publish(self, model: Path, *, tag: str = "v1") -> PublishResult:
        """To the origin's directory, past the counting proxy, and to the tracker if it runs."""
        origin = open_origin(f"file://{self.served.directory}")
        options = PublishOptions(name="model", tag=tag, chunk_bytes=CHUNK_BYTES)
        result = await publish(str(model), origin, options, lambda _: None)
        if self.tracker.is_running:
            client = self.operator()
            await client.register_version(result.record, result.manifest_bytes)
            await client.aclose()
        return result

    async def set_channel(self, name: str, version: VersionId) -> None:
        client = self.operator()
        await client.set_channel(name, version.hex(), "test")
        await client.aclose()

    def operator(self) -> TrackerClient:
        return TrackerClient([self.tracker_url], key=self.cluster_key)

    async def start_tracker(self) -> None:
        self.tracker.start()
        client = self.operator()

        async def answers() -> bool:
            try:
                await client.list_versions()
            except TrackerError:
                return False
            return True

        await self.wait(answers, "the tracker answers")
        await client.aclose()

    async def wait(
        self,
        is_true: Callable[[], bool] | Callable[[], Awaitable[bool]],
        what: str,
        *,
        timeout_s: float = WAIT_S,
    ) -> float:
        """Seconds until it is true; fails with what every node says of itself."""
        begun = trio.current_time()
        while True:
            found = is_true()
            if await found if isinstance(found, Awaitable) else found:
                return trio.current_time() - begun
            waited_s = trio.current_time() - begun
            assert waited_s < timeout_s, f"{what}: not within {timeout_s:g} s\n{self.describe()}"
            await trio.sleep(POLL_S)

    async def wait_ready(
        self, nodes: Iterable[FleetNode], version: VersionId, *, timeout_s: float = WAIT_S
    ) -> float:
        waiting = list(nodes)
        names = ", ".join(node.name for node in waiting)
        return await self.wait(
            lambda: all(node.agent is not None and node.is_ready(version) for node in waiting),
            f"{version.hex()[:12]} ready on {names}",
            timeout_s=timeout_s,
        )

    def describe(self) -> str:
        return "\n".join([*(node.describe() for node in self.nodes), self.tracker.log_tail()])

    def file_requests(self, since: int = 0) -> int:
        """GETs of payload at the origin, after the first `since` requests of any kind."""
        return sum("/files/" in request.target for request in self.served.proxy.requests[since:])


@contextlib.asynccontextmanager
async def running_fleet(directory: Path, *, has_tracker: bool = True) -> AsyncIterator[Fleet]:
    """An origin and a tracker; versions and nodes are the test's."""
    (directory / "origin").mkdir()
    key = os.urandom(32)
    key_file = directory / "cluster.key"
    key_file.write_text(f"swarm-cluster-key:1:{key.hex()}\n")
    key_file.chmod(0o600)
    listen = f"{LOOPBACK}:{free_ports(1)[0]}"
    tracker = Service(
        name="tracker",
        argv=(
            *TRACKER, "serve", "--listen", listen, "--store", f"sqlite://{directory}/tracker.db",
            "--cluster-key-file", str(key_file),
        ),
        environment=environment(),
        log=directory / "tracker.log",
    )  # fmt: skip
    processes: list[AgentService] = []
    try:
        async with trio.open_nursery() as nursery:
            served = await serve_directory(directory / "origin", nursery)
            fleet = Fleet(
                directory, nursery, served, tracker, f"http://{listen}", key, processes=processes
            )
            if has_tracker:
                await fleet.start_tracker()
            yield fleet
            async with trio.open_nursery() as stopping:
                for node in fleet.nodes:
                    if node.agent is not None:
                        stopping.start_soon(node.stop)
            nursery.cancel_scope.cancel()
    finally:
        services = [tracker, *processes]
        for service in services:
            if service.is_running:
                service.kill()
    for service in services:
        assert not service.log.exists() or "Traceback" not in service.log.read_text()
