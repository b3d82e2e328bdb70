"""Stories of zones at a node: sessions stay near, a zone lease fetches from afar."""

from __future__ import annotations

import random
from dataclasses import replace

from swarm.policy.commands import Command, EndSession, RequestChunk, StartUpload
from swarm.policy.events import (
    BitfieldReceived,
    ChunkRequested,
    FailureReason,
    LeasesReceived,
    PeerConnected,
    TimerFired,
    TrackerLost,
    TransferFailed,
    UploadFinished,
)
from swarm.policy.node import Node
from swarm.protocol.ids import ChunkIndex, LeaseId, SessionId
from swarm.protocol.tracker_api import Lease, LeaseOutcome
from tests.support.story import (
    CHUNK_BYTES,
    VERSION,
    Story,
    bits,
    cancels,
    default_settings,
    fetches,
    only_request,
    peer_id,
    peer_info,
    reports,
    requests,
)


def zoned(held: str, *leases: Lease, **rows: str) -> Story:
    """A node of zone a; neighbours are named after their zone's letter and a digit's, so ``a`` is
    near and every other letter is not."""
    story = Story(held, replace(default_settings(), zone="a"))
    story.tell(LeasesReceived(VERSION, leases, is_zoned=True))
    for name, row in rows.items():
        link(story, name, row)
    return story


def link(story: Story, name: str, row: str) -> None:
    story.tell(PeerConnected(peer_info(name, zone=name), 0, is_outgoing=True, rtt_s=0.001))
    story.tell(BitfieldReceived(peer_id(name), VERSION, bits(row), 0))


def zone_lease(lease: int, chunk: int, source: str = "z") -> Lease:
    return Lease(LeaseId(lease), ChunkIndex(chunk), 1, True, peer_info(source, zone=source))


def test_sessions_stay_within_the_zone() -> None:
    story = zoned("....", b="####")
    assert not story.node.statistics().session_count
    link(story, "a", "##..")
    assert story.node.statistics().session_count == 2


def test_without_the_tracker_s_word_zones_are_the_same_to_us() -> None:
    story = Story("....", replace(default_settings(), zone="a"))
    link(story, "b", "####")
    assert story.node.statistics().session_count == 2


def test_a_zone_lease_is_fetched_from_a_stranger_and_takes_no_session() -> None:
    story = zoned("....", a="##..")
    commands = story.tell(LeasesReceived(VERSION, (zone_lease(7, 3),), is_zoned=True))
    request = only_request(commands)
    assert (request.peer, request.chunk) == (peer_id("z"), 3)
    assert request.source == peer_info("z", zone="z")
    assert EndSession(peer_id("z"), request.session) in commands
    assert story.node.statistics().session_count == 2

    (report,) = reports(story.verify(request, at=1.0))
    assert (report.lease, report.outcome) == (7, LeaseOutcome.VERIFIED)
    assert story.node.statistics().versions[0].peer_other_zone_bytes == CHUNK_BYTES


def test_a_zone_lease_without_a_source_reads_the_origin() -> None:
    """Neighbours of other zones that announce the chunk are no reason to decline."""
    story = zoned("....", b="####")
    lease = Lease(LeaseId(7), ChunkIndex(2), 1, is_for_zone=True)
    (fetch,) = fetches(story.tell(LeasesReceived(VERSION, (lease,), is_zoned=True)))
    assert fetch.chunk == 2


def test_a_zone_lease_is_declined_for_a_neighbour_of_the_zone_that_has_it() -> None:
    story = zoned("...#", a="....", b="####")
    (held,) = reports(story.tell(LeasesReceived(VERSION, (zone_lease(7, 3),), is_zoned=True)))
    assert (held.outcome, held.owner) == (LeaseOutcome.DECLINED, peer_id("M"))
    story.haves("a", "#...")
    leases = (zone_lease(8, 0), zone_lease(9, 1))
    commands = story.tell(LeasesReceived(VERSION, leases, is_zoned=True))
    (declined,) = reports(commands)
    assert (declined.lease, declined.owner) == (8, peer_id("a"))
    assert only_request(commands).chunk == 1


