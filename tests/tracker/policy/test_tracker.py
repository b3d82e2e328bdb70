"""Delivery, generations, restarts, expiry: the rules between an agent and the tracker."""

from __future__ import annotations

import pytest

from swarm.errors import ConflictError, UsageError
from swarm.protocol.ids import ChunkIndex, LeaseId, VersionId
from swarm.protocol.tracker_api import LeaseEnd, LeaseOutcome, Listen, VersionReport
from tests.support.tracker_fleet import VERSION, Fleet, bits_of_picture


def test_both_calls_may_come_first() -> None:
    fleet = Fleet()
    a = fleet.agent("a")
    assert a.listen() is None
    a.report()
    assert a.node_id in fleet.tracker.take_changed()
    assert a.listen() is not None
    b = fleet.agent("b")
    b.report()
    assert b.listen() is not None


def test_nothing_new_is_held() -> None:
    fleet = Fleet(chunks=1)
    a = fleet.joined("a", "#")
    assert a.listen() is None
    fleet.joined("b", "#")
    assert a.listen() is None


def test_another_epoch_means_send_all() -> None:
    fleet = Fleet(chunks=1)
    a = fleet.joined("a", "#")
    fleet.restart()
    a.report()
    reply = a.listen()
    assert reply is not None
    assert reply.seen[0] == 2
    assert [state.version for state in reply.versions] == [VERSION]


def test_a_lease_absent_from_the_first_report_is_sent_again_then_taken_back() -> None:
    fleet = Fleet(chunks=8)
    a = fleet.joined("a")
    leases = dict(a.leases)
    fleet.at(0.5)
    a.report(leases=())
    assert a.listen() is not None
    assert a.leases == leases
    fleet.at(1.5)
    a.report(leases=())
    assert fleet.swarm.leases.live
    fleet.at(2.6)
    assert fleet.swarm.leases.counts.returned_unlisted == 8


def test_a_lease_that_is_listed_after_it_was_sent_again_stays() -> None:
    fleet = Fleet(chunks=8)
    a = fleet.joined("a")
    leases = dict(a.leases)
    # The report crossed the first answer.
    a.report(leases=())
    a.listen()
    fleet.at(0.5)
    a.report()
    fleet.at(4.0)
    a.report()
    assert fleet.swarm.leases.counts.returned_unlisted == 0
    assert dict(a.leases) == leases


def test_a_lease_that_nobody_heard_of_returns_after_two_seconds() -> None:
    fleet = Fleet(chunks=1)
    deaf = fleet.agent("deaf")
    deaf.listen()
    deaf.report()
    assert fleet.leased == 1
    fleet.at(1.9)
    assert fleet.leased == 1
    fleet.at(2.6)
    assert fleet.leased == 0


def test_a_completion_under_an_unknown_id_still_records_ownership() -> None:
    fleet = Fleet(chunks=4)
    a = fleet.joined("a", "##..")
    end = LeaseEnd(LeaseId(77), VERSION, ChunkIndex(2), LeaseOutcome.VERIFIED, None, None)
    a.held = bits_of_picture("###.")
    a.report(versions=(VersionReport(VERSION, None, (), (), is_ready=False),), ended=(end,))
    assert fleet.swarm.availability.held == bits_of_picture("###.")


def test_an_older_report_changes_nothing() -> None:
    fleet = Fleet(chunks=4)
    a = fleet.joined("a", "##..")
    a.held = bits_of_picture("####")
    a.report(sequence=1)
    assert fleet.swarm.availability.held == bits_of_picture("##..")


def test_a_gap_in_the_sequence_asks_for_everything() -> None:
    fleet = Fleet()
    a = fleet.joined("a")
    assert not a.report().needs_resync
    a.sequence += 1
    assert a.report().needs_resync
    assert not a.report().needs_resync


