"""Stories of leases, told through the tracker's own doors with literal times."""

from __future__ import annotations

import pytest

from swarm.protocol.tracker_api import Lease, LeaseOutcome, Mode
from tests.support.tracker_fleet import CHUNK_BYTES, VERSION, FakeAgent, Fleet, bits_of_picture
from tracker.policy.settings import TrackerSettings


def leases_of(*agents: FakeAgent) -> list[tuple[FakeAgent, Lease]]:
    """All leases, in the order of granting."""
    found = [(agent, lease) for agent in agents for lease in agent.leases.values()]
    return sorted(found, key=lambda pair: pair[1].lease)


def test_each_chunk_is_leased_once_and_none_that_is_held() -> None:
    fleet = Fleet(chunks=16)
    a = fleet.joined("a", "####")
    b = fleet.joined("b")
    for _ in range(4):
        a.listen()
        b.listen()
    assert not a.leased_chunks & b.leased_chunks
    assert not (a.leased_chunks | b.leased_chunks) & {0, 1, 2, 3}
    fleet.check()


def test_leases_start_at_twice_the_slots_of_an_agent() -> None:
    fleet = Fleet(chunks=100)
    a = fleet.joined("a")
    assert len(a.leases) == 8


def test_the_first_of_many_does_not_get_all_leases_of_the_start() -> None:
    """Those who join a moment later get theirs at once; what nobody came for goes to whom is there
    fifty milliseconds after the first."""
    fleet = Fleet(chunks=100, settings=TrackerSettings())
    a = fleet.joined("a")
    assert len(a.leases) == 2
    others = [fleet.joined(name) for name in ("b", "c")]
    assert [len(agent.leases) for agent in others] == [2, 2]
    fleet.at(0.05)
    agents = [a, *others]
    for agent in agents:
        agent.listen()
    assert len(leases_of(*agents)) == 8
    assert max(len(agent.leases) for agent in agents) == 3
    fleet.check()


def test_without_a_nic_one_lease_starts_for_each_incomplete_agent() -> None:
    fleet = Fleet(chunks=100)
    agents = [fleet.joined(f"n{number:02}") for number in range(12)]
    for agent in agents:
        agent.listen()
    assert fleet.swarm.controller.limit == 12
    assert len(leases_of(*agents)) == 12


def test_a_completion_leads_to_the_next_grant_at_once() -> None:
    fleet = Fleet(chunks=100)
    a = fleet.joined("a")
    first = next(iter(a.leases.values()))
    fleet.tracker.take_changed()
    a.verify(first)
    assert len(a.leases) == 8
    assert first.lease not in a.leases
    assert a.node_id in fleet.tracker.take_changed() or a.seen[1] > 0


def test_the_least_loaded_agent_gets_the_next_lease() -> None:
    fleet = Fleet(chunks=16)
    a = fleet.joined("a")
    b = fleet.joined("b")
    assert len(a.leases) == 8
    lease = next(iter(a.leases.values()))
    a.verify(lease)
    b.listen()
    assert len(b.leases) == 1


def test_an_agent_that_does_not_listen_gets_no_lease() -> None:
    fleet = Fleet(chunks=16)
    deaf = fleet.agent("deaf")
    deaf.report()
    assert not fleet.leased
    fleet.at(1.0)
    deaf.listen()
    deaf.listen()
    assert deaf.leases


def test_a_dead_holders_leases_return_at_once() -> None:
    fleet = Fleet(chunks=8)
    dead = fleet.joined("dead")
    other = fleet.joined("other")
    assert len(dead.leases) == 8
    for second in (1.0, 2.0, 3.0):
        fleet.at(second)
        other.report()
        other.listen()
    assert not other.leases
    # Told to report every second: gone after three reports and the slack.
    fleet.at(4.1)
    other.listen()
    assert len(other.leases) == 8
    assert fleet.swarm.leases.counts.returned_dead == 8
    fleet.check()


