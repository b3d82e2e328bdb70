"""The node's three doors, and the walk of one chunk through it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarm.policy.commands import (
    ConnectPeer,
    EndSession,
    ReportLease,
    RequestChunk,
    SendBitfield,
    SendHave,
    StartUpload,
)
from swarm.policy.events import (
    BitfieldReceived,
    ChunkRequested,
    ChunkVerified,
    HavesReceived,
    PeerConnected,
    ProgressSampled,
    TimerFired,
    TransferId,
    TransferNearEnd,
    UploadFinished,
    VersionAdded,
)
from swarm.protocol.ids import ChunkIndex, LeaseId, SessionId
from swarm.protocol.tracker_api import LeaseOutcome
from tests.support.story import (
    CHUNK_BYTES,
    VERSION,
    Story,
    bits,
    default_settings,
    fetches,
    peer_id,
    peer_info,
)


def test_one_chunk_walks_from_a_lease_through_us_to_a_neighbour() -> None:
    story = Story("..", replace(default_settings(), session_count=1))
    assert story.know("Z") == [ConnectPeer(peer_info("Z"))]
    connected = PeerConnected(peer_info("Z"), 0, is_outgoing=True, rtt_s=0.001)
    assert story.tell(connected) == [SendBitfield(peer_id("Z"), VERSION, 0, 0)]
    assert story.tell(BitfieldReceived(peer_id("Z"), VERSION, 0, 0)) == []
    (fetch,) = fetches(story.lease((1, 0)))
    assert story.verify(fetch, at=1.0) == [
        ReportLease(VERSION, LeaseId(1), ChunkIndex(0), LeaseOutcome.VERIFIED),
        SendHave(peer_id("Z"), VERSION, bits("#."), 0),
    ]
    asked = ChunkRequested(peer_id("Z"), SessionId(9), VERSION, ChunkIndex(0))
    assert story.tell(asked) == [StartUpload(peer_id("Z"), SessionId(9), VERSION, ChunkIndex(0))]
    sent = UploadFinished(peer_id("Z"), SessionId(9), ChunkIndex(0), CHUNK_BYTES)
    assert story.tell(sent, at=2.0) == []


def test_one_chunk_walks_from_a_neighbour_to_us() -> None:
    story = Story("..", replace(default_settings(), session_count=1))
    story.link("B", "..")
    request = RequestChunk(
        TransferId(1), peer_id("B"), SessionId(1), VERSION, ChunkIndex(1), stripes=1
    )
    assert story.haves("B", ".#") == [request]
    assert story.tell(TransferNearEnd(TransferId(1)), at=0.9) == []
    assert story.tell(ChunkVerified(VERSION, ChunkIndex(1), TransferId(1)), at=1.0) == [
        EndSession(peer_id("B"), SessionId(1))
    ]
    statistics = story.node.statistics()
    assert statistics.versions[0].peer_same_zone_bytes == CHUNK_BYTES
    assert statistics.session_count == 0


def test_bytes_of_other_zones_are_counted_apart() -> None:
    story = Story(".", replace(default_settings(), zone="a"))
    event = PeerConnected(peer_info("B", zone="b"), 0, is_outgoing=True, rtt_s=0.001)
    story.tell(event)
    commands = story.tell(BitfieldReceived(peer_id("B"), VERSION, 1, 0))
    (request,) = [command for command in commands if isinstance(command, RequestChunk)]
    story.verify(request, at=1.0)
    assert story.node.statistics().versions[0].peer_other_zone_bytes == CHUNK_BYTES


def test_a_complete_and_quiet_node_has_no_deadline() -> None:
    story = Story("##")
    assert story.node.next_deadline() is None
    assert story.tell(TimerFired(), at=1000.0) == []


def test_the_story_is_kept_and_bounded() -> None:
    story = Story("..", replace(default_settings(), story_count=3))
    for tick in range(5):
        story.tell(TimerFired(), at=float(tick))
    assert story.node.story() == [(float(tick), (TimerFired(),), ()) for tick in range(2, 5)]


def test_a_story_replays_to_the_same_commands() -> None:
    first = Story.of("""
        me  ......
        B   ###...
        C   ...###
    """)
    second = Story("", is_added=False)
    for now, events, commands in first.node.story():
        assert second.tell(*events, at=now) == list(commands)


def test_several_facts_are_one_decision() -> None:
    """Of two neighbours that appear together the node sees both before it picks a source."""
    story = Story("....")
    for name in "BC":
        story.link(name)
    rows = {"B": "##..", "C": "..##"}
    events = [HavesReceived(peer_id(name), VERSION, bits(row), 0) for name, row in rows.items()]
    asked = {order.peer for order in story.tell(*events) if isinstance(order, RequestChunk)}
    assert asked == {peer_id("B"), peer_id("C")}


def test_a_version_is_added_once() -> None:
    story = Story("..")
    with pytest.raises(AssertionError):
        story.node.handle(VersionAdded(VERSION, (1, 1), 0), now=0.0)


def test_statistics_tell_where_a_node_stands() -> None:
    story = Story.of("""
        me  #...
        B   .##.
    """)
    statistics = story.node.statistics()
    (version,) = statistics.versions
    assert (version.chunk_count, version.held_count, version.in_flight_count) == (4, 1, 2)
    assert (version.unavailable_count, version.total_bytes) == (1, 4 * CHUNK_BYTES)
    assert (statistics.neighbour_count, statistics.known_count) == (1, 1)
    assert statistics.is_nic_known


def test_a_node_nobody_spoke_to_has_statistics() -> None:
    assert Story("", is_added=False).node.statistics().versions == ()


def test_progress_of_unknown_transfers_is_ignored() -> None:
    story = Story("..")
    story.tell(ProgressSampled(((TransferId(99), 5),), 5, 0), at=1.0)
    story.tell(TransferNearEnd(TransferId(99)), at=1.0)
    story.tell(ProgressSampled((), 5, 0), at=1.0)
    story.tell(HavesReceived(peer_id("B"), VERSION, 1, 0))
    assert story.node.statistics().versions[0].held_count == 0
