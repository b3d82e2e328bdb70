"""Stories of zones: each chunk is brought into a zone once, by one agent of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarm.protocol.tracker_api import LeaseOutcome, Mode
from tests.support.tracker_fleet import AT_ONCE, VERSION, FakeAgent, Fleet
from tracker.policy.prices import TRANSFER_PRICES, ZoneCopies, is_origin_copy_cheaper
from tracker.policy.settings import ZoneSettings


def zone_leases(agent: FakeAgent) -> dict[int, str]:
    """Chunk → the source's name; "origin" where there is none."""
    return {
        lease.chunk: lease.source.address.host.removesuffix(".test") if lease.source else "origin"
        for lease in agent.leases.values()
        if lease.is_for_zone
    }


def is_zoned(fleet: Fleet) -> bool:
    return fleet.swarm.is_zoned


def check(fleet: Fleet) -> None:
    fleet.check()
    fleet.swarm.zones.check()


def test_one_zone_is_no_zone() -> None:
    fleet = Fleet()
    fleet.joined("a", "################", zone="x")
    b = fleet.joined("b", zone="x")
    assert not is_zoned(fleet)
    assert not b.leases


def test_a_chunk_comes_into_each_zone_once() -> None:
    """Two agents of zone y get each chunk of zone x between them; a third zone its own."""
    fleet = Fleet()
    fleet.joined("seed", "################", zone="x")
    b, c = fleet.joined("b", zone="y"), fleet.joined("c", zone="y")
    d = fleet.joined("d", zone="z")
    for agent in (b, c, d):
        agent.listen()
    assert is_zoned(fleet)
    assert sorted([*zone_leases(b), *zone_leases(c)]) == list(range(16))
    assert sorted(zone_leases(d)) == list(range(16))
    assert set(zone_leases(d).values()) == {"seed"}
    assert not fleet.leased
    check(fleet)


def test_at_most_sixteen_are_live_in_a_zone() -> None:
    fleet = Fleet(chunks=40)
    fleet.joined("seed", "#" * 40, zone="x")
    b = fleet.joined("b", zone="y")
    assert len(zone_leases(b)) == 16
    b.verify(next(iter(b.leases.values())))
    assert len(zone_leases(b)) == 16
    assert fleet.swarm.leases.counts.zone_granted == 17


def test_what_a_zone_holds_is_not_brought_again() -> None:
    fleet = Fleet(chunks=4)
    fleet.joined("seed", "####", zone="x")
    fleet.joined("b", "##..", zone="y")
    c = fleet.joined("c", zone="y")
    assert set(zone_leases(c)) <= {2, 3}


def test_a_verified_chunk_counts_at_once_as_a_holding_of_the_zone() -> None:
    fleet = Fleet(chunks=2)
    fleet.joined("seed", "##", zone="x")
    b = fleet.joined("b", zone="y")
    b.verify(b.lease_of(0))
    c = fleet.joined("c", zone="y")
    assert 0 not in zone_leases(c)
    assert fleet.swarm.leases.counts.zone_verified == 1
    assert fleet.swarm.origin_bytes == 0


def test_the_holder_that_exports_least_is_the_source() -> None:
    fleet = Fleet(chunks=8)
    fleet.joined("p", "########", zone="x")
    fleet.joined("q", "########", zone="x")
    b = fleet.joined("b", zone="y")
    assert sorted(zone_leases(b).values()) == ["p"] * 4 + ["q"] * 4


def test_leases_go_to_those_with_the_fewest() -> None:
    fleet = Fleet(chunks=32)
    fleet.joined("seed", "#" * 32, zone="x")
    b = fleet.joined("b", zone="y")
    c = fleet.joined("c", zone="y")
    assert len(b.leases) == 16
    for lease in list(b.leases.values())[:8]:
        b.verify(lease)
    c.listen()
    assert len(b.leases) == len(c.leases) == 8


def test_a_source_that_leaves_takes_its_zone_leases_along() -> None:
    """They are given again at once, from whoever is left."""
    fleet = Fleet(chunks=4)
    seed = fleet.joined("seed", "####", zone="x")
    b = fleet.joined("b", zone="y")
    assert set(zone_leases(b).values()) == {"seed"}
    fleet.joined("other", "####", zone="x")
    seed.report(is_leaving=True)
    b.listen()
    assert zone_leases(b) == dict.fromkeys(range(4), "other")
    check(fleet)