def test_an_orphan_waits_one_report_interval() -> None:
    """Chunk 0 was held by the one that left: somebody may have got it and not yet said so."""
    fleet = Fleet(chunks=4)
    holder = fleet.joined("holder", "####")
    other = fleet.joined("other")
    assert not other.leases
    fleet.at(1.0)
    holder.report(is_leaving=True)
    other.listen()
    assert not other.leases
    fleet.at(5.9)
    other.listen()
    assert not other.leases
    # In time it turns out that `other` had got chunk 0.
    other.held = bits_of_picture("#...")
    other.report()
    fleet.at(6.1)
    other.listen()
    assert other.leased_chunks == {1, 2, 3}


def test_overtaking_revokes_a_lease_that_hangs() -> None:
    """One lease gets nothing while later ones complete: after 2 × live + 4 of them it goes
    elsewhere, and its holder to the end of the line."""
    fleet = Fleet(chunks=200)
    a = fleet.joined("a")
    b = fleet.joined("b")
    stuck = next(iter(a.leases.values()))
    later = 0
    while stuck.lease in a.leases:
        live = len(fleet.swarm.leases.live)
        agent, lease = next(pair for pair in leases_of(a, b) if pair[1] != stuck)
        agent.verify(lease)
        later += 1
        a.listen()
        b.listen()
        assert later <= 2 * live + 4
    assert later >= 2 * (live - 1) + 4
    assert fleet.swarm.leases.counts.revoked_overtaken == 1
    assert fleet.swarm.members[a.node_id].peer.slow_until == fleet.now + 10.0
    assert fleet.swarm.leases.pool(a.held | b.held) >> stuck.chunk & 1 or stuck.chunk in (
        b.leased_chunks
    )
    fleet.check()


def test_slow_agents_come_last_but_one_agent_does_not_get_everything() -> None:
    """Five agents whose leases were overtaken count as slow; the sixth holds four leases more than
    they do, not all of them: it would be the only source of the swarm."""
    fleet = Fleet(chunks=200)
    agents = [fleet.joined(name) for name in "abcdef"]
    for agent in agents[1:]:
        fleet.swarm.members[agent.node_id].peer.slow_until = fleet.now + 10.0
    for turn in range(1, 31):
        fleet.at(0.1 * turn)
        for agent, lease in leases_of(*agents):
            agent.verify(lease)
        for agent in agents:
            agent.listen()
    counts = [agent.held.bit_count() for agent in agents]
    assert counts[0] == max(counts)
    assert counts[0] <= 0.8 * sum(counts)
    assert min(counts) > 0
    fleet.check()


def test_a_lease_that_has_nearly_arrived_is_kept() -> None:
    fleet = Fleet(chunks=200)
    a = fleet.joined("a")
    stuck = next(iter(a.leases.values()))
    a.progress[stuck.lease] = int(0.75 * CHUNK_BYTES)
    for turn in range(60):
        fleet.at(0.05 * (turn + 1))
        a.verify(next(lease for lease in a.leases.values() if lease != stuck))
    assert stuck.lease in a.leases


def test_a_brown_out_revokes_nothing() -> None:
    """The origin slows to a tenth for ten seconds: all leases are late together, and none is read
    twice."""
    fleet = Fleet(chunks=80)
    agents = [fleet.joined(name) for name in "abcd"]
    now, reads = 0.0, 0
    while any(agent.leases for agent in agents):
        now += 5.0 if 1.0 < now < 11.0 else 0.5
        fleet.live(now, *agents)
        for agent, lease in leases_of(*agents):
            reads += 1
            agent.verify(lease)
        for agent in agents:
            agent.listen()
    assert reads == 80
    counts = fleet.swarm.leases.counts
    assert counts.revoked_overtaken == counts.revoked_tail == 0
    fleet.check()