def test_deltas_of_an_unknown_agent_ask_for_everything() -> None:
    fleet = Fleet(chunks=4)
    a = fleet.agent("a")
    delta = VersionReport(VERSION, None, (ChunkIndex(1),), (), is_ready=False)
    assert a.report(versions=(delta,)).needs_resync
    a.held = bits_of_picture("##..")
    assert not a.report().needs_resync
    assert fleet.swarm.availability.held == bits_of_picture("##..")
    assert not a.report(
        versions=(VersionReport(VERSION, None, (ChunkIndex(2),), (ChunkIndex(0),), is_ready=False),)
    ).needs_resync
    assert fleet.swarm.availability.held == bits_of_picture(".##.")
    fleet.check()


def test_a_higher_generation_returns_everything_of_the_former() -> None:
    fleet = Fleet(chunks=4)
    a = fleet.joined("a")
    b = fleet.joined("b")
    assert len(a.leases) == 4
    second = fleet.agent("a", generation=2)
    second.report()
    b.listen()
    assert len(b.leases) == 4
    fleet.check()


def test_a_lower_generation_is_told_of_its_successor() -> None:
    fleet = Fleet()
    a = fleet.joined("a")
    second = fleet.agent("a", generation=2)
    second.report()
    with pytest.raises(ConflictError, match="generation 2"):
        a.report()
    with pytest.raises(ConflictError, match="generation 2"):
        a.listen()


def test_an_agent_expires_after_three_missed_reports_and_rejoins_whole() -> None:
    fleet = Fleet(chunks=4)
    a = fleet.joined("a", "####")
    b = fleet.joined("b", "####")
    for second in (5.0, 10.0, 15.0):
        fleet.at(second)
        b.report()
    fleet.at(15.9)
    assert a.node_id in fleet.tracker.membership.peers
    fleet.at(16.1)
    assert a.node_id not in fleet.tracker.membership.peers
    b.listen()
    delta = VersionReport(VERSION, None, (), (), is_ready=True)
    assert a.report(versions=(delta,)).needs_resync
    fleet.check()


def test_a_lease_holder_is_missed_sooner() -> None:
    """Told to report every second, it is gone after four."""
    fleet = Fleet(chunks=4)
    a = fleet.joined("a")
    assert a.report().interval_s == 1.0
    fleet.at(3.9)
    assert a.node_id in fleet.tracker.membership.peers
    fleet.at(4.1)
    assert a.node_id not in fleet.tracker.membership.peers


def test_goodbye_twice_is_goodbye_once() -> None:
    fleet = Fleet(chunks=4)
    a = fleet.joined("a", "####")
    b = fleet.joined("b", "####")
    a.report(is_leaving=True)
    a.report(is_leaving=True)
    b.listen()
    assert a.node_id not in fleet.tracker.membership.peers
    assert b.handout == ()
    fleet.check()


def test_two_accusers_remove_an_agent_and_keep_it_out_for_a_minute() -> None:
    fleet = Fleet(chunks=4)
    target = fleet.joined("t", "####")
    a, b = fleet.joined("a"), fleet.joined("b")
    a.report(unreachable=(target.node_id,))
    assert target.node_id in fleet.tracker.membership.peers
    b.report(unreachable=(target.node_id,))
    assert target.node_id not in fleet.tracker.membership.peers
    # It is alive and comes back, but nobody is sent there and its chunks do not count.
    fleet.at(1.0)
    target.report()
    a.listen()
    assert "t" not in a.handout
    assert fleet.swarm.availability.held == 0
    for second in range(4, 63):
        fleet.at(float(second))
        for agent in (a, b, target):
            agent.report()
            agent.listen()
    assert fleet.swarm.availability.held == 0b1111
    fleet.check()


def test_one_accuser_twice_is_one_accuser() -> None:
    fleet = Fleet(chunks=4)
    target = fleet.joined("t", "####")
    a = fleet.joined("a")
    a.report(unreachable=(target.node_id,))
    a.report(unreachable=(target.node_id,))
    assert target.node_id in fleet.tracker.membership.peers


