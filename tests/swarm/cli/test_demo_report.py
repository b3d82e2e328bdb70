"""What a demonstration says about itself, from literal numbers."""

from __future__ import annotations

import pytest

from swarm.cli.agent_api import VersionDocument
from swarm.cli.demo_report import DemoResult, NodeResult, bound_s, demo_document, demo_table
from swarm.cli.demo_view import NodeLook, total_progress

MB = 10**6


@pytest.mark.parametrize(
    ("nodes", "bound"),
    [
        # One node: its link and the origin's.
        (1, 2.0),
        # The common uplink capacity of N nodes and the origin is N+1 links for N copies.
        (8, 2.0),
        (1000, 2.0),
    ],
)
def test_with_equal_rates_one_link_is_the_bound(nodes: int, bound: float) -> None:
    assert bound_s(100 * MB, nodes, 50 * MB) == pytest.approx(bound)


def result() -> DemoResult:
    def node(name: str, seconds: float, origin: int, peers: int) -> NodeResult:
        sources = {"origin": origin, "peer_same_zone": peers, "peer_other_zone": 0, "local": 0}
        return NodeResult(name, seconds, sources, wasted_bytes=1, sent_bytes=peers)

    nodes = (node("node1", 2.2, 60 * MB, 40 * MB), node("node2", 2.5, 42 * MB, 58 * MB))
    return DemoResult("ab" * 32, 100 * MB, 50 * MB, 102 * MB, nodes)


def test_the_document_accounts_for_every_byte() -> None:
    document = demo_document(result())
    assert document["nodes"] == 2
    assert document["bytes_by_source"] == {
        "origin": 102 * MB, "peer_same_zone": 98 * MB, "peer_other_zone": 0, "local": 0,
    }  # fmt: skip
    assert document["origin_copies"] == 1.02
    assert document["time_ratio"] == 1.25
    assert document["wasted_bytes"] == 2


def test_the_table_compares_with_no_swarm_at_all() -> None:
    text = demo_table(result())
    assert text.splitlines()[0].startswith("NODE")
    assert "1.25 x the bound" in text
    assert "1.020 copies" in text
    assert "taken 2 and 4.0s" in text


def test_the_sum_over_nodes_is_one_transfer() -> None:
    document = VersionDocument(
        version="ab" * 32,
        directory="/d",
        ready=False,
        chunks=10,
        chunks_held=4,
        seconds=1.0,
        bytes=100,
        bytes_held=40,
        bytes_by_source={"origin": 10, "peer_same_zone": 30},
        wasted_bytes=3,
        idle_s=0.0,
        waiting="",
        problem="",
    )
    looks = [NodeLook("a", document, "a lease", None), NodeLook("b", None, "", None)]
    progress = total_progress(looks, 100)
    assert (progress.done_bytes, progress.total_bytes, progress.wasted_bytes) == (40, 200, 3)
    assert progress.bytes_by_source == {"origin": 10, "peer_same_zone": 30}
    assert progress.waiting == "0 of 2 ready; a: a lease"
