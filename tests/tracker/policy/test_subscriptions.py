"""Interest comes and goes: what an agent follows, and when it is forgotten."""

from __future__ import annotations

import pytest

from swarm.errors import ConflictError, UsageError
from swarm.protocol.ids import ChunkIndex, LeaseId, NodeId, VersionId
from swarm.protocol.tracker_api import (
    ChannelChange,
    LeaseEnd,
    LeaseOutcome,
    LeaseProgress,
    Listen,
    VersionReport,
)
from tests.support.tracker_fleet import VERSION, Fleet, publish_record
from tracker.policy.swarms import CHUNK_COUNT_MAX

OTHER = VersionId(b"o" * 32)


def set_channel(fleet: Fleet, channel: str, revision: int) -> tuple[NodeId, ...]:
    """Who hears of it."""
    fleet.tracker.take_changed()
    fleet.tracker.change_channel(ChannelChange(channel, revision, VERSION, 0.0, "", ""))
    return fleet.tracker.take_changed()


def test_an_agent_that_follows_another_channel_hears_of_that_one() -> None:
    fleet = Fleet()
    a = fleet.agent("a")
    a.channels = ("prod",)
    a.listen()
    a.channels = ("canary",)
    a.listen()
    assert set_channel(fleet, "prod", 1) == ()
    assert set_channel(fleet, "canary", 1) == (a.node_id,)


def test_an_agent_that_stopped_listening_is_forgotten() -> None:
    fleet = Fleet()
    a = fleet.agent("a")
    a.channels = ("prod",)
    a.listen()
    fleet.joined("keeps time")
    fleet.at(50.0)
    assert set_channel(fleet, "prod", 1) == (a.node_id,)
    fleet.at(90.0)
    assert set_channel(fleet, "prod", 2) == ()


def test_goodbye_ends_the_interest() -> None:
    fleet = Fleet()
    a = fleet.agent("a")
    a.channels = ("prod",)
    a.listen()
    a.report()
    a.report(is_leaving=True)
    assert set_channel(fleet, "prod", 1) == ()


def test_a_second_boot_takes_over_what_is_heard() -> None:
    fleet = Fleet()
    first, second = fleet.agent("a"), fleet.agent("a", generation=2)
    first.listen()
    second.listen()
    with pytest.raises(ConflictError, match="generation 2"):
        first.listen()


def test_interest_has_a_bound() -> None:
    fleet = Fleet()
    a = fleet.agent("a")
    many = tuple(f"c{number}" for number in range(200))
    with pytest.raises(UsageError):
        fleet.tracker.listen(a.identity, Listen((0, 0), (), many), now=fleet.now)
    said = VersionReport(OTHER, None, (), (), is_ready=False)
    with pytest.raises(UsageError):
        a.report(versions=(said,) * 65)
    huge = VersionReport(
        OTHER, None, (), (), False, chunk_count=CHUNK_COUNT_MAX + 1, chunk_bytes=65536
    )
    with pytest.raises(UsageError):
        a.report(versions=(huge,))


def test_agents_that_wait_for_a_version_hear_when_it_is_registered() -> None:
    fleet = Fleet()
    a = fleet.agent("a")
    a.report(versions=())
    listen = Listen((0, 0), (OTHER,), ())
    first = fleet.tracker.listen(a.identity, listen, now=fleet.now)
    assert first is not None
    assert first.versions[0].leases == ()
    said = VersionReport(OTHER, b"\x00", (), (), is_ready=False)
    a.report(versions=(said,))
    fleet.tracker.catalog.add(publish_record(OTHER, chunks=3))
    fleet.tracker.version_registered(OTHER, now=fleet.now)
    assert a.node_id in fleet.tracker.take_changed()
    a.report(versions=(said,))
    reply = fleet.tracker.listen(a.identity, listen, now=fleet.now)
    assert reply is not None
    assert len(reply.versions[0].leases) == 3


def test_the_last_words_of_a_leaving_agent_count() -> None:
    """Its goodbye carries the end of a lease: the chunk is not read again at once."""
    fleet = Fleet(chunks=1)
    a = fleet.joined("a")
    b = fleet.joined("b")
    (lease,) = a.leases.values()
    end = LeaseEnd(lease.lease, VERSION, lease.chunk, LeaseOutcome.VERIFIED, None, None)
    a.report(ended=(end,), is_leaving=True)
    b.listen()
    assert not b.leases
    assert fleet.tracker.statistics().leases_live == 0


def test_ends_of_unknown_leases_and_versions_do_nothing() -> None:
    fleet = Fleet(chunks=4)
    a = fleet.joined("a", "####")
    for version, chunk in ((OTHER, 0), (VERSION, 9)):
        for outcome in LeaseOutcome:
            end = LeaseEnd(LeaseId(5), version, ChunkIndex(chunk), outcome, None, None)
            a.report(ended=(end,))
    for outcome in (LeaseOutcome.FAILED, LeaseOutcome.UNAVAILABLE, LeaseOutcome.DECLINED):
        a.report(ended=(LeaseEnd(LeaseId(5), VERSION, ChunkIndex(0), outcome, None, None),))
    counts = fleet.swarm.leases.counts
    assert (counts.failed, counts.unavailable, counts.declined) == (0, 0, 0)
    assert fleet.swarm.members[a.node_id].peer.failures == 0


@pytest.mark.parametrize("chunk", [0, 9, None])
def test_a_lease_of_before_the_restart_is_adopted_only_if_its_chunk_is_free(
    chunk: int | None,
) -> None:
    fleet = Fleet(chunks=4)
    fleet.restart()
    fleet.joined("b", "#...")
    a = fleet.agent("a")
    a.sequence = 7
    index = None if chunk is None else ChunkIndex(chunk)
    a.report(leases=(LeaseProgress(LeaseId(3), 0, VERSION, index),))
    assert fleet.swarm.leases.counts.adopted == 0
    fleet.check()


def test_accusing_oneself_or_a_stranger_does_nothing() -> None:
    fleet = Fleet(chunks=1)
    a = fleet.joined("a", "#")
    a.report(unreachable=(a.node_id, NodeId(b"?" * 16)))
    assert a.node_id in fleet.tracker.membership.peers
