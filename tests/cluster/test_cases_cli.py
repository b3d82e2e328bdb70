"""What users see of it.

Credentials are looked up by botocore as anywhere, from a `credential_process` or from the
environment; the S3 server verifies signatures and a proxy before it expires keys.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import trio

from swarm.cli.demo_processes import accepts, free_ports
from swarm.protocol.ids import Address
from swarm.store.readiness import is_ready
from tests.support.caches import rot
from tests.support.cluster import Cluster
from tests.support.command_line import failure, swarm
from tests.support.fault_proxy import Fault
from tests.support.fleet import CHUNK_BYTES, Fleet
from tests.support.invariants import assert_no_secret
from tests.support.models import M1, M8, write_model
from tests.support.seaweed import ACCESS_KEY, NEXT_ACCESS_KEY, NEXT_SECRET_KEY, SECRET_KEY

pytestmark = pytest.mark.cluster

CHANNEL = "production"
CANARY_TOKEN = "canary-session-token"
EXPIRED = b"<?xml version='1.0'?><Error><Code>ExpiredToken</Code><Message>x</Message></Error>"
DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>x</Message></Error>"

PROVIDER = """
import json, pathlib
calls = pathlib.Path({calls!r})
pairs = {pairs!r}
count = len(calls.read_text()) if calls.exists() else 0
calls.write_text("x" * (count + 1))
key, secret = pairs[min(count, 1)]
print(json.dumps({{"Version": 1, "AccessKeyId": key, "SecretAccessKey": secret,
                  "Expiration": "2099-01-01T00:00:00Z"}}))