def test_after_a_restart_nothing_is_granted_until_all_have_reported() -> None:
    fleet = Fleet(chunks=4)
    b = fleet.joined("b", "..##")
    a = fleet.joined("a", "##..")
    fleet.at(2.0)
    fleet.restart()
    a.report(leases=())
    a.listen()
    # `a` alone would make chunks 2 and 3 look lost.
    assert not a.leases
    fleet.at(6.0)
    b.report()
    fleet.at(8.5)
    a.report()
    a.listen()
    b.listen()
    assert not a.leases
    assert not b.leases


def test_after_a_restart_held_leases_go_on() -> None:
    fleet = Fleet(chunks=8)
    a = fleet.joined("a")
    before = dict(a.leases)
    fleet.at(2.0)
    fleet.restart()
    # Its listen comes first: no answer may say that it holds nothing.
    assert a.listen() is None
    a.report()
    a.listen()
    assert a.leases == before
    assert fleet.swarm.leases.counts.adopted == 8
    fleet.check()


def test_a_revoked_lease_is_not_adopted() -> None:
    fleet = Fleet(chunks=1)
    a = fleet.joined("a")
    (lease,) = a.leases.values()
    fleet.swarm.set_mode(fleet.swarm.mode.STOP)
    fleet.swarm.set_mode(fleet.swarm.mode.AUTO)
    a.report()
    assert fleet.swarm.leases.counts.adopted == 0
    a.listen()
    assert lease.lease not in a.leases


def test_reports_of_a_large_fleet_are_stretched() -> None:
    fleet = Fleet(chunks=1)
    agents = [fleet.joined(f"n{number:05}", "#") for number in range(50)]
    assert agents[0].report().interval_s == 5.0
    # As if there were 10,000.
    peers = fleet.tracker.membership.peers
    for number in range(9_950):
        peers[fleet.agent(f"x{number:05}").node_id] = peers[agents[0].node_id]
    assert 9.9 < agents[1].report().interval_s < 10.1


def test_a_version_that_nobody_registered_is_led_once_its_size_is_said() -> None:
    fleet = Fleet(chunks=4)
    unknown = VersionId(b"u" * 32)
    a = fleet.agent("a")
    vague = VersionReport(unknown, b"\x00", (), (), is_ready=False)
    a.report(versions=(vague,))
    listen = Listen((0, 0), (unknown,), ())
    reply = fleet.tracker.listen(a.identity, listen, now=fleet.now)
    assert reply is not None
    assert reply.versions[0].leases == ()
    said = VersionReport(unknown, b"\x00", (), (), False, chunk_count=3, chunk_bytes=65536)
    a.report(versions=(said,))
    reply = fleet.tracker.listen(a.identity, listen, now=fleet.now)
    assert reply is not None
    assert {lease.chunk for lease in reply.versions[0].leases} == {0, 1, 2}


@pytest.mark.parametrize(
    "said",
    [
        VersionReport(VERSION, b"\x00\x00", (), (), is_ready=False),
        VersionReport(VERSION, b"\xf0", (), (), is_ready=False),
        VersionReport(VERSION, None, (ChunkIndex(4),), (), is_ready=False),
        VersionReport(VERSION, b"\x00", (), (), False, chunk_count=5, chunk_bytes=1),
    ],
)
def test_a_report_that_cannot_be_true_changes_nothing(said: VersionReport) -> None:
    fleet = Fleet(chunks=4)
    a = fleet.joined("a", "#...")
    with pytest.raises(UsageError):
        a.report(versions=(said,))
    assert fleet.swarm.availability.held == 1
    a.sequence -= 1
    assert not a.report().needs_resync


def test_an_agent_that_drops_a_version_is_out_of_its_swarm() -> None:
    fleet = Fleet(chunks=4)
    a = fleet.agent("a")
    a.held = 0b1111
    a.report()
    assert VERSION in fleet.tracker.swarms.by_version
    a.report(versions=())
    assert VERSION not in fleet.tracker.swarms.by_version
