"""A whole cluster on loopback, driven through its command line: a real tracker, real agents, a real
S3 server behind a proxy that counts and can break its answers.

Everything is a process of its own, as in a fleet. A test starts what it needs, orders things as an
operator would (`swarm`), kills what should die, and looks at what users see: files, exit codes, the
JSON of commands. Origin bytes are those that the proxy wrote to agents, never a counter of ours.

Leaving a cluster stops its processes by their ids and then reads their logs: no traceback, no
secret (`check_logs`).
"""

from __future__ import annotations

import contextlib
import filecmp
import functools
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from swarm.cli.agent_api import AgentPlace, StatusDocument, read_status
from swarm.errors import NotFoundError
from tests.support.command_line import SWARM, environment
from tests.support.fault_proxy import FaultProxy, fault_proxy_in_thread
from tests.support.seaweed import SECRET_KEY, SeaweedServer

LOOPBACK = "127.0.0.1"
TRACKER = (sys.executable, "-m", "tracker")
START_TIMEOUT_S = 30.0  # Importing takes 0.5 s; a dozen at once on two busy cores take ten.
COMMAND_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0  # An agent may take its leave grace of a few seconds.
POLL_S = 0.02
LOG_TAIL_LINES = 40

Json = dict[str, object]


@dataclass(slots=True)
class Service:
    """One process of the cluster; `argv` starts it again."""

    name: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self.process is None, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.argv,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def stop(self) -> int:
        """As a service manager does: SIGTERM, then patience. Returns the exit code."""
        assert self.process is not None
        self.process.terminate()
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} ignored SIGTERM\n{self.log_tail()}") from None
        self.process = None
        return code

    def kill(self) -> None:
        """As a power cut does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join([f"--- {self.name}", *lines[-LOG_TAIL_LINES:]])


@dataclass(slots=True)
class AgentService(Service):
    """An agent with its cache."""

    cache: Path = Path()
    socket: Path = Path()

    def directory(self, version: str) -> Path:
        """Where the files of `version` appear."""
        return self.cache / "versions" / version

    def is_ready(self, version: str) -> bool:
        return (self.directory(version) / ".swarm" / "READY").exists()

    def status(self) -> StatusDocument:
        return read_status(AgentPlace(self.socket))

    def bytes_by_source(self, version: str) -> dict[str, int]:
        for document in self.status()["versions"]:
            if document["version"] == version:
                return document["bytes_by_source"]
        raise AssertionError(f"{self.name} does not hold {version}")


@dataclass(slots=True)
class Cluster:
    """The operator's side. Made by `running_cluster`."""

    directory: Path
    origin: str
    origin_environment: dict[str, str]
    proxy: FaultProxy
    tracker: Service
    key_file: Path
    tracker_url: str
    agents: list[AgentService] = field(default_factory=list)

    @property
    def tracker_flags(self) -> tuple[str, ...]:
        return ("--tracker", self.tracker_url, "--cluster-key-file", str(self.key_file))

    def publish(self, source: Path, *flags: str, name: str = "model", tag: str = "v1") -> Json:
        """`swarm publish --json` straight to the origin, past the counting proxy."""
        return self.swarm(
            "publish", str(source), "--origin", self.origin, "--name", name, "--tag", tag,
            *flags, **self.origin_environment,
        )  # fmt: skip

    def swarm(self, *arguments: str, **variables: str) -> Json:
        """A command that talks to the tracker and must succeed; its JSON."""
        done = subprocess.run(
            [*SWARM, *arguments, *self.tracker_flags, "--json"],
            env=environment(**variables),
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stderr}\n{self.tracker.log_tail()}"
        document: Json = json.loads(done.stdout)
        return document

    def start_agent(self, *flags: str) -> AgentService:
        """A new agent on a new cache; see `start_agents` for one that already answers."""
        number = len(self.agents)
        cache, socket_path = self.directory / f"cache{number}", self.directory / f"{number}.sock"
        argv = (
            *SWARM, "agent", "--origin", self.origin, "--cache", str(cache),
            "--socket", str(socket_path), "--listen", f"{LOOPBACK}:0",
            *self.tracker_flags, *flags,
        )  # fmt: skip
        agent = AgentService(
            name=f"agent{number}",
            argv=argv,
            environment=environment(
                **{**self.origin_environment, "AWS_ENDPOINT_URL_S3": self.proxy.url}
            ),
            log=self.directory / f"agent{number}.log",
            cache=cache,
            socket=socket_path,
        )
        self.agents.append(agent)
        agent.start()
        return agent

    def start_agents(self, count: int, *flags: str) -> list[AgentService]:
        """`count` new agents at the same moment; returns when all answer."""
        agents = [self.start_agent(*flags) for _ in range(count)]
        for agent in agents:
            self.wait_until(functools.partial(_answers, agent), f"{agent.name} answers")
        return agents

    def wait_ready(
        self, agents: Iterable[AgentService], version: str, *, timeout_s: float
    ) -> float:
        """Seconds until all of them have `version` ready."""
        waiting = list(agents)
        begun = time.monotonic()
        self.wait_until(
            lambda: all(agent.is_ready(version) for agent in waiting),
            f"{version[:12]} ready on {[agent.name for agent in waiting]}",
            timeout_s=timeout_s,
        )
        return time.monotonic() - begun

    def wait_until(
        self, is_true: Callable[[], bool], what: str, *, timeout_s: float = START_TIMEOUT_S
    ) -> None:
        """Polls; fails with the logs when the time is over or a process of ours ended."""
        deadline = time.monotonic() + timeout_s
        while not is_true():
            ended = [s.name for s in self._services() if s.process and s.process.poll() is not None]
            if ended or time.monotonic() > deadline:
                reason = f"{ended} ended" if ended else f"not within {timeout_s:g} s"
                logs = "\n".join(service.log_tail() for service in self._services())
                raise AssertionError(f"{what}: {reason}\n{logs}")
            time.sleep(POLL_S)

    def check_logs(self) -> None:
        """What no log may contain, whatever happened."""
        key = self.key_file.read_text().strip()
        for service in self._services():
            text = service.log.read_text(errors="replace") if service.log.exists() else ""
            assert "Traceback" not in text, service.log_tail()
            assert SECRET_KEY not in text, f"{service.name} logged the origin's secret"
            assert key not in text, f"{service.name} logged the cluster key"

    def stop(self) -> None:
        """Ends every process that still runs."""
        running = [service for service in self._services() if service.is_running]
        for service in running:
            assert service.process is not None
            service.process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for service in running:
            assert service.process is not None
            with contextlib.suppress(subprocess.TimeoutExpired):
                service.process.wait(max(0.0, deadline - time.monotonic()))
            service.process.kill()
            service.process.wait()

    def _services(self) -> Sequence[Service]:
        return [self.tracker, *self.agents]


