"""What a profile adds to a scenario: headers, gaps between chunks, handshakes, a machine shared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simulations.data_links import DataLinks
from simulations.processor import Processor
from simulations.scenario import (
    ChunkCost,
    LinkShape,
    NodeGroup,
    OriginShape,
    Scenario,
    VersionShape,
)
from simulations.scenario_file import read_scenario
from swarm.errors import UsageError
from swarm.policy.settings import NodeSettings
from swarm.protocol.ids import NodeId, SessionId
from tests.support.small_swarm import run_whole

CHUNK_COUNT = 100
CHUNK_BYTES = 1_000_000
FROM_ORIGIN = Scenario(
    VersionShape(CHUNK_COUNT * CHUNK_BYTES, CHUNK_BYTES),
    (NodeGroup(1, 1e8, 1e8),),
    origin=OriginShape(1e7),
)
ONE_SESSION = NodeSettings(session_count=1)
FROM_A_SEED = Scenario(
    FROM_ORIGIN.version,
    (
        NodeGroup(1, 1e7, 1e7, name="seed", held_share=1.0),
        NodeGroup(1, 1e7, 1e7, settings=ONE_SESSION),
    ),
)


def seconds(scenario: Scenario, links: LinkShape) -> float:
    return run_whole(replace(scenario, links=links)).seconds[-1]


@pytest.mark.parametrize("scenario", [FROM_ORIGIN, FROM_A_SEED])
def test_headers_take_their_part_of_every_card(scenario: Scenario) -> None:
    plain, with_headers = (seconds(scenario, LinkShape(header_share=h)) for h in (0.0, 0.1))
    assert with_headers == pytest.approx(1.1 * plain, rel=0.005)
    assert run_whole(replace(scenario, links=LinkShape(header_share=0.1))).origin_copies in (
        0.0,
        1.0,
    )


def test_each_chunk_of_a_session_waits_for_its_gap() -> None:
    plain, with_gap = (seconds(FROM_A_SEED, LinkShape(gap_s=gap)) for gap in (0.0, 0.01))
    assert with_gap - plain == pytest.approx(CHUNK_COUNT * 0.01, rel=0.05)


def test_a_link_costs_its_handshake_once() -> None:
    """The control link's, then the data link's; the session that follows finds it open."""
    plain = seconds(FROM_A_SEED, LinkShape(handshake_s=0.0))
    slow = seconds(FROM_A_SEED, LinkShape(handshake_s=0.4))
    assert slow - plain == pytest.approx(0.8, abs=0.1)


def test_a_link_serves_the_next_session_unless_it_broke() -> None:
    links = DataLinks(0.5)
    peer, other = NodeId(bytes(16)), NodeId(bytes([1]) * 16)
    first, second, third = SessionId(1), SessionId(2), SessionId(3)
    assert links.wait_s(peer, first) == 0.5
    assert links.wait_s(peer, first) == 0.0
    links.ended(peer, first)
    assert links.wait_s(other, second) == 0.5
    assert links.wait_s(peer, third) == 0.0
    links.broken(third)
    links.ended(peer, third)
    assert links.wait_s(peer, SessionId(4)) == 0.5
    assert DataLinks(None).wait_s(peer, first) == 0.0


def test_a_job_goes_to_the_processor_that_is_free_first() -> None:
    processor = Processor(2)
    assert [processor.take(0.0, 1.0) for _ in range(3)] == [1.0, 1.0, 2.0]
    assert processor.take(5.0, 1.0) == 6.0


def test_nodes_of_one_machine_wait_for_its_processors() -> None:
    """400 chunks of 50 ms on two processors are ten seconds, whatever the network gives."""
    cost = ChunkCost(per_chunk_s=0.05)
    fleet = replace(FROM_ORIGIN, groups=(NodeGroup(4, 1e9, 1e9),), origin=OriginShape(1e9))
    alone = run_whole(replace(fleet, chunk_cost=cost)).seconds[-1]
    shared = run_whole(replace(fleet, chunk_cost=replace(cost, shared_count=2))).seconds[-1]
    assert alone == pytest.approx(CHUNK_COUNT * 0.05, rel=0.15)
    assert shared == pytest.approx(4 * CHUNK_COUNT * 0.05 / 2, rel=0.05)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("[links]\nheaders = 0.05", "no unit"),
        ('[links]\ngap = "1kg"', "links.gap"),
        ('[links]\nhandshake = "-1ms"', "negative"),
        ("[hashing]\nshared_processors = -1", "shared_processors"),
    ],
)
def test_bad_values_are_named(table: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(
        '[version]\nsize = "1MB"\nchunks = 4\n[[nodes]]\ncount = 1\nnic = "1Gbit/s"\n'
        f'[origin]\nrate = "1Gbit/s"\n{table}\n'
    )
    with pytest.raises(UsageError, match=said):
        read_scenario(path)