"""


def profile(directory: Path) -> dict[str, str]:
    """The environment of a node whose keys come from a program: other ones from the second call
    on."""
    script, config = directory / "provider.key", directory / "aws.key"
    calls = str(directory / "calls")
    pairs = ((ACCESS_KEY, SECRET_KEY), (NEXT_ACCESS_KEY, NEXT_SECRET_KEY))
    script.write_text(PROVIDER.format(calls=calls, pairs=pairs))
    config.write_text(f"[default]\ncredential_process = {sys.executable} {script}\n")
    return {"AWS_CONFIG_FILE": str(config)}


def pull_through_proxy(
    cluster: Cluster, version: str, directory: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    given = {**cluster.origin_environment, "AWS_ENDPOINT_URL_S3": cluster.proxy.url, **variables}
    arguments = ("pull", version, str(directory), "--origin", cluster.origin, "--json")
    return swarm(*arguments, timeout_s=60, **given)


@pytest.mark.parametrize("status", [403, 400])
def test_keys_that_expire_are_renewed_in_the_middle(
    cluster: Cluster, tmp_path: Path, status: int
) -> None:
    """The provider is asked once more, however many reads were refused."""
    model = write_model(tmp_path / "model", M1)
    version = str(cluster.publish(model, "--chunk-size", "64KiB")["version"])
    # The first reads of payload still succeed.
    cluster.proxy.faults += [
        Fault(target_part="/files/", for_requests=3),
        Fault(target_part="/files/", status=status, body=EXPIRED, for_requests=1),
    ]
    without_keys = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    variables = {**without_keys, **profile(tmp_path)}
    done = pull_through_proxy(cluster, version, tmp_path / "pulled", **variables)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "calls").read_text() == "xx"
    refused = sum(request.status == status for request in cluster.proxy.requests)
    assert refused == 1
    assert NEXT_ACCESS_KEY in cluster.proxy.requests[-1].headers["authorization"]
    ranges = sum("range" in request.headers for request in cluster.proxy.requests)
    assert ranges <= json.loads(done.stdout)["chunks"] + refused


@pytest.mark.parametrize("status", [403, 400])
@pytest.mark.parametrize("target", ["/files/", "/versions/"])
def test_keys_that_stay_expired_end_a_pull(
    cluster: Cluster, tmp_path: Path, status: int, target: str
) -> None:
    """Static keys; E_AUTH that says so, in the manifest's read as in a chunk's."""
    model = write_model(tmp_path / "model", M1)
    version = str(cluster.publish(model, "--chunk-size", "64KiB")["version"])
    cluster.proxy.faults.append(Fault(target_part=target, status=status, body=EXPIRED))
    began = time.monotonic()
    # The server knows no such token, but sees it only where the proxy lets a read through.
    token = {"AWS_SESSION_TOKEN": CANARY_TOKEN} if target == "/versions/" else {}
    done = pull_through_proxy(cluster, version, tmp_path / "pulled", **token)
    assert time.monotonic() - began < 30
    error = failure(done)
    assert error["code"] == 31, error
    assert "expired" in error["message"]
    assert_no_secret([CANARY_TOKEN, SECRET_KEY, "X-Amz-Signature"], done.stdout, done.stderr)


def test_who_is_denied_is_told_so_after_few_requests(cluster: Cluster, tmp_path: Path) -> None:
    """AccessDenied is no matter of time."""
    model = write_model(tmp_path / "model", M1)
    version = str(cluster.publish(model, "--chunk-size", "64KiB")["version"])
    cluster.proxy.faults.append(Fault(target_part="/versions/", status=403, body=DENIED))
    done = pull_through_proxy(cluster, version, tmp_path / "pulled")
    assert failure(done)["code"] == 31
    assert len(cluster.proxy.requests) <= 2


def test_keys_that_expire_on_one_node_do_not_stop_a_fleet(cluster: Cluster, tmp_path: Path) -> None:
    """What peers have is still used."""
    model = write_model(tmp_path / "model", M1)
    version = str(cluster.publish(model, "--chunk-size", "64KiB")["version"])
    (whole,) = cluster.start_agents(1, "--version", version)
    cluster.wait_ready([whole], version, timeout_s=30)
    cluster.proxy.faults.append(Fault(status=403, body=EXPIRED))
    (late,) = cluster.start_agents(1, "--version", version)
    cluster.wait_ready([late], version, timeout_s=20)
    assert late.bytes_by_source(version)["origin"] == 0


def test_nothing_secret_is_told_at_the_chattiest_level(cluster: Cluster, tmp_path: Path) -> None:
    """Two agents that log all they can, through cuts, stalls, throttling and expired keys;
    their logs, metrics, states and caches are searched for keys, tokens and signatures."""
    model = write_model(tmp_path / "model", M1)
    version = str(cluster.publish(model, "--chunk-size", "64KiB")["version"])
    proxy = cluster.proxy
    proxy.faults += [
        Fault(target_part="/files/", every=5, body_cut=100, for_requests=3),
        Fault(target_part="/files/", every=4, status=503, body=b"SlowDown", for_requests=2),
        Fault(target_part="/files/", every=3, status=403, body=EXPIRED, for_requests=1),
        Fault(target_part="/files/", every=3, flip_bit=9, for_requests=2),
    ]
    agents = cluster.start_agents(2, "--version", version, "--log-level", "debug")
    cluster.wait_ready(agents, version, timeout_s=40)
    signatures = [
        request.headers["authorization"].rpartition("Signature=")[2]
        for request in proxy.requests
        if "Signature=" in request.headers.get("authorization", "")
    ]
    assert signatures
    key = cluster.key_file.read_text().strip().rpartition(":")[2]
    secrets = [SECRET_KEY, key, *signatures]
    for agent in agents:
        status = swarm("status", "--socket", str(agent.socket), "--json").stdout
        assert_no_secret(secrets, status, agent.log, agent.cache)
    assert_no_secret(secrets, cluster.tracker.log, tmp_path / "tracker.db")


async def test_nothing_is_ready_before_it_is_whole(fleet: Fleet, tmp_path: Path) -> None:
    """Looked at every 10 ms, over the probe, the files and the command, while an origin gives
    200 kB/s a connection. The fixture looks for holes afterwards."""
    model = write_model(tmp_path / "model", M8)
    result = await fleet.publish(model)
    await fleet.set_channel(CHANNEL, result.version)
    slow = Fault(target_part="/files/", rate=200e3, piece_bytes=8192)
    fleet.served.proxy.faults.append(slow)
    (port,) = free_ports(1)
    (node,) = await fleet.start(1, channels=(CHANNEL,), http=Address("127.0.0.1", port))
    await fleet.wait(lambda: accepts(port), "the probe's port is open")
    directory = node.directory(result.version)
    link = node.cache / "channels" / CHANNEL
    sizes = {path.name: path.stat().st_size for path in model.iterdir()}
    waiting = ("wait", result.version.hex(), "--cache", str(node.cache), "--timeout", "0.5")
    timed_out: list[subprocess.CompletedProcess[str]] = []

    async def wait_too_short() -> None:
        timed_out.append(await run_swarm(*waiting))

    fleet.nursery.start_soon(wait_too_short)
    looks = 0
    while not is_ready(str(directory)):
        assert not link.exists()
        held = node.running.shelf.held.get(result.version)
        whole = held is not None and held.store.have.is_full
        for name in [path.name for path in directory.glob("*") if path.name != ".swarm"]:
            assert (directory / name).stat().st_size == sizes[name]
            assert (directory / name).read_bytes() == (model / name).read_bytes(), name
        if not whole:
            assert node.reasons() != ""
            status = await probe(port)
            assert status == 503 or is_ready(str(directory))
        looks += 1
        await trio.sleep(0.01)
    assert looks > 50
    await fleet.wait(lambda: bool(timed_out), "the command has ended")
    assert timed_out[0].returncode == 60, timed_out[0].stderr
    await fleet.wait(link.is_symlink, "the channel is linked")
    assert await probe(port) == 200
    assert (await run_swarm(*waiting)).stdout.strip() == str(directory)


async def run_swarm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command, while this process serves its origin."""
    return await trio.to_thread.run_sync(partial(swarm, *arguments, timeout_s=40.0))


