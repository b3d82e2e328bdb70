"""A check that could not fail would prove nothing: each is shown a run that breaks its rule."""

from __future__ import annotations

import pytest

from simulations.checks import CheckFailed
from simulations.cluster import Cluster
from swarm.protocol.ids import ChunkIndex
from tests.support.small_swarm import members, small_group, small_swarm


def cluster() -> Cluster:
    return Cluster(small_swarm(small_group(4), chunk_count=40))


def test_a_chunk_that_is_not_held_is_not_served() -> None:
    """The store of one node forgets what its policy believes to hold."""
    broken = cluster()
    victim = members(broken)[0]

    def forget() -> None:
        victim.held = 0

    broken.world.timeline.at(0.6, forget)
    with pytest.raises(CheckFailed, match=r"serves chunk .* unverified"):
        broken.run()


def test_an_origin_read_without_a_lease_is_found() -> None:
    broken = cluster()
    broken.run(0.3)
    member = next(m for m in members(broken) if not m.has_lease(ChunkIndex(39)))
    with pytest.raises(CheckFailed, match="without a lease"):
        broken.world.checks.origin_read(member, ChunkIndex(39), 0.3)


def test_more_reads_than_leases_are_found() -> None:
    broken = cluster()
    broken.world.checks.leased_read_count = 5
    broken.world.checks.granted(5)
    with pytest.raises(CheckFailed, match="5 leased reads of the origin, but 4 leases"):
        broken.world.checks.granted(4)


def test_a_link_that_carries_too_much_is_found() -> None:
    broken = cluster()
    broken.run()
    members(broken)[1].up.passed_bytes *= 3
    with pytest.raises(CheckFailed, match=r"uplink of node 2 .* carried"):
        broken.world.checks.end(broken.world)


def test_bytes_that_come_from_nowhere_are_found() -> None:
    broken = cluster()
    broken.run()
    members(broken)[1].down.passed_bytes -= 1e6
    with pytest.raises(CheckFailed, match=r"were sent and .* received"):
        broken.world.checks.end(broken.world)


def test_a_node_whose_books_are_wrong_is_found() -> None:
    broken = cluster()
    broken.run()
    members(broken)[2].held ^= 1
    with pytest.raises(CheckFailed, match="says that it holds"):
        broken.world.checks.end(broken.world)


def test_who_does_not_finish_is_named() -> None:
    broken = cluster()
    broken.run(0.2)
    with pytest.raises(CheckFailed, match=r"4 nodes are not complete at 0\..* of 40"):
        broken.require_finished()


def test_a_run_in_which_time_stands_still_is_ended() -> None:
    broken = cluster()
    timeline = broken.world.timeline

    def again() -> None:
        timeline.after(0.0, again)

    timeline.at(0.1, again)
    with pytest.raises(CheckFailed, match=r"time stands still at 0\.100000 s"):
        broken.run()
