"""Zones with real agents: three zones of two nodes on loopback, a tracker and an origin."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.agent.accounting import Source
from tests.support.fleet import Fleet
from tests.support.models import M8, write_model

pytestmark = pytest.mark.cluster

ZONES = ("a", "b", "c")


async def test_each_byte_enters_each_further_zone_once(fleet: Fleet, tmp_path: Path) -> None:
    """By the ledgers of the agents: two copies cross for three zones, and one leaves the origin.
    The slack is for leases that a busy machine lets be overtaken."""
    model = write_model(tmp_path / "model", M8)
    published = await fleet.publish(model)
    await fleet.set_channel("production", published.version)
    nodes = [fleet.node(channels=("production",), zone=ZONES[index % 3]) for index in range(6)]
    for node in nodes:
        await node.start()
    await fleet.wait_ready(nodes, published.version)

    total = sum(nodes[0].status(published.version).bytes_by_source.values())
    crossed = sum(node.received(published.version, Source.PEER_OTHER_ZONE) for node in nodes)
    read = sum(node.received(published.version, Source.ORIGIN) for node in nodes)
    assert crossed <= 2.1 * total, f"{crossed / total:.2f} copies crossed"
    assert read <= 1.1 * total, f"{read / total:.2f} copies were read"
    for zone in ZONES:
        came = sum(
            node.received(published.version, source)
            for node in nodes
            if node.settings.zone == zone
            for source in (Source.PEER_OTHER_ZONE, Source.ORIGIN)
        )
        assert total <= came <= 1.1 * total, f"{came / total:.2f} copies came into {zone}"