def test_in_the_tail_a_hanging_lease_is_revoked_once() -> None:
    fleet = Fleet(chunks=5)
    a = fleet.joined("a")
    b = fleet.joined("b")
    fleet.at(0.5)
    stuck, *others = a.leases.values()
    for lease in others:
        a.verify(lease)
    # The rest has spread; nothing is left to grant, and too little to overtake. The mean lease took
    # 0.5 s: after four of them and a second it goes to the other.
    a.held = b.held = 0b1_1111 & ~(1 << stuck.chunk)
    fleet.live(3.0, a, b)
    assert stuck.lease in a.leases
    fleet.live(3.5, a, b)
    assert b.leased_chunks == {stuck.chunk}
    # It hangs there as well, and stays: once per chunk.
    fleet.live(12.0, a, b)
    assert b.leased_chunks == {stuck.chunk}
    assert fleet.swarm.leases.counts.revoked_tail == 1


def test_a_failed_read_goes_to_another_agent() -> None:
    fleet = Fleet(chunks=1)
    a = fleet.joined("a")
    b = fleet.joined("b")
    (lease,) = a.leases.values()
    a.end(lease, LeaseOutcome.FAILED)
    b.listen()
    assert b.leased_chunks == {0}


def test_a_lone_agent_tries_again_after_a_pause_that_doubles() -> None:
    fleet = Fleet(chunks=1)
    a = fleet.joined("a")
    for waited_s, now in ((0.5, 0.0), (1.0, 1.0), (2.0, 3.0)):
        fleet.at(now)
        a.listen()
        (lease,) = a.leases.values()
        a.end(lease, LeaseOutcome.FAILED)
        assert not a.leases
        fleet.at(now + waited_s - 0.1)
        a.listen()
        assert not a.leases
        fleet.at(now + waited_s + 0.3)
        a.listen()
        assert a.leases


def test_declined_by_its_holder_counts_as_held() -> None:
    fleet = Fleet(chunks=1)
    a = fleet.joined("a")
    b = fleet.joined("b")
    (lease,) = a.leases.values()
    a.end(lease, LeaseOutcome.DECLINED, owner=a.node_id)
    b.listen()
    assert not a.leases
    assert not b.leases
    assert fleet.swarm.availability.count(0) == 1


def test_declined_for_another_waits_for_that_others_word() -> None:
    """b may have lost the chunk since a heard of it; believed, it would be nobody's for ever."""
    fleet = Fleet(chunks=1)
    a = fleet.joined("a")
    b = fleet.joined("b")
    (lease,) = a.leases.values()
    a.end(lease, LeaseOutcome.DECLINED, owner=b.node_id)
    assert fleet.swarm.availability.count(0) == 0
    fleet.at(4.9)
    a.report()
    b.report()
    a.listen()
    assert not a.leases
    fleet.at(5.3)
    a.listen()
    b.listen()
    assert a.leases or b.leases


def test_declined_without_an_owner_waits_for_the_next_report() -> None:
    fleet = Fleet(chunks=1)
    a = fleet.joined("a")
    (lease,) = a.leases.values()
    a.end(lease, LeaseOutcome.DECLINED)
    fleet.at(4.9)
    a.report()
    a.listen()
    assert not a.leases
    fleet.at(5.3)
    a.listen()
    assert a.leases


def test_a_chunk_whose_owners_all_lag_is_leased_once_more() -> None:
    fleet = Fleet(chunks=40)
    slow = fleet.joined("slow")
    fast = fleet.joined("fast")
    (first, *_) = slow.leases.values()
    fleet.at(0.2)
    slow.verify(first)
    for second in range(1, 5):
        fleet.at(float(second))
        # All leases of `slow` go nowhere; `fast` takes the rest of the version from others.
        for lease in list(fast.leases.values()):
            fast.verify(lease)
        fast.held |= bits_of_picture("#" * 8 * second) & ~(1 << first.chunk)
        fast.report()
        slow.report()
        fast.listen()
    assert fleet.swarm.leases.counts.granted > 8
    assert first.chunk in fast.leased_chunks or fast.held >> first.chunk & 1
    granted_for_it = 2
    for second in range(6, 14):
        fleet.at(float(second))
        slow.report()
        fast.report()
    assert granted_for_it == 2
    fleet.check()


