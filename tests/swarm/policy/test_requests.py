"""Stories of a fetching node: one chunk a second, two sessions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarm.policy.commands import (
    Command,
    EndSession,
    FetchFromOrigin,
    RequestChunk,
    SendBadChunk,
)
from swarm.policy.events import (
    ChunkVerified,
    FailureReason,
    LeaveRequested,
    ModeReceived,
    TimerFired,
    TransferFailed,
    TransferNearEnd,
    VersionAdded,
    VersionRemoved,
)
from swarm.policy.settings import NodeSettings
from swarm.protocol.ids import ChunkIndex
from swarm.protocol.messages import RefuseReason
from swarm.protocol.tracker_api import Mode
from tests.support.story import (
    CHUNK_BYTES,
    NIC_BYTES_PER_S,
    OTHER_VERSION,
    VERSION,
    Story,
    cancels,
    default_settings,
    only_request,
    peer_id,
    requests,
)


def near_end(story: Story, request: RequestChunk, *, at: float) -> list[Command]:
    return story.tell(TransferNearEnd(request.transfer), at=at)


def fail(story: Story, request: RequestChunk, reason: FailureReason, *, at: float) -> list[Command]:
    return story.tell(TransferFailed(request.transfer, reason), at=at)


def refuse(
    story: Story, request: RequestChunk, reason: RefuseReason, *, load: int = 0, at: float
) -> list[Command]:
    event = TransferFailed(request.transfer, FailureReason.REFUSED, reason, load)
    return story.tell(event, at=at)


def wait(story: Story) -> list[Command]:
    """Let time pass, deadline by deadline, until something is requested."""
    for _ in range(10):
        deadline = story.node.next_deadline()
        assert deadline is not None
        commands = story.tell(TimerFired(), at=deadline)
        if requests(commands):
            return commands
    raise AssertionError("nothing was requested")


def peers_of(commands: list[Command]) -> str:
    return "".join(sorted(chr(request.peer[0]) for request in requests(commands)))


def chunks_of(commands: list[Command]) -> list[int]:
    return sorted(request.chunk for request in requests(commands))


def test_sessions_are_opened_until_there_are_d() -> None:
    story = Story.of("""
        me  ....
        B   ####
        C   ####
        D   ####
    """)
    first = requests(story.first)
    assert len(first) == 2
    assert len({request.chunk for request in first}) == 2
    assert {request.stripes for request in first} == {1}
    assert story.node.statistics().session_count == 2


def test_the_next_request_leaves_before_the_current_chunk_ends() -> None:
    story = Story.of("""
        me  ..
        B   ##
    """)
    first, second = requests(story.first)
    assert first.session != second.session
    story = Story("...", replace(default_settings(), session_count=1))
    request = only_request(story.link("B", "###"))
    following = only_request(near_end(story, request, at=0.9))
    assert following.session == request.session
    assert following.chunk != request.chunk


def test_a_session_has_two_live_transfers_at_most() -> None:
    story = Story("....", replace(default_settings(), session_count=1))
    first = only_request(story.link("B", "####"))
    second = only_request(near_end(story, first, at=0.9))
    assert requests(near_end(story, second, at=1.9)) == []
    third = only_request(story.verify(first, at=2.0))
    assert third.session == first.session
    assert requests(near_end(story, first, at=2.0)) == []


def test_a_session_goes_on_when_its_peer_announces_something() -> None:
    story = Story("...", replace(default_settings(), session_count=1))
    request = only_request(story.link("B", "#.."))
    assert near_end(story, request, at=0.9) == []
    following = only_request(story.haves("B", ".#."))
    assert following.session == request.session


def test_a_session_ends_when_its_peer_has_nothing_more() -> None:
    story = Story("..", replace(default_settings(), session_count=1))
    request = only_request(story.link("B", "#."))
    commands = story.verify(request, at=1.0)
    assert EndSession(peer_id("B"), request.session) in commands
    assert story.node.statistics().session_count == 0


def test_a_session_without_a_near_end_goes_on_at_its_chunk_end() -> None:
    story = Story("..", replace(default_settings(), session_count=1))
    request = only_request(story.link("B", "##"))
    assert only_request(story.verify(request, at=1.0)).session == request.session


def test_a_busy_peer_is_asked_again_later_and_less_and_less_often() -> None:
    story = Story(".", replace(default_settings(), session_count=1))
    request = only_request(story.link("B", "#"))
    pauses = []
    for _ in range(6):
        asked_at = story.now
        refused = refuse(story, request, RefuseReason.BUSY, load=3, at=asked_at)
        assert requests(refused) == []
        request = only_request(wait(story))
        pauses.append(story.now - asked_at)
    assert 0.5 <= pauses[0] <= 1.5
    assert all(4 <= pause <= 12 for pause in pauses[3:])
    assert story.node.statistics().refusal_count == 6


def test_a_refusal_sends_us_to_another_peer_at_once() -> None:
    story = Story("...", replace(default_settings(), session_count=1))
    request = only_request(story.link("B", "###"))
    story.link("C", "###")
    other = only_request(refuse(story, request, RefuseReason.BUSY, load=3, at=0.1))
    assert other.peer == peer_id("C")


def test_a_yielded_session_is_replaced_while_its_last_chunk_is_still_hashed() -> None:
    story = Story("...", replace(default_settings(), session_count=1))
    first = only_request(story.link("B", "###"))
    second = only_request(near_end(story, first, at=0.9))
    story.link("C", "###")
    commands = refuse(story, second, RefuseReason.YIELDED, load=3, at=1.0)
    assert EndSession(peer_id("B"), first.session) in commands
    third = only_request(commands)
    assert third.peer == peer_id("C")
    story.verify(first, at=1.01)
    assert story.node.statistics().versions[0].held_count == 1


def test_a_peer_that_made_us_yield_looks_as_busy_as_it_said() -> None:
    """Our ended session must not be taken off the load it told us, or it would look freer than an
    equally busy one, and two nodes would take turns at one source for ever."""
    chosen = set()
    for seed in range(12):
        story = Story("...", replace(default_settings(), session_count=1), seed=seed)
        first = only_request(story.link("B", "###"))
        second = only_request(near_end(story, first, at=0.9))
        story.link("C", "###", load=1)
        commands = refuse(story, second, RefuseReason.YIELDED, load=1, at=1.0)
        chosen.add(only_request(commands).peer)
    assert chosen == {peer_id("B"), peer_id("C")}


def test_the_head_of_a_session_keeps_its_clock_when_the_waiting_request_is_refused() -> None:
    """A slow source must not look young because its next request was refused."""
    story = Story.of("""
        me  ..........
        B   ##########
        C   ##########
    """)
    slow = next(request for request in requests(story.first) if request.peer == peer_id("B"))
    (waiting,) = requests(near_end(story, slow, at=3.0))
    refuse(story, waiting, RefuseReason.OTHER, at=3.5)
    assert story.node.statistics().refusal_count == 1


def test_a_chunk_that_a_peer_does_not_hold_is_not_asked_there_again() -> None:
    story = Story("..", replace(default_settings(), session_count=1))
    request = only_request(story.link("B", "##"))
    other = only_request(refuse(story, request, RefuseReason.NOT_HELD, at=0.1))
    assert other.chunk != request.chunk
    story.verify(other, at=1.0)
    assert story.node.next_deadline() is None or story.node.statistics().session_count == 0


def test_a_leaving_peer_is_asked_for_nothing_more() -> None:
    story = Story("...")
    first, second = requests(story.link("B", "###"))
    assert requests(refuse(story, first, RefuseReason.LEAVING, at=0.1)) == []
    assert requests(refuse(story, second, RefuseReason.LEAVING, at=0.1)) == []


def test_a_broken_data_link_rests_its_peer() -> None:
    story = Story("...", replace(default_settings(), session_count=1))
    request = only_request(story.link("B", "###"))
    assert requests(fail(story, request, FailureReason.LOST, at=0.1)) == []
    deadline = story.node.next_deadline()
    assert deadline is not None
    assert 0.35 <= deadline <= 0.85
    assert only_request(story.tell(TimerFired(), at=deadline)).peer == peer_id("B")


def test_a_local_failure_blames_nobody_and_does_not_spin() -> None:
    story = Story("...", replace(default_settings(), session_count=1))
    request = only_request(story.link("B", "###"))
    story.link("C", "###")
    pauses = []
    for _ in range(8):
        failed_at = story.now
        assert requests(fail(story, request, FailureReason.LOCAL, at=failed_at)) == []
        request = only_request(story.tell(TimerFired(), at=failed_at + 32.0))
        pauses.append(failed_at)
    story.verify(request, at=story.now + 1)
    statistics = story.node.statistics()
    assert (statistics.avoided_count, statistics.refusal_count) == (0, 0)


def test_nothing_starts_while_the_disk_rests() -> None:
    story = Story("....")
    first, second = requests(story.link("B", "####"))
    fail(story, first, FailureReason.LOCAL, at=0.1)
    assert story.node.next_deadline() == pytest.approx(1.1)
    assert requests(near_end(story, second, at=0.2)) == []
    assert requests(story.verify(second, at=0.3)) == []
    assert len(requests(story.tell(TimerFired(), at=1.1))) == 2


def test_a_slow_source_is_cut_and_avoided() -> None:
    """B gives a tenth of the NIC where half is its share; C gives plenty."""
    story = Story.of("""
        me  ........
        B   ########
        C   ########
    """)
    by_peer = {request.peer: request for request in requests(story.first)}
    slow, good = by_peer[peer_id("B")], by_peer[peer_id("C")]
    early = story.sample((slow.transfer, 300_000), (good.transfer, 600_000), at=3.9)
    assert cancels(early) == []
    commands = story.sample((slow.transfer, 400_000), (good.transfer, 700_000), at=4.0)
    assert cancels(commands) == [slow.transfer]
    assert peers_of(commands) == "C"
    statistics = story.node.statistics()
    assert (statistics.cut_count, statistics.avoided_count) == (1, 1)
    fail(story, slow, FailureReason.CANCELLED, at=4.0)
    assert story.node.statistics().versions[0].wasted_bytes == 400_000


@pytest.mark.parametrize(("received", "is_cut"), [(400_000, False), (150_000, True)])
def test_where_all_are_busy_only_a_crawling_source_is_cut(received: int, is_cut: bool) -> None:
    """At a tenth of the NIC B is slow, but C has no free slot; at a twenty-fifth it crawls."""
    story = Story.of("""
        me  ........
        B   ########
        C   ########
    """)
    by_peer = {request.peer: request for request in requests(story.first)}
    slow, good = by_peer[peer_id("B")], by_peer[peer_id("C")]
    story.haves("C", "########", load=default_settings().session_count, at=3.0)
    commands = story.sample((slow.transfer, received), (good.transfer, 700_000), at=4.0)
    assert cancels(commands) == ([slow.transfer] if is_cut else [])


def test_the_last_holder_of_a_chunk_is_never_cut() -> None:
    story = Story.of("""
        me  ..
        B   #.
        C   .#
    """)
    slow, other = requests(story.first)
    assert cancels(story.sample((slow.transfer, 1), (other.transfer, 1), at=60.0)) == []


def test_an_avoided_peer_is_never_cut_twice_and_forgiven_when_it_delivers() -> None:
    story = Story(".....", replace(default_settings(), session_count=1))
    slow = only_request(story.link("C", "#####"))
    story.link("B", "#####")
    commands = story.sample((slow.transfer, 1), at=10.0)
    assert cancels(commands) == [slow.transfer]
    other = only_request(commands)
    assert other.peer == peer_id("B")
    fail(story, slow, FailureReason.CANCELLED, at=10.0)
    second = only_request(story.lose("B"))
    assert second.peer == peer_id("C")
    fail(story, other, FailureReason.LOST, at=10.0)
    story.link("D", "#####")
    assert cancels(story.sample((second.transfer, 1), at=18.0)) == []
    third = only_request(story.verify(second, at=18.0))
    assert story.node.statistics().avoided_count == 1
    assert third.peer == peer_id("D"), "a session with an avoided peer does not go on"
    fourth = only_request(story.lose("D"))
    assert fourth.peer == peer_id("C")
    story.verify(fourth, at=18.9)
    assert story.node.statistics().avoided_count == 0


def test_origin_intake_is_no_fault_of_the_peers() -> None:
    """Half the NIC goes to a lease, so each of two sources owes a quarter, not a half."""
    story = Story.of("""
        me  .........
        B   ########.
        C   ########.
    """)
    first, second = requests(story.first)
    commands = story.lease((1, 8))
    (lease,) = [command for command in commands if isinstance(command, FetchFromOrigin)]
    transfer = lease.transfer
    rate = NIC_BYTES_PER_S / 10
    for tick in range(1, 50):
        at = tick / 10
        commands = story.sample(
            (first.transfer, int(rate * at)),
            (second.transfer, int(rate * at)),
            (transfer, int(0.5 * NIC_BYTES_PER_S * at)),
            at=at,
        )
        assert cancels(commands) == []


def test_without_a_nic_rate_the_median_source_is_the_measure() -> None:
    settings = replace(default_settings(), nic_bytes_per_s=0.0, session_count=3)
    story = Story.of(
        """
        me  .........
        B   #########
        C   #########
        D   #########
    """,
        settings,
    )
    slow, good, better = requests(story.first)
    received = ((slow.transfer, 1_000), (good.transfer, 200_000), (better.transfer, 300_000))
    assert cancels(story.sample(*received, at=0.24)) == []
    assert cancels(story.sample(*received, at=0.3)) == [slow.transfer]


def test_the_slowest_missing_chunk_is_asked_for_twice_and_the_first_copy_wins() -> None:
    story = Story("..", replace(default_settings(), session_count=3))
    first, second = requests(story.link("B", "##"))
    story.link("C", "##")
    commands = story.sample((first.transfer, 900_000), (second.transfer, 100_000), at=1.0)
    duplicate = only_request(commands)
    assert (duplicate.peer, duplicate.chunk) == (peer_id("C"), second.chunk)
    assert story.node.statistics().duplicate_count == 1
    won = story.verify(duplicate, at=1.5)
    assert cancels(won) == [second.transfer]
    fail(story, second, FailureReason.CANCELLED, at=1.5)
    assert story.node.statistics().versions[0].wasted_bytes == 100_000


def test_a_late_duplicate_is_counted_and_dropped() -> None:
    story = Story("..", replace(default_settings(), session_count=3))
    first, second = requests(story.link("B", "##"))
    story.link("C", "##")
    duplicate = only_request(
        story.sample((first.transfer, 900_000), (second.transfer, 100_000), at=1.0)
    )
    story.verify(second, at=1.5)
    story.verify(duplicate, at=1.5)
    statistics = story.node.statistics().versions[0]
    assert (statistics.wasted_bytes, statistics.held_count) == (CHUNK_BYTES, 1)


def test_no_duplicate_without_another_holder() -> None:
    story = Story("..", replace(default_settings(), session_count=3))
    first, second = requests(story.link("B", "##"))
    assert requests(story.sample((first.transfer, 0), (second.transfer, 0), at=9.0)) == []


def test_a_corrupt_chunk_is_fetched_elsewhere() -> None:
    story = Story(".", replace(default_settings(), session_count=1))
    request = only_request(story.link("B", "#"))
    story.link("C", "#")
    commands = fail(story, request, FailureReason.CORRUPT, at=1.0)
    assert SendBadChunk(peer_id("B"), VERSION, request.chunk) in commands
    assert only_request(commands).peer == peer_id("C")
    assert story.node.statistics().versions[0].wasted_bytes == CHUNK_BYTES


def test_a_flow_cap_stripes_the_chunks() -> None:
    settings = replace(default_settings(), flow_cap_bytes_per_s=NIC_BYTES_PER_S / 5)
    story = Story("..", settings)
    first, _ = requests(story.link("B", "##"))
    assert first.stripes == 3


def test_a_nic_that_is_not_known_stripes_nothing() -> None:
    """A first guess of 1 Gbit/s would open sixteen links for each session of a slow node."""
    settings = NodeSettings(flow_cap_bytes_per_s=1.6e6)
    story = Story("..", settings)
    first, _ = requests(story.link("B", "##"))
    assert first.stripes == 1


def test_a_fast_node_has_more_sessions_in_proportion() -> None:
    settings = replace(default_settings(), nic_bytes_per_s=4e6)
    story = Story("." * 30, settings)
    story.link("B", "#" * 30, nic=1_000_000)
    story.link("C", "#" * 30, nic=1_000_000)
    statistics = story.node.statistics()
    assert (statistics.session_limit, statistics.upload_limit) == (8, 8)
    slow = Story(".", replace(default_settings(), nic_bytes_per_s=1e3))
    slow.link("B", "#", nic=1_000_000)
    assert slow.node.statistics().session_limit == 2


def test_an_uplink_cap_takes_upload_slots() -> None:
    settings = replace(default_settings(), session_count=4, uplink_bytes_per_s=NIC_BYTES_PER_S / 4)
    assert Story(".", settings).node.statistics().upload_limit == 1
    settings = replace(settings, uplink_bytes_per_s=NIC_BYTES_PER_S)
    assert Story(".", settings).node.statistics().upload_limit == 4


def test_a_lost_peer_ends_its_sessions_and_its_transfers_end_by_themselves() -> None:
    story = Story("...", replace(default_settings(), session_count=1))
    request = only_request(story.link("B", "###"))
    assert EndSession(peer_id("B"), request.session) in story.lose("B")
    assert requests(fail(story, request, FailureReason.LOST, at=0.1)) == []
    assert only_request(story.link("C", "###")).peer == peer_id("C")


def test_a_transfer_of_a_lost_peer_may_still_end_well() -> None:
    story = Story("...", replace(default_settings(), session_count=1))
    request = only_request(story.link("B", "###"))
    story.lose("B")
    story.verify(request, at=1.0)
    near_end(story, request, at=1.0)
    assert story.node.statistics().versions[0].held_count == 1


def test_too_many_unhashed_chunks_hold_back_the_next_request() -> None:
    """Six sessions, in five of which the successor of an unverified chunk nears its end."""
    story = Story("." * 30, replace(default_settings(), session_count=6))
    firsts = requests(story.link("B", "#" * 30))
    assert len(firsts) == 6
    for first in firsts[:5]:
        near_end(story, only_request(near_end(story, first, at=0.5)), at=0.9)
    assert requests(near_end(story, firsts[5], at=1.0)) == []
    assert len(requests(story.verify(firsts[0], at=1.1))) >= 1


@pytest.mark.parametrize("mode", [Mode.STOP, Mode.ORIGIN])
def test_in_stop_and_origin_modes_nothing_new_is_asked_of_peers(mode: Mode) -> None:
    story = Story("....", replace(default_settings(), session_count=1))
    request = only_request(story.link("B", "####"))
    story.tell(ModeReceived(VERSION, mode))
    assert requests(near_end(story, request, at=0.9)) == []
    assert requests(story.verify(request, at=1.0)) == []


def test_a_stopped_version_goes_on_when_its_mode_allows() -> None:
    story = Story("....", replace(default_settings(), session_count=1))
    story.tell(ModeReceived(VERSION, Mode.STOP))
    assert requests(story.link("B", "####")) == []
    assert len(requests(story.tell(ModeReceived(VERSION, Mode.PEERS_ONLY)))) == 1
    assert story.tell(ModeReceived(OTHER_VERSION, Mode.STOP)) == []


def test_leaving_starts_nothing_new() -> None:
    story = Story("....", replace(default_settings(), session_count=1))
    request = only_request(story.link("B", "####"))
    story.tell(LeaveRequested())
    assert requests(near_end(story, request, at=0.9)) == []
    assert requests(story.verify(request, at=1.0)) == []


def test_versions_share_sessions_and_the_older_one_goes_first() -> None:
    story = Story("..", replace(default_settings(), session_count=1))
    story.tell(VersionAdded(OTHER_VERSION, (CHUNK_BYTES,) * 2, 0))
    request = only_request(story.link("B", "##"))
    assert request.version == VERSION
    story.version = OTHER_VERSION
    story.haves("B", "##")
    second = only_request(near_end(story, request, at=0.9))
    assert second.version == VERSION
    story.verify(request, at=1.0)
    third = only_request(near_end(story, second, at=1.9))
    assert (third.version, third.session) == (OTHER_VERSION, request.session)


def test_a_removed_version_cancels_its_transfers_and_ends_its_sessions() -> None:
    story = Story("....")
    first, second = requests(story.link("B", "####"))
    commands = story.tell(VersionRemoved(VERSION))
    assert sorted(cancels(commands)) == [first.transfer, second.transfer]
    fail(story, first, FailureReason.CANCELLED, at=0.1)
    story.verify(second, at=0.1)
    assert story.node.statistics().versions == ()
    story.tell(VersionAdded(VERSION, (CHUNK_BYTES,) * 4, 0))
    assert story.node.statistics().session_count == 2


def test_a_chunk_found_on_the_local_disk_counts_as_local() -> None:
    story = Story("....")
    story.tell(ChunkVerified(VERSION, ChunkIndex(3), None), at=1.0)
    statistics = story.node.statistics().versions[0]
    assert (statistics.local_bytes, statistics.held_count) == (CHUNK_BYTES, 1)
    story.tell(ChunkVerified(VERSION, ChunkIndex(3), None), at=1.0)
    assert story.node.statistics().versions[0].local_bytes == CHUNK_BYTES


def test_a_transfer_is_cancelled_once() -> None:
    story = Story("....")
    first, second = requests(story.link("B", "####"))
    story.link("C", "####")
    commands = story.sample((first.transfer, 1), (second.transfer, 900_000), at=10.0)
    assert cancels(commands) == [first.transfer]
    assert cancels(story.tell(VersionRemoved(VERSION))) == [
        second.transfer,
        *[request.transfer for request in requests(commands)],
    ]


def test_removing_one_version_leaves_the_other_alone() -> None:
    story = Story(".", replace(default_settings(), session_count=4))
    first = only_request(story.link("B", "#"))
    story.tell(VersionAdded(OTHER_VERSION, (CHUNK_BYTES,), 0))
    story.version = OTHER_VERSION
    second = only_request(story.haves("B", "#"))
    assert cancels(story.tell(VersionRemoved(OTHER_VERSION))) == [second.transfer]
    assert story.node.statistics().versions[0].in_flight_count == 1
    assert requests(story.verify(first, at=1.0)) == []
