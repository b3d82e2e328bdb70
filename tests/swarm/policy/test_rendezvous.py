"""Every chunk has one first reader, on whom all agree."""

from __future__ import annotations

from swarm.policy.rendezvous import Lines
from swarm.protocol.chunk_set import iter_bits
from swarm.protocol.ids import NodeId
from tests.support.story import OTHER_VERSION, VERSION

CHUNKS = 96
ALL = (1 << CHUNKS) - 1
NODES = [NodeId(bytes([index]) * 16) for index in range(6)]


def mine(lines: Lines, nodes: list[NodeId], rank_max: int = 0) -> int:
    """Everything a node finds to be its own, asked until nothing is left unranked."""
    found, left = 0, ALL
    while True:
        part = lines.mine(VERSION, left, nodes, rank_max)
        found |= part
        left &= ~part
        if not part and not lines.has_more:
            return found


def test_every_chunk_has_exactly_one_first_reader() -> None:
    parts = [mine(Lines(node), NODES) for node in NODES]
    assert sum(part.bit_count() for part in parts) == CHUNKS
    assert all(part.bit_count() > 4 for part in parts)
    union = 0
    for part in parts:
        union |= part
    assert union == ALL


def test_all_agree_whatever_the_order_in_which_they_know_the_nodes() -> None:
    assert mine(Lines(NODES[2]), NODES) == mine(Lines(NODES[2]), NODES[::-1])


def test_the_next_in_line_takes_over_the_lines_of_a_lost_node_and_no_others() -> None:
    lost = mine(Lines(NODES[0]), NODES)
    for node in NODES[1:]:
        before, after = mine(Lines(node), NODES), mine(Lines(node), NODES[1:])
        assert before & ~after == 0
        assert after & ~before & ~lost == 0


def test_a_later_rank_opens_more_lines() -> None:
    lines = Lines(NODES[3])
    first = mine(lines, NODES)
    assert mine(lines, NODES, 1) & first == first
    assert mine(lines, NODES, len(NODES) - 1) == ALL


def test_a_change_of_membership_is_noticed() -> None:
    lines = Lines(NODES[0])
    assert mine(lines, NODES) != ALL
    assert mine(lines, NODES[:1]) == ALL


def test_few_chunks_are_ranked_in_one_step() -> None:
    nodes = [NODES[0], *(NodeId(bytes([200 + i]) * 16) for i in range(40))]
    lines = Lines(NODES[0])
    steps, nobody = 0, -1
    while not steps or lines.has_more:
        assert not lines.mine(VERSION, ALL, nodes, nobody)
        steps += 1
    assert steps == CHUNKS // 32


def test_versions_have_lines_of_their_own() -> None:
    lines = Lines(NODES[0])
    first = set(iter_bits(mine(lines, NODES)))
    part = lines.mine(OTHER_VERSION, ALL, NODES, 0)
    assert set(iter_bits(part)) - first
