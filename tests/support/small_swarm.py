"""The swarm of the laboratory as a scenario: nodes at 64 Mbit/s, chunks of 256 KiB, RTT 1 ms."""

from __future__ import annotations

from simulations.cluster import Cluster
from simulations.measure import Outcome
from simulations.node_driver import NodeDriver
from simulations.scenario import (
    LinkShape,
    NodeGroup,
    OriginShape,
    Scenario,
    TrackerShape,
    VersionShape,
)
from swarm.policy.settings import NodeSettings

NIC_BYTES_PER_S = 8e6
CHUNK_BYTES = 256 * 1024
RTT_S = 0.001


def small_group(
    count: int = 12,
    *,
    nic_factor: float = 1.0,
    told_nic: float | None = None,
    settings: NodeSettings | None = None,
    held_share: float = 0.0,
    starts_at_s: float = 0.0,
    name: str = "nodes",
) -> NodeGroup:
    """Nodes that are told the NIC of a usual node, unless another is given."""
    nic = NIC_BYTES_PER_S * nic_factor
    return NodeGroup(
        count,
        nic,
        nic,
        name=name,
        held_share=held_share,
        starts_at_s=starts_at_s,
        told_nic_bytes_per_s=NIC_BYTES_PER_S if told_nic is None else told_nic,
        settings=settings or NodeSettings(),
    )


def small_swarm(
    *groups: NodeGroup,
    chunk_count: int = 96,
    origin_nics: float | None = 1.0,
    has_tracker: bool = True,
    mode: str = "",
) -> Scenario:
    """Twelve nodes and an origin as fast as one of them, unless told otherwise."""
    return Scenario(
        VersionShape(chunk_count * CHUNK_BYTES, CHUNK_BYTES),
        groups or (small_group(),),
        links=LinkShape(rtt_s=RTT_S, zone_rtt_s=RTT_S),
        origin=OriginShape(origin_nics * NIC_BYTES_PER_S, rtt_s=RTT_S)
        if origin_nics is not None
        else None,
        tracker=TrackerShape(RTT_S) if has_tracker else None,
        mode=mode,
    )


def run_whole(scenario: Scenario, seed: int = 1) -> Outcome:
    """Until every living node has the version, with everything checked on the way."""
    cluster = Cluster(scenario, seed)
    outcome = cluster.run()
    cluster.require_finished()
    return outcome


def members(cluster: Cluster) -> list[NodeDriver]:
    """All nodes, in the order of their birth."""
    return list(cluster.world.drivers.values())