def test_a_source_that_fails_ends_the_lease_and_nothing_else() -> None:
    story = zoned("....", a="##..", z="####")
    request = only_request(story.tell(LeasesReceived(VERSION, (zone_lease(7, 3),), is_zoned=True)))
    (report,) = reports(story.tell(TransferFailed(request.transfer, FailureReason.LOST), at=1.0))
    assert (report.lease, report.outcome) == (7, LeaseOutcome.FAILED)
    assert story.node.statistics().session_count == 2


def test_a_zone_lease_that_is_taken_back_is_cancelled() -> None:
    story = zoned("....")
    request = only_request(story.tell(LeasesReceived(VERSION, (zone_lease(7, 3),), is_zoned=True)))
    assert cancels(story.tell(LeasesReceived(VERSION, (), is_zoned=True))) == [request.transfer]


def test_uploads_for_zone_leases_take_no_slot() -> None:
    story = zoned("####")
    started = [
        command
        for number, zone in enumerate(("a", "a", "z", "z", "y"))
        for command in story.tell(
            ChunkRequested(
                peer_id(f"{number}"), SessionId(number), VERSION, ChunkIndex(number % 4), zone
            )
        )
        if isinstance(command, StartUpload)
    ]
    assert len(started) == 5


def test_a_session_across_zones_that_goes_on_is_served_one_chunk_after_the_other() -> None:
    story = zoned("####")

    def ask(chunk: int) -> list[Command]:
        event = ChunkRequested(peer_id("z"), SessionId(1), VERSION, ChunkIndex(chunk), "z")
        return story.tell(event)

    def sent(chunk: int) -> list[Command]:
        return story.tell(
            UploadFinished(peer_id("z"), SessionId(1), ChunkIndex(chunk), CHUNK_BYTES)
        )

    assert [type(command) for command in ask(0)] == [StartUpload]
    assert ask(1) == []
    (following,) = sent(0)
    assert isinstance(following, StartUpload)
    assert following.chunk == 1
    assert sent(1) == []
    assert story.node.statistics().uploaded_count == 2


def test_a_starved_node_reaches_across_with_one_session() -> None:
    story = zoned("....", a="....", b="####")
    assert not requests(story.tell(TimerFired(), at=9.9))
    deadline = story.node.next_deadline()
    assert deadline is not None
    assert deadline <= 10.0
    request = only_request(story.tell(TimerFired(), at=10.0))
    assert request.peer == peer_id("b")
    assert story.node.statistics().session_count == 1
    # Near again: the session across ends with its chunk.
    story.haves("a", bits_row(request), at=10.5)
    assert not [r for r in requests(story.tell(TimerFired(), at=10.6)) if r.peer == peer_id("b")]


def bits_row(request: RequestChunk) -> str:
    """All chunks but the one asked for."""
    return "".join("." if chunk == request.chunk else "#" for chunk in range(4))


def test_without_a_tracker_the_zone_s_nodes_share_what_crosses() -> None:
    """Two nodes of a zone each know the other; no chunk is fetched by both."""
    settings = replace(default_settings(), zone="a", session_count=64, has_origin=False)
    fetched = []
    for me, other in (("M", "N"), ("N", "M")):
        story = Story("." * 32, settings, is_added=False)
        story.node = Node(settings, peer_id(me), random.Random(1))
        story.add("." * 32)
        story.tell(TrackerLost())
        story.tell(
            PeerConnected(peer_info(other, zone="a"), 0, is_outgoing=True, rtt_s=0.001),
            BitfieldReceived(peer_id(other), VERSION, 0, 0),
        )
        link(story, "z", "#" * 32)
        chunks = {
            request.chunk
            for step in story.node.story()
            for request in step[2]
            if isinstance(request, RequestChunk)
        }
        fetched.append(chunks)
    assert not fetched[0] & fetched[1]
    assert len(fetched[0] | fetched[1]) == 32