def test_a_dead_receivers_chunks_are_brought_by_another_after_a_report_interval() -> None:
    fleet = Fleet(chunks=2)
    seed = fleet.joined("seed", "##", zone="x")
    b, c = fleet.joined("b", zone="y"), fleet.joined("c", zone="y")
    taken = {chunk: agent for agent in (b, c) for chunk in zone_leases(agent)}
    assert sorted(taken) == [0, 1]
    holder = taken[0]
    other = c if holder is b else b
    holder.verify(holder.lease_of(0))
    holder.report(is_leaving=True)
    other.listen()
    assert 0 not in zone_leases(other)
    fleet.live(6, seed, other)
    assert 0 in zone_leases(other)
    check(fleet)


def test_a_source_that_fails_is_passed_over_for_another() -> None:
    """So is the receiver, whose own disk may be at fault."""
    fleet = Fleet(chunks=1)
    fleet.joined("p", "#", zone="x")
    fleet.joined("q", "#", zone="x")
    b, c = fleet.joined("b", zone="y"), fleet.joined("c", zone="y")
    (first,) = zone_leases(b).values()
    b.end(b.lease_of(0), LeaseOutcome.FAILED)
    c.listen()
    (second,) = zone_leases(c).values()
    assert {first, second} == {"p", "q"}
    assert not zone_leases(b)
    check(fleet)


def test_a_crossing_that_fails_three_times_goes_over_the_origin() -> None:
    """The zone whose only way is the origin reads it; the next three attempts would cross."""
    fleet = Fleet(chunks=1)
    seed = fleet.joined("seed", "#", zone="x")
    b = fleet.joined("b", zone="y")
    now = 0.0
    for _ in range(3):
        assert zone_leases(b) == {0: "seed"}
        b.end(b.lease_of(0), LeaseOutcome.FAILED)
        now += 12
        fleet.live(now, seed, b)
    assert zone_leases(b) == {0: "origin"}
    b.verify(b.lease_of(0))
    assert fleet.swarm.origin_bytes == fleet.chunk_bytes
    check(fleet)


def test_a_zones_only_agent_is_served_though_it_lags_and_its_source_too() -> None:
    fleet = Fleet(chunks=4)
    seed = fleet.joined("seed", "####", zone="x")
    b = fleet.joined("b", zone="y")
    for peer in fleet.tracker.membership.peers.values():
        peer.slow_until = fleet.now + 60
    for lease in list(b.leases.values()):
        b.end(lease, LeaseOutcome.DECLINED)
    fleet.live(6, seed, b)
    assert len(zone_leases(b)) == 1, "one at a time while both ends are slow"


def test_a_silent_lease_is_revoked_and_both_ends_count_as_slow() -> None:
    fleet = Fleet(chunks=3)
    seed = fleet.joined("seed", "###", zone="x")
    b = fleet.joined("b", zone="y")
    fleet.at(0.1)
    b.verify(b.lease_of(0))
    stuck = set(b.leases)
    fleet.at(1.0)
    assert fleet.swarm.leases.counts.zone_revoked == 0
    fleet.at(2.0)
    assert fleet.swarm.leases.counts.zone_revoked == 2
    peers = fleet.tracker.membership.peers
    assert peers[b.node_id].slow_until > fleet.now
    assert peers[seed.node_id].slow_until > fleet.now
    b.listen()
    assert not stuck & set(b.leases)


def test_a_lease_that_moves_as_usual_is_kept() -> None:
    fleet = Fleet(chunks=2)
    fleet.joined("seed", "##", zone="x")
    b = fleet.joined("b", zone="y")
    fleet.at(1.0)
    b.verify(b.lease_of(0))
    (lease,) = b.leases.values()
    b.progress[lease.lease] = fleet.chunk_bytes * 4 // 5
    b.report()
    fleet.at(2.0)
    assert fleet.swarm.leases.counts.zone_revoked == 0