async def probe(port: int) -> int:
    """The status of /readyz."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return int((await stream.receive_some(4096)).split()[1])


OFFLINE_READ = """
import json, sys
from pathlib import Path
from safetensors import safe_open
directory = Path(sys.argv[1])
assert json.loads((directory / "config.json").read_text())["model_type"] == "llama"
index = json.loads((directory / "model.safetensors.index.json").read_text())
assert {p.name for p in directory.glob("*.safetensors")} == set(index["weight_map"].values())
for name, shard in index["weight_map"].items():
    with safe_open(directory / shard, framework="np") as file:
        assert file.get_tensor(name).nbytes > 0
print("read", len(index["weight_map"]))
"""


@pytest.mark.root
@pytest.mark.command("unshare")
async def test_an_engine_reads_a_plain_directory_offline(
    fleet_alone: Fleet, tmp_path: Path
) -> None:
    """By its own loader, in a namespace without any network."""
    model = write_model(tmp_path / "model", M1)
    (model / "sub" / "Dir").mkdir(parents=True)
    (model / "sub" / "Dir" / "Notes.TXT").write_text("kept as it is")
    result = await fleet_alone.publish(model)
    directory = tmp_path / "pulled"
    await fleet_alone.pull(result.version.hex(), directory)
    command = ["unshare", "--net", sys.executable, "-c", OFFLINE_READ, str(directory)]
    done = await trio.run_process(command, capture_stdout=True)
    assert done.stdout.decode().strip() == "read 4"
    assert (directory / "sub" / "Dir" / "Notes.TXT").read_text() == "kept as it is"
    hidden = [path.name for path in directory.rglob(".*") if ".swarm" not in path.parts]
    assert hidden == []
    assert not list((directory / ".swarm").rglob("*.safetensors"))


async def test_a_pull_says_what_it_waits_for(fleet_alone: Fleet, tmp_path: Path) -> None:
    """All sources freeze in the middle; after ten seconds a line names them, and the end names
    them again."""
    fleet = fleet_alone
    result = await fleet.publish(write_model(tmp_path / "model", M1))
    fleet.served.proxy.faults += [
        Fault(target_part="/files/", for_requests=6),
        Fault(target_part="/files/", stall_after=CHUNK_BYTES // 2),
    ]
    done = await run_swarm(
        "pull", result.version.hex(), str(tmp_path / "pulled"), "--json",
        "--origin", fleet.served.url, "--stall-timeout", "13",
    )  # fmt: skip
    error = failure(done)
    assert error["code"] == 60
    for text in (error["message"], done.stderr):
        assert "on their way from" in text
        assert fleet.served.url in text
    silent = [line for line in done.stderr.splitlines() if "no progress for" in line]
    assert silent, done.stderr


async def test_an_agent_says_what_it_waits_for(fleet: Fleet, tmp_path: Path) -> None:
    """The same over `swarm status`."""
    result = await fleet.publish(write_model(tmp_path / "model", M1))
    stalled = Fault(target_part="/files/", stall_after=CHUNK_BYTES // 2)
    fleet.served.proxy.faults.append(stalled)
    agent = fleet.process("--version", result.version.hex(), *fleet.tracker_flags)
    await trio.to_thread.run_sync(agent.start)
    await fleet.wait(lambda: fleet.file_requests() > 0, "it reads")
    command = ("status", "--socket", str(agent.socket))
    for arguments in (command, (*command, "--json")):
        done = await run_swarm(*arguments)
        assert "chunk(s) on their way from" in done.stdout, done.stdout


async def test_bytes_that_stay_wrong_have_their_exit_code(
    fleet_alone: Fleet, tmp_path: Path
) -> None:
    """At the command line."""
    fleet = fleet_alone
    result = await fleet.publish(write_model(tmp_path / "model", M1))
    objects = sorted((fleet.served.directory / "files").iterdir(), key=lambda p: p.stat().st_size)
    rot(objects[-1], 300_000)
    done = await run_swarm(
        "pull", result.version.hex(), str(tmp_path / "pulled"), "--json",
        "--origin", fleet.served.url,
    )  # fmt: skip
    error = failure(done)
    assert error["code"] == 20
    assert "origin" in error["message"]
    assert "chunk" in error["message"]
