"""Stories of leases: the tracker sends its whole list each time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarm.policy.commands import FetchFromOrigin, ReportLease
from swarm.policy.events import (
    ChunksRetracted,
    ChunkVerified,
    FailureReason,
    LeasesReceived,
    LeaveRequested,
    ModeReceived,
    TransferFailed,
    VersionRemoved,
)
from swarm.protocol.ids import ChunkIndex, LeaseId, NodeId
from swarm.protocol.tracker_api import LeaseOutcome, Mode
from tests.support.story import (
    CHUNK_BYTES,
    ME,
    OTHER_VERSION,
    VERSION,
    Story,
    cancels,
    default_settings,
    fetches,
    only_request,
    peer_id,
    reports,
    requests,
)


def end(
    lease: int,
    chunk: int,
    outcome: LeaseOutcome,
    owner: NodeId | None = None,
    retry_after_s: float | None = None,
) -> ReportLease:
    return ReportLease(VERSION, LeaseId(lease), ChunkIndex(chunk), outcome, owner, retry_after_s)


def only_fetch(story: Story, lease: int, chunk: int) -> FetchFromOrigin:
    (fetch,) = fetches(story.lease((lease, chunk)))
    return fetch


def test_a_lease_is_read_at_once_over_the_connections_it_grants() -> None:
    story = Story("....")
    commands = story.lease((7, 2), (8, 3))
    assert [(fetch.chunk, fetch.connections) for fetch in fetches(commands)] == [(2, 2), (3, 2)]
    assert story.node.statistics().versions[0].lease_count == 2
    assert story.lease((7, 2), (8, 3)) == []


def test_leases_use_no_session() -> None:
    story = Story.of("""
        me  ......
        B   ####..
    """)
    assert len(fetches(story.lease((1, 4), (2, 5)))) == 2
    assert story.node.statistics().session_count == 2


def test_a_verified_lease_is_reported_at_once_and_announced() -> None:
    story = Story.of("""
        me  ....
        B   ....
    """)
    fetch = only_fetch(story, 7, 2)
    commands = story.verify(fetch, at=1.0)
    assert reports(commands) == [end(7, 2, LeaseOutcome.VERIFIED)]
    assert story.node.statistics().versions[0].origin_bytes == CHUNK_BYTES


def test_a_lease_that_ended_here_is_not_read_again_while_the_tracker_still_names_it() -> None:
    story = Story("....")
    fetch = only_fetch(story, 7, 2)
    story.tell(TransferFailed(fetch.transfer, FailureReason.LOST), at=1.0)
    assert story.lease((7, 2)) == []
    assert story.lease() == []
    assert len(fetches(story.lease((9, 2)))) == 1


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        (FailureReason.LOST, LeaseOutcome.FAILED),
        (FailureReason.CORRUPT, LeaseOutcome.FAILED),
        (FailureReason.LOCAL, LeaseOutcome.FAILED),
        (FailureReason.CANCELLED, LeaseOutcome.FAILED),
        (FailureReason.THROTTLED, LeaseOutcome.THROTTLED),
        (FailureReason.UNAVAILABLE, LeaseOutcome.UNAVAILABLE),
    ],
)
def test_a_failed_lease_says_how(reason: FailureReason, outcome: LeaseOutcome) -> None:
    story = Story("....")
    fetch = only_fetch(story, 7, 2)
    wait_s = 3.0 if reason is FailureReason.THROTTLED else None
    commands = story.tell(TransferFailed(fetch.transfer, reason, retry_after_s=wait_s), at=1.0)
    assert reports(commands) == [end(7, 2, outcome, None, wait_s)]
    assert fetches(commands) == []


def test_a_lease_for_a_held_chunk_is_declined_with_us_as_the_owner() -> None:
    assert Story("#...").lease((7, 0)) == [end(7, 0, LeaseOutcome.DECLINED, ME)]


def test_a_lease_for_a_chunk_that_a_neighbour_holds_is_declined_with_its_name() -> None:
    story = Story.of("""
        me  ....
        B   ...#
    """)
    assert reports(story.lease((7, 3))) == [end(7, 3, LeaseOutcome.DECLINED, peer_id("B"))]


def test_a_slow_neighbour_is_no_owner() -> None:
    """The tracker grants a chunk again when all its owners lag; then it must be read."""
    story = Story("...", replace(default_settings(), session_count=1))
    slow = only_request(story.link("B", "###"))
    story.link("C", "###")
    assert cancels(story.sample((slow.transfer, 1), at=10.0)) == [slow.transfer]
    story.tell(TransferFailed(slow.transfer, FailureReason.CANCELLED))
    assert reports(story.lease((6, slow.chunk)))[0].owner == peer_id("C")
    story.tell(ChunksRetracted(peer_id("C"), VERSION, 0))
    assert len(fetches(story.lease((7, slow.chunk)))) == 1


def test_a_lease_for_a_chunk_on_its_way_is_declined_without_an_owner() -> None:
    story = Story("....", replace(default_settings(), session_count=1))
    request = only_request(story.link("B", "####"))
    story.lose("B")
    assert reports(story.lease((7, request.chunk))) == [
        end(7, request.chunk, LeaseOutcome.DECLINED)
    ]


def test_two_leases_for_one_chunk_are_one_read() -> None:
    story = Story("....")
    commands = story.lease((7, 2), (8, 2))
    assert len(fetches(commands)) == 1
    assert reports(commands) == [end(8, 2, LeaseOutcome.DECLINED)]


def test_a_lease_that_is_not_named_any_more_is_revoked() -> None:
    story = Story("....")
    fetch = only_fetch(story, 7, 2)
    commands = story.lease()
    assert cancels(commands) == [fetch.transfer]
    assert reports(commands) == []
    ended = story.tell(TransferFailed(fetch.transfer, FailureReason.CANCELLED), at=1.0)
    assert reports(ended) == []


def test_one_of_two_leases_can_be_revoked() -> None:
    story = Story("....")
    first, _ = fetches(story.lease((7, 2), (8, 3)))
    assert cancels(story.lease((8, 3))) == [first.transfer]


def test_the_race_against_a_peer_ends_the_lease_at_once() -> None:
    """A peer's copy of a leased chunk wins: the read is cancelled and its lease returned."""
    story = Story("..", replace(default_settings(), session_count=1))
    fetch = only_fetch(story, 7, 1)
    story.tell(ChunkVerified(VERSION, ChunkIndex(0), None), at=1.0)
    story.link("B", ".#")
    commands = story.sample((fetch.transfer, 1_000), at=20.0)
    request = only_request(commands)
    commands = story.verify(request, at=21.0)
    assert cancels(commands) == [fetch.transfer]
    assert reports(commands) == [end(7, 1, LeaseOutcome.DECLINED, ME)]


