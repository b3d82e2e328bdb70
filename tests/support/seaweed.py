"""A real S3 server for tests: the lab's SeaweedFS, with keys of its own and on free ports.

The server is several services in one process, each with an HTTP and a gRPC port; all of them are
chosen, so that neither parallel runs nor a server of this machine's on a usual port are in the way.
Everything it writes lies below one directory. It is stopped by its process id.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import httpx

from benchmarks.object_store import REGION, START_TIMEOUT_S, ObjectStore
from swarm.origin.aws_environment import CredentialTriple
from swarm.origin.s3_signing import signed_headers
from tests.support import requirements

ACCESS_KEY = "AKIDSWARMTESTS"
SECRET_KEY = "canary-secret-of-the-test-server"
NEXT_ACCESS_KEY = "AKIDSWARMTESTSNEXT"  # The same user's, for when the first are said to expire.
NEXT_SECRET_KEY = "next-canary-secret-of-the-test-server"
KEYS = ((ACCESS_KEY, SECRET_KEY), (NEXT_ACCESS_KEY, NEXT_SECRET_KEY))

VOLUME_MIB = 256
VOLUMES_MAX = 2000  # Each of a run's buckets takes seven, which are empty until they are used.
STOP_TIMEOUT_S = 10.0
LAUNCHES_MAX = 3  # A port may be taken between its choice and its use.
PORT_NAMES = (
    "master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port",
    "filer.port.grpc", "s3.port", "s3.port.grpc", "debug.port",
)  # fmt: skip


@dataclass(slots=True)
class SeaweedServer:
    """A running server."""

    store: ObjectStore
    process: subprocess.Popen[bytes]
    _serial: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def endpoint(self) -> str:
        return self.store.endpoint

    def environment(self, *, secret_key: str = SECRET_KEY) -> dict[str, str]:
        """What a client finds in its environment, and nothing of this machine's own identity."""
        return self.store.environment() | {
            "AWS_SECRET_ACCESS_KEY": secret_key,
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def new_bucket(self) -> str:
        """An empty bucket."""
        name = f"bucket-{os.getpid()}-{next(self._serial)}"
        _create_bucket(self.endpoint, name)
        return name


@contextlib.contextmanager
def running_seaweed(directory: Path) -> Iterator[SeaweedServer]:
    """A server that stores objects, below `directory`, for as long as the context."""
    directory.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, LAUNCHES_MAX + 1):
        server = _launch(directory / str(attempt))
        try:
            if _is_started(server):
                yield server
                return
        finally:
            _stop(server.process)
    raise RuntimeError(f"the S3 server did not start: {directory}/{LAUNCHES_MAX}/log")


def _launch(directory: Path) -> SeaweedServer:
    store = ObjectStore(
        directory / "data",
        "127.0.0.1",
        keys=KEYS,
        volume_mib=VOLUME_MIB,
        volumes_max=VOLUMES_MAX,
        ports=dict(zip(PORT_NAMES, _free_ports(len(PORT_NAMES)), strict=True)),
    )
    command = store.server_command()
    if shutil.which(command[0]) is None:
        requirements.require_command("weed")
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    return SeaweedServer(store, process)


def _is_started(server: SeaweedServer) -> bool:
    """Wait until a bucket can be made; False if the process ended."""
    give_up_at = time.monotonic() + START_TIMEOUT_S
    while server.process.poll() is None and time.monotonic() < give_up_at:
        with contextlib.suppress(httpx.HTTPError):
            server.new_bucket()
            return True
        time.sleep(0.1)
    return False


def _create_bucket(endpoint: str, name: str) -> None:
    url = f"{endpoint}/{name}"
    triple = CredentialTriple(ACCESS_KEY, SECRET_KEY, "")
    headers = signed_headers("PUT", url, {}, triple, region=REGION, clock_offset_s=0)
    httpx.put(url, headers=headers, timeout=10, trust_env=False).raise_for_status()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Kill: an orderly end takes more than 10 s and would save data that nobody wants."""
    process.kill()
    process.wait(STOP_TIMEOUT_S)


def _free_ports(number: int) -> list[int]:
    """Ports that are free now, all different. The server would add 10,000 to a port for its gRPC
    twin if that were not named too, so no arithmetic holds between these."""
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        for _ in range(number):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            ports.append(int(listener.getsockname()[1]))
        return ports
