"""One real S3 server for all cluster tests of a run, a bucket for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, running_cluster
from tests.support.seaweed import SeaweedServer, running_seaweed


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
def cluster(seaweed: SeaweedServer, tmp_path: Path) -> Iterator[Cluster]:
    """A running tracker and an empty origin."""
    with running_cluster(tmp_path, seaweed) as running:
        yield running