def test_a_revoked_lease_leaves_the_rival_alone() -> None:
    story = Story("..", replace(default_settings(), session_count=1))
    fetch = only_fetch(story, 7, 1)
    story.tell(ChunkVerified(VERSION, ChunkIndex(0), None), at=1.0)
    story.link("B", ".#")
    only_request(story.sample((fetch.transfer, 1_000), at=20.0))
    assert cancels(story.lease()) == [fetch.transfer]


def test_a_chunk_that_does_not_exist_is_a_failure() -> None:
    assert Story("....").lease((7, 4)) == [end(7, 4, LeaseOutcome.FAILED)]


def test_a_node_without_an_origin_says_so() -> None:
    story = Story("....", replace(default_settings(), has_origin=False))
    assert story.lease((7, 2)) == [end(7, 2, LeaseOutcome.FAILED)]


def test_leases_are_declined_in_modes_that_forbid_the_origin_and_while_leaving() -> None:
    story = Story("....")
    fetch = only_fetch(story, 6, 0)
    commands = story.tell(ModeReceived(VERSION, Mode.PEERS_ONLY))
    assert cancels(commands) == [fetch.transfer]
    assert reports(commands) == [end(6, 0, LeaseOutcome.DECLINED)]
    assert story.lease((7, 2)) == [end(7, 2, LeaseOutcome.DECLINED)]
    leaving = Story("....")
    leaving.tell(LeaveRequested())
    assert leaving.lease((7, 2)) == [end(7, 2, LeaseOutcome.DECLINED)]


def test_a_removed_version_gives_its_leases_back() -> None:
    story = Story("....")
    fetch = only_fetch(story, 7, 2)
    commands = story.tell(VersionRemoved(VERSION))
    assert cancels(commands) == [fetch.transfer]
    assert reports(commands) == [end(7, 2, LeaseOutcome.DECLINED)]
    assert story.tell(LeasesReceived(OTHER_VERSION, ())) == []


def test_a_running_unasked_read_gets_the_lease() -> None:
    story = Story("..", replace(default_settings(), has_tracker=False))
    (fetch, _) = fetches(story.first)
    assert story.lease((7, fetch.chunk)) == []
    assert reports(story.verify(fetch, at=1.0)) == [end(7, fetch.chunk, LeaseOutcome.VERIFIED)]
    assert requests(story.link("B", "..")) == []
