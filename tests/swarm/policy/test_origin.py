"""Stories of reading the origin unasked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarm.policy.commands import Command, FetchFromOrigin
from swarm.policy.events import (
    ConnectFailed,
    FailureReason,
    LeaveRequested,
    ModeReceived,
    TimerFired,
    TrackerLost,
    TrackerRegained,
    TransferFailed,
    VersionRemoved,
)
from swarm.policy.origin import OriginTrouble, Right
from swarm.policy.settings import NodeSettings
from swarm.protocol.tracker_api import Mode
from tests.support.story import (
    CHUNK_BYTES,
    VERSION,
    Story,
    default_settings,
    fetches,
    only_request,
    peer_id,
    requests,
)


def alone(chunks: int) -> Story:
    return Story("." * chunks, replace(default_settings(), has_tracker=False))


def right(story: Story) -> Right:
    return story.node.statistics().versions[0].origin_right


def fail(
    story: Story,
    fetch: FetchFromOrigin,
    reason: FailureReason,
    *,
    at: float,
    retry_after_s: float | None = None,
) -> list[Command]:
    return story.tell(TransferFailed(fetch.transfer, reason, retry_after_s=retry_after_s), at=at)


def runs(commands: list[FetchFromOrigin]) -> list[list[FetchFromOrigin]]:
    """The reads that the fetches make up."""
    found: list[list[FetchFromOrigin]] = []
    for fetch in commands:
        if fetch.after is None:
            found.append([])
        else:
            assert fetch.after == found[-1][-1].transfer
        found[-1].append(fetch)
    return found


def run_until(story: Story, end: float) -> list[Command]:
    """Let time pass, deadline by deadline, and collect what is ordered."""
    commands: list[Command] = []
    while (deadline := story.node.next_deadline()) is not None and deadline <= end:
        assert deadline >= story.now, "a deadline in the past"
        commands += story.tell(TimerFired(), at=deadline)
    story.now = end
    return commands


def test_with_a_tracker_the_origin_is_not_read_unasked() -> None:
    story = Story("....")
    assert fetches(story.first) == []
    assert fetches(run_until(story, 119.0)) == []
    assert right(story) is Right.NONE


def test_a_lone_node_reads_as_much_as_helps() -> None:
    story = alone(100)
    reads = runs(fetches(story.first))
    assert len(reads) == 8
    assert right(story) is Right.ALONE
    commands = [command for fetch in reads[0] for command in story.verify(fetch, at=1.0)]
    (following,) = runs(fetches(commands))
    assert following[0].connections == 1


def test_a_lone_node_reads_small_chunks_in_runs() -> None:
    """Half of what is left in long runs, then shorter ones, each chunk once and none left over."""
    story = alone(100)
    running = runs(fetches(story.first))
    assert {len(run) for run in running} <= {1, 2, 3, 4}
    assert sum(map(len, running)) >= 20
    lengths: list[int] = []
    read: set[int] = set()
    while running:
        run = running.pop(0)
        chunks = [fetch.chunk for fetch in run]
        assert chunks == list(range(chunks[0], chunks[0] + len(chunks)))
        assert read.isdisjoint(chunks)
        read.update(chunks)
        lengths.append(len(run))
        commands = [each for fetch in run for each in story.verify(fetch, at=story.now + 0.1)]
        running += runs(fetches(commands))
    assert read == set(range(100))
    assert set(lengths[-8:]) == {1}


def test_a_run_that_breaks_costs_its_chunk_a_rest_and_the_others_nothing() -> None:
    story = alone(100)
    run = max(runs(fetches(story.first)), key=len)
    assert len(run) > 1
    fail(story, run[0], FailureReason.LOST, at=0.1)
    again: list[FetchFromOrigin] = []
    for fetch in run[1:]:
        again += fetches(fail(story, fetch, FailureReason.CANCELLED, at=0.1))
    assert len(runs(again)) == 1, "one read ended, one began"
    trouble = story.node.statistics().versions[0].origin_trouble
    assert trouble == OriginTrouble(run[0].chunk, 1, FailureReason.LOST)


def test_runs_are_for_those_who_are_alone_and_not_throttled() -> None:
    story = alone(100)
    for fetch in fetches(story.first):
        fail(story, fetch, FailureReason.THROTTLED, at=1.0)
    (first,) = fetches(run_until(story, 4.0))[:1]
    assert [first] == runs([first])[0]
    among = in_line("." * 100)
    assert {len(run) for run in runs(fetches(among.first))} == {1}


def test_a_lone_node_finishes() -> None:
    story = alone(30)
    running = fetches(story.first)
    while running:
        running += fetches(story.verify(running.pop(0), at=story.now + 1))
    assert story.node.statistics().versions[0].origin_bytes == 30 * CHUNK_BYTES
    assert story.node.next_deadline() is None


def test_peers_that_do_not_answer_leave_a_node_alone() -> None:
    story = Story("....", replace(default_settings(), has_tracker=False), is_added=False)
    story.know("B", "C")
    story.add("....")
    assert right(story) is Right.IN_LINE
    story.tell(ConnectFailed(peer_id("B"), is_unreachable=True), at=2.0)
    commands = story.tell(ConnectFailed(peer_id("C"), is_unreachable=True), at=2.0)
    assert right(story) is Right.ALONE
    assert story.node.statistics().versions[0].in_flight_count == 4
    assert fetches(commands)


def test_a_node_without_an_origin_waits() -> None:
    story = Story("....", replace(default_settings(), has_tracker=False, has_origin=False))
    assert fetches(story.first) == []
    assert story.node.next_deadline() is None
    assert right(story) is Right.NONE


def in_line(me_chunks: str = "." * 40) -> Story:
    story = Story(me_chunks, replace(default_settings(), has_tracker=False), is_added=False)
    for name in "BCD":
        story.link(name, "." * len(me_chunks))
    story.add(me_chunks)
    return story


def test_among_peers_only_the_first_in_line_reads_a_chunk() -> None:
    story = in_line()
    assert right(story) is Right.IN_LINE
    running = fetches(story.first)
    assert len(running) == 2
    read = set()
    while running:
        fetch = running.pop(0)
        read.add(fetch.chunk)
        running += fetches(story.verify(fetch, at=story.now + 2.0))
        running += fetches(run_until(story, story.now + 0.9))
    assert 4 <= len(read) <= 20


def test_the_next_in_line_steps_in_after_a_wait_without_any_byte() -> None:
    story = in_line("." * 8)
    running = fetches(story.first)
    count = 0
    while running:
        count += 1
        running += fetches(story.verify(running.pop(0), at=story.now + 1.0))
        running += fetches(run_until(story, story.now + 1.0))
    assert count < 8
    last_byte_at = story.now - 1.0
    assert fetches(run_until(story, last_byte_at + 2.9)) == []
    assert len(fetches(run_until(story, last_byte_at + 12.0))) == 2


def test_all_lines_are_ours_in_the_end() -> None:
    """The others die without a word: everything is read, and the bucket limits how fast."""
    story = in_line("." * 8)
    running = fetches(story.first)
    read = set()
    for _ in range(200):
        if running:
            fetch = running.pop(0)
            read.add(fetch.chunk)
            running += fetches(story.verify(fetch, at=story.now + 0.5))
        running += fetches(run_until(story, story.now + 1.0))
    assert read == set(range(8))


def test_a_chunk_that_a_neighbour_holds_is_not_read() -> None:
    story = Story("....", replace(default_settings(), has_tracker=False), is_added=False)
    story.link("B", "####")
    story.add("....")
    assert fetches(story.first) == []
    assert len(requests(story.first)) == 2


def test_the_token_bucket_caps_a_node_among_others() -> None:
    """Four nodes share three NICs: three quarters of a chunk a second for each."""
    story = Story("." * 60, replace(default_settings(), has_tracker=False), is_added=False)
    for name in "BCD":
        story.link(name, "." * 60)
    story.add("." * 60)
    story.tell(ModeReceived(VERSION, Mode.ORIGIN))
    running = fetches(run_until(story, 0.0)) + fetches(story.first)
    count = len(running)
    while story.now < 40.0:
        commands: list[Command] = []
        for fetch in running:
            commands += story.verify(fetch, at=story.now)
        running = fetches(commands) + fetches(run_until(story, story.now + 0.25))
        count += len(running)
    assert 28 <= count <= 36


def test_mode_origin_reads_under_the_cap_and_asks_no_peer() -> None:
    settings = replace(default_settings(), origin_cap_bytes_per_s=CHUNK_BYTES / 10)
    story = Story("." * 20, settings)
    commands = story.tell(ModeReceived(VERSION, Mode.ORIGIN))
    assert right(story) is Right.ORDERED
    count = len(fetches(commands))
    assert count == 2
    for fetch in fetches(commands):
        count += len(fetches(story.verify(fetch, at=1.0)))
    assert count == 2
    later = fetches(run_until(story, 30.0))
    assert len(later) == 3
    assert requests(story.link("B", "#" * 20)) == []


def test_without_any_supply_the_origin_is_read_after_a_while_and_goes_on() -> None:
    story = Story("." * 6, replace(default_settings(), origin_after_s=10.0))
    assert fetches(run_until(story, 9.9)) == []
    running = fetches(run_until(story, 10.0))
    assert right(story) is Right.STUCK
    read = set()
    while running:
        fetch = running.pop(0)
        read.add(fetch.chunk)
        running += fetches(story.verify(fetch, at=story.now + 0.1))
        running += fetches(run_until(story, story.now + 2.0))
    assert read == set(range(6))


def test_a_supply_ends_the_unasked_reads() -> None:
    settings = replace(default_settings(), origin_after_s=10.0, session_count=1)
    story = Story("." * 60, settings)
    run_until(story, 10.0)
    request = only_request(story.link("B", "#" * 60))
    story.verify(request, at=12.0)
    assert right(story) is Right.NONE


def test_a_stuck_node_reads_even_what_peers_promised() -> None:
    story = Story("..", replace(default_settings(), origin_after_s=10.0))
    assert len(requests(story.link("B", "##"))) == 2
    assert len(fetches(run_until(story, 10.0))) == 2
    assert fetches(run_until(story, 60.0)) == []


@pytest.mark.parametrize(("chunks", "wait_s"), [(4, 120.0), (100, 300.0)])
def test_the_default_patience_grows_with_the_version(chunks: int, wait_s: float) -> None:
    story = Story("." * chunks)
    assert fetches(run_until(story, wait_s - 0.1)) == []
    assert fetches(run_until(story, wait_s))


def test_a_lost_tracker_makes_neighbours_read_and_a_regained_one_stops_that() -> None:
    story = Story.of("""
        me  ............
        B   ............
    """)
    assert fetches(story.tell(TrackerLost()))
    assert right(story) is Right.IN_LINE
    story.tell(TrackerRegained())
    assert right(story) is Right.NONE
    assert not story.node.statistics().is_tracker_lost


def test_throttled_means_one_request_a_second_until_one_succeeds() -> None:
    story = alone(60)
    running = fetches(story.first)
    for fetch in running:
        assert fetches(fail(story, fetch, FailureReason.THROTTLED, at=1.0)) == []
    running = []
    count = 0
    while story.now < 61.0:
        for fetch in running:
            count += 1
            assert fetch.connections == 1
            fail(story, fetch, FailureReason.THROTTLED, at=story.now)
        running = fetches(run_until(story, story.now + 0.1))
    assert 35 <= count <= 90
    while not running:
        running = fetches(run_until(story, story.now + 0.1))
    assert len(fetches(story.verify(running[0], at=story.now + 0.1))) >= 1


def test_retry_after_is_obeyed() -> None:
    story = alone(1)
    (fetch,) = fetches(story.first)
    fail(story, fetch, FailureReason.THROTTLED, at=1.0, retry_after_s=5.0)
    assert fetches(run_until(story, 5.9)) == []
    assert len(fetches(run_until(story, 8.0))) == 1


def test_a_failed_chunk_rests_longer_each_time_and_is_named() -> None:
    story = alone(1)
    (fetch,) = fetches(story.first)
    failed_at = []
    for _ in range(4):
        failed_at.append(story.now)
        fail(story, fetch, FailureReason.UNAVAILABLE, at=story.now)
        (fetch,) = fetches(run_until(story, story.now + 30.0))[:1]
    trouble = story.node.statistics().versions[0].origin_trouble
    assert trouble == OriginTrouble(fetch.chunk, 4, FailureReason.UNAVAILABLE)
    story.verify(fetch, at=story.now)
    assert story.node.statistics().versions[0].origin_trouble is None


def test_four_attempts_fit_in_ten_seconds() -> None:
    story = alone(1)
    (fetch,) = fetches(story.first)
    for _ in range(3):
        fail(story, fetch, FailureReason.CORRUPT, at=story.now)
        deadline = story.node.next_deadline()
        assert deadline is not None
        (fetch,) = fetches(story.tell(TimerFired(), at=deadline))
    assert story.now < 10.0


def test_other_chunks_go_on_while_one_rests() -> None:
    story = alone(9)
    first, *_ = fetches(story.first)
    (other,) = fetches(fail(story, first, FailureReason.LOST, at=0.1))
    assert other.chunk != first.chunk


def test_a_chunk_that_a_peer_gave_is_no_trouble_any_more() -> None:
    story = alone(1)
    (fetch,) = fetches(story.first)
    fail(story, fetch, FailureReason.UNAVAILABLE, at=0.1)
    request = only_request(story.link("B", "#"))
    story.verify(request, at=1.0)
    assert story.node.statistics().versions[0].origin_trouble is None


def test_a_failing_disk_stops_the_reads_for_a_while() -> None:
    story = alone(20)
    first, *_ = fetches(story.first)
    assert fetches(fail(story, first, FailureReason.LOCAL, at=0.5)) == []
    assert fetches(run_until(story, 1.4)) == []
    assert len(fetches(run_until(story, 1.5))) == 1


def test_leaving_reads_nothing_more() -> None:
    story = alone(20)
    first, *_ = fetches(story.first)
    story.tell(LeaveRequested())
    assert fetches(story.verify(first, at=1.0)) == []


def test_a_removed_version_forgets_its_troubles() -> None:
    story = alone(2)
    first, second = fetches(story.first)
    fail(story, first, FailureReason.UNAVAILABLE, at=0.1)
    story.tell(VersionRemoved(VERSION))
    fail(story, second, FailureReason.CANCELLED, at=0.2)
    story.add("..")
    assert len(fetches(story.first)) == 2


def test_two_lone_versions_share_the_origin() -> None:
    story = Story("." * 4, NodeSettings(has_tracker=False))
    assert len(fetches(story.first)) == 4
    assert right(story) is Right.ALONE
