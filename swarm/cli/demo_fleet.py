"""The run of a demonstration: start everything, set the channel, watch, check, take it all away.

Nothing in it is a stand-in: the tracker, the agents and the publisher are the programs that run in
production, started with the flags that people use; only the network is the loopback device with
each agent's own rate limits for a NIC. Time runs from the moment the channel is set until each
node's READY file appears, read from the file's own time stamp. At the end every file of every node
is hashed again.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from swarm.agent.tracker_client import TrackerClient
from swarm.cli.agent_api import AgentPlace, read_status
from swarm.cli.demo_origin import DemoOrigin, start_directory, start_s3
from swarm.cli.demo_processes import Children, accepts, clean_environment, free_ports, program
from swarm.cli.demo_report import DemoResult, NodeResult
from swarm.cli.demo_view import NodeLook, open_view
from swarm.cli.installed import installed_manifest
from swarm.cli.interrupts import Interrupts
from swarm.cli.keys import write_new_key
from swarm.cli.output import note
from swarm.errors import InputError, IntegrityError, NotFoundError, StalledError, SwarmError
from swarm.protocol.keys import KEY_BYTES, KeyKind, format_key
from swarm.store.verify import verify_directory
from swarm.units import format_rate, format_size

DEADLINE_S = 75.0
"""For the transfer; start, publication and the check at the end take the rest of 90 s."""
START_TIMEOUT_S = 40.0
"""All programs start at once on what may be two cores; seen: 5 s for eight agents."""
PUBLISH_TIMEOUT_S = 60.0
POLL_S = 0.2
CHANNEL = "demo"
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """What the flags ask for."""

    nodes: int
    size: int
    rate_bytes_per_s: int
    # Published in place of a made-up model.
    model: Path | None
    is_s3: bool
    progress: str


def run_demo(plan: DemoPlan, interrupts: Interrupts) -> DemoResult:
    """Run it all; raises SwarmError when a part of it fails, StalledError at the deadline."""
    with _workplace(plan) as work, Children(work / "logs") as children:
        return _Demo(plan, work, children, interrupts).run()


class _Demo:
    """One run; its processes and its directory belong to the caller."""

    def __init__(
        self, plan: DemoPlan, work: Path, children: Children, interrupts: Interrupts
    ) -> None:
        self._plan = plan
        self._work = work
        self._children = children
        self._interrupts = interrupts
        self._environment = clean_environment()
        self._key_file = work / "cluster.key"
        self._key = os.urandom(KEY_BYTES)
        self._tracker_url = ""
        # Bytes of the version's files.
        self._size = plan.size
        self._names = [f"node{index + 1}" for index in range(plan.nodes)]

    def run(self) -> DemoResult:
        write_new_key(self._key_file, format_key(KeyKind.CLUSTER, self._key))
        self._start_tracker()
        start = start_s3 if self._plan.is_s3 else start_directory
        origin = start(self._children, self._work, self._plan.rate_bytes_per_s)
        version = self._publish(origin)
        self._start_agents(origin)
        sent_before = origin.sent_bytes()
        started_at = self._set_channel(version)
        seconds = self._watch(version, started_at)
        origin_bytes = origin.sent_bytes() - sent_before
        note("checking every file of every node")
        self._verify(version)
        return self._result(version, seconds, origin_bytes)

    def _start_tracker(self) -> None:
        (port,) = free_ports(1)
        self._tracker_url = f"http://127.0.0.1:{port}"
        command = program("tracker")
        command += ["serve", "--listen", f"127.0.0.1:{port}"]
        command += ["--store", f"sqlite:///{self._work}/tracker.db"]
        command += ["--cluster-key-file", str(self._key_file)]
        self._children.start("tracker", command, self._environment)
        self._children.wait_until(lambda: accepts(port), "tracker", timeout_s=START_TIMEOUT_S)

    def _publish(self, origin: DemoOrigin) -> str:
        """Publish as a CI job would; the version's id."""
        model = self._plan.model or make_model(self._work / "model", self._plan.size)
        command = program("swarm.cli")
        command += ["publish", str(model), "--origin", origin.publish_url, "--json"]
        command += ["--name", "demo", "--tag", "v1", "--progress", "none", *self._cluster_flags()]
        environment = self._environment | origin.publisher_environment
        code, output = self._children.finish(
            "publish", command, environment, timeout_s=PUBLISH_TIMEOUT_S
        )
        document = json.loads(output)
        if code:
            raise InputError(
                f"publishing {model} failed: {document['error']['message']}",
                object_name=str(model),
                hint=document["error"]["hint"],
            )
        note(
            f"published {format_size(document['bytes'])} in {document['chunks']} chunks; starting "
            f"{self._plan.nodes} nodes at {format_rate(self._plan.rate_bytes_per_s)} each way"
        )
        self._size = document["bytes"]
        version: str = document["version"]
        return version

    def _start_agents(self, origin: DemoOrigin) -> None:
        limit = f"{self._plan.rate_bytes_per_s}B/s"
        for name in self._names:
            command = program("swarm.cli")
            command += ["agent", "--origin", origin.read_url, "--channel", CHANNEL]
            command += ["--cache", str(self._work / name), "--listen", "127.0.0.1:0"]
            command += ["--socket", str(self._socket(name)), "--store", "disk"]
            command += ["--uplink-limit", limit, "--downlink-limit", limit, *self._cluster_flags()]
            environment = self._environment | origin.agent_environment
            self._children.start(name, command, environment)
        for name in self._names:
            is_up = partial(_answers, self._socket(name))
            self._children.wait_until(is_up, name, timeout_s=START_TIMEOUT_S)

    def _set_channel(self, version: str) -> float:
        """Let the nodes go; the wall-clock time of that moment."""

        async def go() -> float:
            client = TrackerClient((self._tracker_url,), key=self._key)
            try:
                started_at = time.time()
                await client.set_channel(CHANNEL, version, "demonstration")
                return started_at
            finally:
                await client.aclose()

        return self._interrupts.run(go)

    def _watch(self, version: str, started_at: float) -> dict[str, float]:
        """Until every node is ready; the seconds each took."""
        looks = {name: NodeLook(name, None, "starting", None) for name in self._names}
        give_up_at = time.monotonic() + DEADLINE_S
        with open_view(self._plan.progress) as view, ThreadPoolExecutor(self._plan.nodes) as pool:
            while True:
                self._children.check()
                for look in pool.map(lambda name: self._look(name, version, started_at), looks):
                    looks[look.name] = look
                view.show(list(looks.values()), self._size)
                seconds = {n: k.ready_s for n, k in looks.items() if k.ready_s is not None}
                if len(seconds) == len(looks):
                    return seconds
                if time.monotonic() > give_up_at:
                    raise _stalled(list(looks.values()))
                time.sleep(POLL_S)

    def _look(self, name: str, version: str, started_at: float) -> NodeLook:
        status = read_status(AgentPlace(self._socket(name)))
        found = [document for document in status["versions"] if document["version"] == version]
        ready_file = self._directory(name, version) / ".swarm" / "READY"
        try:
            ready_s = ready_file.stat().st_mtime - started_at
        except FileNotFoundError:
            ready_s = None
        waiting = "; ".join(status["waiting"])
        return NodeLook(name, found[0] if found else None, waiting, ready_s)

    def _verify(self, version: str) -> None:
        for name in self._names:
            directory = str(self._directory(name, version))
            damages = verify_directory(directory, installed_manifest(directory))
            if damages:
                raise IntegrityError(
                    f"{name}: {damages[0].path} {damages[0].problem}", object_name=directory
                )

    def _result(self, version: str, seconds: dict[str, float], origin_bytes: int) -> DemoResult:
        nodes = []
        size = 0
        for name in self._names:
            status = read_status(AgentPlace(self._socket(name)))
            (document,) = (d for d in status["versions"] if d["version"] == version)
            size = document["bytes"]
            sources, waste = document["bytes_by_source"], document["wasted_bytes"]
            nodes.append(NodeResult(name, seconds[name], sources, waste, status["sent_bytes"]))
        return DemoResult(version, size, self._plan.rate_bytes_per_s, origin_bytes, tuple(nodes))

    def _cluster_flags(self) -> list[str]:
        return ["--tracker", self._tracker_url, "--cluster-key-file", str(self._key_file)]

    def _socket(self, name: str) -> Path:
        return self._work / f"{name}.sock"

    def _directory(self, name: str, version: str) -> Path:
        return self._work / name / "versions" / version


