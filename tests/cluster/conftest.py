"""One real S3 server for all cluster tests of a run, a bucket for each test; and what must hold
after every case, whatever happened in it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, running_cluster
from tests.support.fleet import Fleet, running_fleet
from tests.support.invariants import assert_case_invariants
from tests.support.seaweed import NEXT_SECRET_KEY, SECRET_KEY, SeaweedServer, running_seaweed


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    """A running SeaweedFS."""
    with running_seaweed(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture
def bucket(seaweed: SeaweedServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket, and an environment in which an S3 client finds the way to it."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in seaweed.environment().items():
        monkeypatch.setenv(name, value)
    return seaweed.new_bucket()


@pytest.fixture
def invariants(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Checked when all agents have ended: what is visible is whole, nothing lies outside a cache,
    what failed left only what can be resumed, and no secret was written or logged."""
    caplog.set_level("DEBUG", logger="swarm")
    yield
    keys = [file.read_text().strip().rpartition(":")[2] for file in tmp_path.glob("*.key")]
    assert_case_invariants(tmp_path, [SECRET_KEY, NEXT_SECRET_KEY, *keys], caplog.text)


@pytest.fixture
def cluster(invariants: None, seaweed: SeaweedServer, tmp_path: Path) -> Iterator[Cluster]:
    """A running tracker and an empty origin."""
    with running_cluster(tmp_path, seaweed) as running:
        yield running


@pytest.fixture
async def fleet(invariants: None, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A running tracker, an empty origin that fails by a script, and agents in this process."""
    async with running_fleet(tmp_path) as running:
        yield running


@pytest.fixture
async def fleet_alone(invariants: None, tmp_path: Path) -> AsyncIterator[Fleet]:
    """The same with no tracker running yet."""
    async with running_fleet(tmp_path, has_tracker=False) as running:
        yield running


@pytest.fixture
def silent_url() -> Iterator[str]:
    """The URL of an address that answers no SYN."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