def test_a_seed_that_lost_a_chunk_does_not_lag() -> None:
    """It has gained nothing since it joined, and still holds more than its fellows."""
    fleet = Fleet(chunks=40)
    seed = fleet.joined("seed", "#" * 40)
    fellow = fleet.joined("fellow")
    seed.held &= ~1
    for second in range(1, 4):
        fleet.at(float(second))
        fellow.held |= bits_of_picture("#" * 8 * second) & ~1
        seed.report()
        fellow.report()
        fleet.swarm.step(now=fleet.now)
    member = fleet.swarm.members[seed.node_id]
    assert member.speed == pytest.approx(-1 / 3)
    assert not fleet.swarm._incomplete.is_lagging(member, fleet.now)


def test_one_broken_link_does_not_starve_an_agent() -> None:
    """`b` cannot reach the only holder: for its leases the holder's chunks do not count."""
    fleet = Fleet(chunks=4)
    fleet.joined("a", "####")
    b = fleet.joined("b")
    assert not b.leases
    b.report(unreachable=(NODE_A,))
    b.listen()
    assert b.leased_chunks == {0, 1, 2, 3}
    assert fleet.swarm.members[NODE_A].is_counted


def test_mode_stop_takes_all_leases_back_and_auto_gives_them_again() -> None:
    fleet = Fleet(chunks=4)
    a = fleet.joined("a")
    assert a.leases
    fleet.tracker.set_mode(VERSION, Mode.STOP, now=fleet.now)
    a.listen()
    assert not a.leases
    assert a.mode is Mode.STOP
    a.report()
    assert not fleet.leased
    fleet.tracker.set_mode(VERSION, Mode.AUTO, now=fleet.now)
    a.listen()
    assert len(a.leases) == 4


def test_a_chunk_that_the_origin_lacks_is_not_asked_for_in_a_loop() -> None:
    fleet = Fleet(chunks=1)
    a = fleet.joined("a")
    (lease,) = a.leases.values()
    a.end(lease, LeaseOutcome.UNAVAILABLE)
    for second in (3.0, 6.0, 9.0):
        fleet.at(second)
        a.report()
        a.listen()
        assert not a.leases
    fleet.at(10.5)
    a.listen()
    assert a.leases


@pytest.mark.parametrize(("retry_after_s", "quiet_s"), [(None, 0.1), (5.0, 5.0), (3600.0, 10.0)])
def test_throttling_is_obeyed_and_nobody_is_blamed(
    retry_after_s: float | None, quiet_s: float
) -> None:
    fleet = Fleet(chunks=100)
    a = fleet.joined("a")
    fleet.at(1.0)
    a.listen()
    for lease in list(a.leases.values()):
        a.end(lease, LeaseOutcome.THROTTLED, retry_after_s=retry_after_s)
    assert not a.leases
    fleet.at(1.0 + quiet_s - 0.05)
    a.report()
    a.listen()
    assert not a.leases
    fleet.at(1.0 + quiet_s + 0.3)
    a.listen()
    assert a.leases
    assert a.node_id in fleet.swarm.members
    assert fleet.swarm.members[a.node_id].peer.failures == 0


def test_while_throttled_ten_requests_a_second_start_over_the_fleet() -> None:
    fleet = Fleet(chunks=400)
    agents = [fleet.joined(f"n{number}") for number in range(20)]
    fleet.at(1.0)
    for agent in agents:
        agent.listen()
    started = 0
    now = 1.0
    while now < 11.0:
        for agent in agents:
            for lease in list(agent.leases.values()):
                started += now > 1.0
                agent.end(lease, LeaseOutcome.THROTTLED)
        now += 0.1
        fleet.at(now)
        for agent in agents:
            agent.report()
            agent.listen()
    assert 50 <= started <= 110
    # One success ends it; the limit then regrows from what halving left.
    agent, lease = leases_of(*agents)[0]
    agent.verify(lease)
    assert not fleet.swarm.throttle.is_on
    fleet.check()


NODE_A = Fleet().agent("a").node_id
