"""A publisher that is interrupted, as a process at a real S3 server.

Whenever it happens: it ends soon, with the code of the signal and one line, leaves no version that
agents could see and no lock, and the next publish of the same directory goes on from what was
stored.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.command_line import SWARM, environment, swarm
from tests.support.fault_proxy import Fault
from tests.support.invariants import assert_no_secret
from tests.support.models import M8, write_model
from tests.support.seaweed import SECRET_KEY

pytestmark = pytest.mark.cluster

ENDS_S = 5.0
ENDS_AT_ONCE_S = 1.0
BEGINS_S = 30.0
SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code></Error>"


@dataclass
class Publisher:
    """A running `swarm publish` and what it says."""

    process: subprocess.Popen[bytes]
    log: Path

    def phases(self) -> list[str]:
        lines = self.log.read_text(errors="replace").splitlines()
        return [json.loads(line)["phase"] for line in lines if line.startswith("{")]

    def wait_until(self, is_true: Callable[[], bool], what: str) -> None:
        give_up_at = time.monotonic() + BEGINS_S
        while not is_true():
            assert self.process.poll() is None, f"ended before {what}: {self.log.read_text()}"
            assert time.monotonic() < give_up_at, f"not {what}: {self.log.read_text()}"
            time.sleep(0.005)

    def signalled(self, number: int) -> float:
        """Seconds until it has ended."""
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(ENDS_S + 5)
        return time.monotonic() - began


@contextmanager
def publishing(cluster: Cluster, model: Path, log: Path, **variables: str) -> Iterator[Publisher]:
    """Through the proxy, to the tracker as well."""
    given = {**cluster.origin_environment, "AWS_ENDPOINT_URL_S3": cluster.proxy.url, **variables}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [
                *SWARM, "publish", str(model), "--origin", cluster.origin, "--name", "model",
                "--tag", "v1", "--chunk-size", "64KiB", "--progress", "json",
                *cluster.tracker_flags,
            ],
            env=environment(**given),
            stdout=subprocess.DEVNULL,
            stderr=stream,
        )  # fmt: skip
    try:
        yield Publisher(process, log)
    finally:
        process.kill()
        process.wait(10)


def assert_ended_well(publisher: Publisher, number: int) -> None:
    assert publisher.process.returncode == 128 + number
    text = publisher.log.read_text()
    assert "Traceback" not in text
    assert text.splitlines()[-1] == f"stopped by {signal.Signals(number).name}"
    assert_no_secret([SECRET_KEY, "X-Amz-Signature"], text)


def stored(cluster: Cluster, since: int = 0) -> set[str]:
    """Objects of payload that the server has taken, after the first `since` requests."""
    return {
        request.target
        for request in cluster.proxy.requests[since:]
        if request.method == "PUT" and "/files/" in request.target and request.status == 200
    }


def assert_nothing_is_visible_and_the_next_goes_on(cluster: Cluster, model: Path) -> None:
    """It sends what is missing and nothing that was stored; a third one sends nothing."""
    assert cluster.swarm("versions", "list")["versions"] == []
    assert cluster.proxy.count("PUT", "/manifest") == 0, "a version exists when its manifest does"
    cluster.proxy.faults.clear()
    before, seen = stored(cluster), len(cluster.proxy.requests)
    through_proxy = {**cluster.origin_environment, "AWS_ENDPOINT_URL_S3": cluster.proxy.url}
    command = ["publish", str(model), "--origin", cluster.origin, "--name", "model"]
    command += ["--tag", "v1", "--chunk-size", "64KiB"]
    assert cluster.swarm(*command, **through_proxy)["uploaded_bytes"] != 0
    after = stored(cluster, seen)
    assert after, "nothing was missing"
    assert not after & before, "what was stored is sent again"
    assert len(after | before) == len([path for path in model.rglob("*") if path.is_file()])
    versions = cluster.swarm("versions", "list")["versions"]
    assert isinstance(versions, list)
    assert len(versions) == 1
    assert cluster.swarm(*command, **through_proxy)["uploaded_bytes"] == 0


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", M8)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_publish_is_interrupted_while_it_hashes(
    cluster: Cluster, tmp_path: Path, model: Path, number: int
) -> None:
    """A file with a hole of 24 GB takes seconds to read and no room to keep. It is cut off before
    the next publish."""
    big = model / "big.bin"
    with big.open("wb") as file:
        file.truncate(24 << 30)
    with publishing(cluster, model, tmp_path / "publish.log") as publisher:
        publisher.wait_until(lambda: "hashing" in publisher.phases(), "hashing")
        time.sleep(0.2)
        assert publisher.signalled(number) <= ENDS_S
    assert publisher.phases()[-1] == "hashing"
    assert_ended_well(publisher, number)
    assert cluster.proxy.count("PUT") == 0
    os.truncate(big, 100_000)
    assert_nothing_is_visible_and_the_next_goes_on(cluster, model)


MOMENTS = {
    # Some objects are stored, then the server answers no more.
    "uploading": Fault(method="PUT", target_part="/files/", delay=60.0),
    # A publisher that was throttled waits for its next attempt.
    "back-off": Fault(method="PUT", target_part="/files/", status=503, body=SLOW_DOWN),
    "first look": Fault(delay=60.0),
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_publish_is_interrupted_at_the_origin(
    cluster: Cluster, tmp_path: Path, model: Path, moment: str, number: int
) -> None:
    proxy = cluster.proxy
    stored_first = 3 if moment != "first look" else 0
    proxy.faults += [
        Fault(method="PUT", target_part="/files/", for_requests=stored_first),
        MOMENTS[moment],
    ]
    with publishing(cluster, model, tmp_path / "publish.log") as publisher:
        if stored_first:
            publisher.wait_until(
                lambda: proxy.count("PUT", "/files/") > stored_first, "at the fault"
            )
        else:
            publisher.wait_until(lambda: bool(proxy.requests), "at the first request")
        time.sleep(0.5)
        assert publisher.signalled(number) <= ENDS_S
    assert_ended_well(publisher, number)
    assert len(stored(cluster)) == stored_first
    assert_nothing_is_visible_and_the_next_goes_on(cluster, model)


def test_a_publish_is_interrupted_while_it_dials(
    cluster: Cluster, tmp_path: Path, model: Path, silent_url: str
) -> None:
    log = tmp_path / "publish.log"
    with publishing(cluster, model, log, AWS_ENDPOINT_URL_S3=silent_url) as publisher:
        publisher.wait_until(lambda: bool(publisher.phases()), "begun")
        time.sleep(1.0)
        assert publisher.signalled(signal.SIGINT) <= ENDS_S
    assert_ended_well(publisher, signal.SIGINT)
    assert_nothing_is_visible_and_the_next_goes_on(cluster, model)


def test_a_second_signal_ends_a_publish_at_once(
    cluster: Cluster, tmp_path: Path, model: Path
) -> None:
    cluster.proxy.faults.append(MOMENTS["uploading"])
    with publishing(cluster, model, tmp_path / "publish.log") as publisher:
        publisher.wait_until(lambda: cluster.proxy.count("PUT") > 0, "uploading")
        publisher.process.send_signal(signal.SIGINT)
        time.sleep(0.05)
        assert publisher.signalled(signal.SIGINT) <= ENDS_AT_ONCE_S
    assert publisher.process.returncode == 130
    assert "Traceback" not in publisher.log.read_text()
    assert_nothing_is_visible_and_the_next_goes_on(cluster, model)


def test_an_interrupted_publish_to_a_directory_leaves_no_half_object(
    tmp_path: Path, model: Path
) -> None:
    """Below their names there are whole files only; the rest is aside and is used or removed."""
    with (model / "big.bin").open("wb") as file:
        file.truncate(4 << 30)
    origin = tmp_path / "origin"
    origin.mkdir()
    log = tmp_path / "publish.log"
    command = [*SWARM, "publish", str(model), "--origin", f"file://{origin}", "--progress", "json"]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, env=environment(), stdout=subprocess.DEVNULL, stderr=stream
        )
    publisher = Publisher(process, log)
    publisher.wait_until(lambda: "uploading" in publisher.phases(), "uploading")
    assert publisher.signalled(signal.SIGTERM) <= ENDS_S
    assert_ended_well(publisher, signal.SIGTERM)
    assert not list(origin.rglob("manifest"))
    sizes = {path.stat().st_size for path in (origin / "files").glob("*")}
    assert 4 << 30 not in sizes
    assert sizes <= {path.stat().st_size for path in model.rglob("*")}
    os.truncate(model / "big.bin", 100_000)
    done = swarm(*command[len(SWARM) :], timeout_s=60)
    assert done.returncode == 0, done.stderr
    assert len(list(origin.rglob("manifest"))) == 1