@contextlib.contextmanager
def running_cluster(directory: Path, seaweed: SeaweedServer) -> Iterator[Cluster]:
    """A tracker and an empty bucket; agents and versions are the test's."""
    with fault_proxy_in_thread(seaweed.endpoint) as proxy:
        cluster = _make(directory, seaweed, proxy)
        try:
            cluster.tracker.start()
            cluster.wait_until(lambda: _listens(cluster.tracker_url), "the tracker answers")
            yield cluster
        finally:
            cluster.stop()
        cluster.check_logs()


def assert_same_files(agents: Iterable[AgentService], version: str, source: Path) -> None:
    """Every file of `source`, byte for byte, and nothing else but our own directory."""
    expected = sorted(str(p.relative_to(source)) for p in source.rglob("*") if p.is_file())
    for agent in agents:
        directory = agent.directory(version)
        found = sorted(
            str(path.relative_to(directory))
            for path in directory.rglob("*")
            if path.is_file() and ".swarm" not in path.relative_to(directory).parts
        )
        assert found == expected, agent.name
        _, different, unreadable = filecmp.cmpfiles(source, directory, expected, shallow=False)
        assert not different, agent.name
        assert not unreadable, agent.name


def _make(directory: Path, seaweed: SeaweedServer, proxy: FaultProxy) -> Cluster:
    key_file = directory / "cluster.key"
    subprocess.run(
        [*SWARM, "keys", "new", str(key_file)], env=environment(), capture_output=True, check=True
    )
    listen = f"{LOOPBACK}:{_free_port()}"
    tracker = Service(
        name="tracker",
        argv=(
            *TRACKER, "serve", "--listen", listen, "--store", f"sqlite://{directory}/tracker.db",
            "--cluster-key-file", str(key_file),
        ),
        environment=environment(),
        log=directory / "tracker.log",
    )  # fmt: skip
    return Cluster(
        directory=directory,
        origin=f"s3://{seaweed.new_bucket()}/weights",
        origin_environment=seaweed.environment(),
        proxy=proxy,
        tracker=tracker,
        key_file=key_file,
        tracker_url=f"http://{listen}",
    )


def _answers(agent: AgentService) -> bool:
    try:
        agent.status()
    except NotFoundError:
        return False
    return True


def _listens(url: str) -> bool:
    address = urlsplit(url)
    try:
        socket.create_connection((address.hostname or "", address.port or 0), timeout=1).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    """The tracker's address outlives its process, so the port is chosen here."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        return int(listener.getsockname()[1])