def make_model(directory: Path, size: int) -> Path:
    """A model of one tensor of `size` random bytes, so that nothing can be compressed or shared."""
    directory.mkdir()
    (directory / "config.json").write_text('{"model_type": "demo"}\n')
    tensor = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    header = json.dumps({"weights": tensor}).encode()
    header += b" " * (-len(header) % 8)
    with open(directory / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for start in range(0, size, _PIECE_BYTES):
            file.write(os.urandom(min(_PIECE_BYTES, size - start)))
    return directory


@contextmanager
def _workplace(plan: DemoPlan) -> Iterator[Path]:
    """A temporary directory with room for every copy, removed afterwards."""
    work = Path(tempfile.mkdtemp(prefix="swarm-demo-"))
    try:
        needed = _needed_bytes(plan)
        if shutil.disk_usage(work).free < needed:
            raise InputError(
                f"{work.parent} has no room for {format_size(needed)}",
                object_name=str(work.parent),
                hint="choose a smaller --size, or set TMPDIR",
            )
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _needed_bytes(plan: DemoPlan) -> int:
    """The origin's copy, one for each node, and the model that is made up."""
    if plan.model is None:
        return plan.size * (plan.nodes + 2)
    files = [path for path in plan.model.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files) * (plan.nodes + 1)


def _answers(socket: Path) -> bool:
    try:
        read_status(AgentPlace(socket))
    except NotFoundError:
        return False
    return True


def _stalled(looks: list[NodeLook]) -> SwarmError:
    late = [look for look in looks if look.ready_s is None]
    return StalledError(
        f"{len(late)} of {len(looks)} nodes are not ready after {DEADLINE_S:.0f} s; "
        f"{late[0].name}: {late[0].waiting}",
        object_name=late[0].name,
        hint="the machine may be too slow for this --rate; try a smaller --size",
    )
