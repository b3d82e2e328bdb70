"""The promise itself: a fleet starts cold, every node ends with every file, and each byte leaves
the origin about once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cluster import Cluster, assert_same_files
from tests.support.models import M8, write_model

pytestmark = pytest.mark.cluster

NODES = 5
CHANNEL = "production"


def test_a_fleet_that_waits_for_a_channel_is_served_when_it_is_set(
    cluster: Cluster, tmp_path: Path
) -> None:
    source = write_model(tmp_path / "model", M8)
    published = cluster.publish(source, "--chunk-size", "64KiB")
    version = str(published["version"])
    agents = cluster.start_agents(NODES, "--channel", CHANNEL)
    for agent in agents:
        assert any(CHANNEL in reason for reason in agent.status()["waiting"]), agent.status()
        assert not agent.directory(version).exists()

    cluster.swarm("channel", "set", CHANNEL, "model@v1")
    cluster.wait_ready(agents, version, timeout_s=30)

    assert_same_files(agents, version, source)
    for agent in agents:
        link = agent.cache / "channels" / CHANNEL
        cluster.wait_until(link.is_symlink, f"{agent.name} links the channel")
        assert link.resolve() == agent.directory(version).resolve()


def test_each_byte_leaves_the_origin_about_once(cluster: Cluster, tmp_path: Path) -> None:
    """The proxy counts what agents were sent: all payload, the manifest and the locations."""
    source = write_model(tmp_path / "model", M8)
    published = cluster.publish(source, "--chunk-size", "64KiB")
    version = str(published["version"])
    agents = cluster.start_agents(NODES, "--channel", CHANNEL)
    assert cluster.proxy.body_bytes_sent == 0, "an idle fleet reads the origin"

    cluster.swarm("channel", "set", CHANNEL, "model@v1")
    cluster.wait_ready(agents, version, timeout_s=30)

    unique_bytes = sum(path.stat().st_size for path in source.iterdir())
    assert cluster.proxy.body_bytes_sent <= 1.05 * unique_bytes
    received = [agent.bytes_by_source(version) for agent in agents]
    assert sum(sources["origin"] for sources in received) <= 1.05 * unique_bytes
    for sources in received:
        assert sum(sources.values()) == unique_bytes, received
    assert min(sources["peer_same_zone"] for sources in received) > 0, received


def test_a_node_that_comes_later_is_served_by_its_peers(cluster: Cluster, tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", M8)
    version = str(cluster.publish(source, "--chunk-size", "64KiB")["version"])
    cluster.swarm("channel", "set", CHANNEL, "model@v1")
    first = cluster.start_agents(2, "--channel", CHANNEL)
    cluster.wait_ready(first, version, timeout_s=30)
    sent_before = cluster.proxy.body_bytes_sent

    late = cluster.start_agents(1, "--channel", CHANNEL)
    cluster.wait_ready(late, version, timeout_s=30)

    assert_same_files(late, version, source)
    assert late[0].bytes_by_source(version)["origin"] == 0
    payload = sum(path.stat().st_size for path in source.iterdir())
    assert cluster.proxy.body_bytes_sent - sent_before < 0.05 * payload, "more than documents"