def test_agents_that_do_not_say_where_they_are_count_as_one_zone() -> None:
    fleet = Fleet(chunks=4)
    fleet.joined("seed", "####", zone="x")
    b, c = fleet.joined("b"), fleet.joined("c")
    b.listen()
    assert sorted([*zone_leases(b), *zone_leases(c)]) == [0, 1, 2, 3]


def test_the_last_other_zone_leaving_ends_the_rule() -> None:
    fleet = Fleet(chunks=4)
    seed = fleet.joined("seed", "####", zone="x")
    b = fleet.joined("b", zone="y")
    assert is_zoned(fleet)
    seed.report(is_leaving=True)
    assert not is_zoned(fleet)
    reply = b.listen()
    assert reply is not None
    assert not reply.versions[0].is_zoned


@pytest.mark.parametrize("mode", [Mode.ORIGIN, Mode.STOP])
def test_modes_without_peers_have_no_zone_leases(mode: Mode) -> None:
    fleet = Fleet(chunks=4)
    fleet.joined("seed", "####", zone="x")
    b = fleet.joined("b", zone="y")
    fleet.tracker.set_mode(VERSION, mode, now=fleet.now)
    b.listen()
    assert not b.leases
    assert not is_zoned(fleet)


def test_peers_only_still_brings_chunks_into_zones() -> None:
    fleet = Fleet(chunks=4)
    fleet.joined("seed", "####", zone="x")
    b = fleet.joined("b", zone="y")
    fleet.tracker.set_mode(VERSION, Mode.PEERS_ONLY, now=fleet.now)
    b.listen()
    assert zone_leases(b) == dict.fromkeys(range(4), "seed")


def test_peers_only_reads_no_origin_whatever_is_usual_or_failed() -> None:
    settings = replace(AT_ONCE, zones=ZoneSettings(copies=ZoneCopies.ORIGIN))
    fleet = Fleet(chunks=4, settings=settings)
    fleet.tracker.set_mode(VERSION, Mode.PEERS_ONLY, now=fleet.now)
    seed = fleet.joined("seed", "####", zone="x")
    b = fleet.joined("b", zone="y")
    for attempt in range(4):
        assert zone_leases(b) == dict.fromkeys(range(4), "seed")
        for lease in list(b.leases.values()):
            b.end(lease, LeaseOutcome.FAILED)
        fleet.live(12.0 * (attempt + 1), seed, b)


@pytest.mark.parametrize(
    ("copies", "source"),
    [(ZoneCopies.PEER, "seed"), (ZoneCopies.ORIGIN, "origin"), (ZoneCopies.AUTO, "origin")],
)
def test_the_setting_says_where_copies_come_from(copies: ZoneCopies, source: str) -> None:
    """The version of these stories lies in S3, so the price table prefers the origin."""
    fleet = Fleet(chunks=4, settings=replace(AT_ONCE, zones=ZoneSettings(copies=copies)))
    fleet.joined("seed", "####", zone="x")
    b = fleet.joined("b", zone="y")
    assert zone_leases(b) == dict.fromkeys(range(4), source)
    check(fleet)


def test_a_throttled_origin_is_asked_for_no_zone_copies_at_once() -> None:
    settings = replace(AT_ONCE, zones=ZoneSettings(copies=ZoneCopies.ORIGIN))
    fleet = Fleet(chunks=16, settings=settings)
    fleet.joined("seed", "#" * 16, zone="x")
    b = fleet.joined("b", zone="y")
    b.end(b.lease_of(0), LeaseOutcome.THROTTLED, retry_after_s=5.0)
    assert 0 not in zone_leases(b)
    assert fleet.swarm.throttle.is_on


def test_the_price_table_prefers_s3_in_the_region_and_spares_unknown_origins() -> None:
    def is_cheaper(origin: str, chunk_bytes: int) -> bool:
        return is_origin_copy_cheaper(
            TRANSFER_PRICES, origin=origin, chunk_bytes=chunk_bytes, requests=4
        )

    assert is_cheaper("s3://models/w", 64 << 20)
    assert not is_cheaper("https://origin.example/w", 64 << 20)
    assert not is_cheaper("", 64 << 20)
    # Four requests cost 1.6 millionths, as much as 80 kB across zones.
    assert is_cheaper("s3://models/w", 81_000)
    assert not is_cheaper("s3://models/w", 79_000)
