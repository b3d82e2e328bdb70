"""Two racks of real agents: who asks whom, and how often a chunk crosses from one to the other."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import pytest

from swarm.policy.commands import RequestChunk, SendClaim
from swarm.policy.events import ChunkVerified, ClaimReceived
from swarm.protocol.ids import NodeId
from tests.support.fleet import Fleet, FleetNode
from tests.support.models import M8, write_model

pytestmark = pytest.mark.cluster

Order = TypeVar("Order")

CHANNEL = "production"
NIC_BYTES_PER_S = 4_000_000
"""Two seconds for the whole model, and 16 ms for a chunk: claims arrive well before chunks do."""


async def test_a_chunk_crosses_into_a_rack_about_once(fleet: Fleet, tmp_path: Path) -> None:
    """Two racks of three, one of their agents a process that was told its rack on its command
    line. Where all ask all, a chunk crosses from one to the other about three times; the slack is
    for chunks that two mates begin before either hears the other's claim."""
    setting = {
        "channels": (CHANNEL,),
        "nic_bytes_per_s": NIC_BYTES_PER_S,
        "uplink_bytes_per_s": NIC_BYTES_PER_S,
    }
    one = await fleet.start(3, rack="r1", **setting)
    two = await fleet.start(2, rack="r2", **setting)
    rate = ("--nic-rate", f"{NIC_BYTES_PER_S}B/s", "--uplink-limit", f"{NIC_BYTES_PER_S}B/s")
    process = fleet.process(*fleet.tracker_flags, "--channel", CHANNEL, "--rack", "r2", *rate)
    process.start()
    await fleet.wait(process.socket.exists, "the process is up")
    result = await fleet.publish(write_model(tmp_path / "model", M8))
    await fleet.set_channel(CHANNEL, result.version)
    nodes = [*one, *two]
    await fleet.wait_ready(nodes, result.version)

    racks = {node.running.identity.node_id: node.settings.rack for node in nodes}
    crossed = sum(len(imported(node, racks)) for node in nodes)
    assert crossed <= 1.3 * result.chunks
    for node in nodes:
        mates = {claim.peer for claim in orders(node, SendClaim)}
        # The process is in no table, and is told of imports like any mate.
        assert all(racks.get(mate, "r2") == node.settings.rack for mate in mates)
        assert len(mates) == 2
        assert heard(node), "its mates claim too"


def imported(node: FleetNode, racks: dict[NodeId, str]) -> list[RequestChunk]:
    """Requests to the other rack that ended well."""
    verified = {
        event.transfer
        for _, events, _ in node.running.decider.node.story()
        for event in events
        if isinstance(event, ChunkVerified)
    }
    return [
        request
        for request in orders(node, RequestChunk)
        if racks.get(request.peer, "r2") != node.settings.rack and request.transfer in verified
    ]


def orders(node: FleetNode, kind: type[Order]) -> list[Order]:
    story = node.running.decider.node.story()
    return [order for _, _, commands in story for order in commands if isinstance(order, kind)]


def heard(node: FleetNode) -> int:
    story = node.running.decider.node.story()
    return sum(isinstance(event, ClaimReceived) for _, events, _ in story for event in events)
