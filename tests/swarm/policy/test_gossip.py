"""Stories of what neighbours are told."""

from __future__ import annotations

from dataclasses import replace

from swarm.policy.commands import Command, SendBitfield, SendHave, SendRetract
from swarm.policy.events import (
    BitfieldReceived,
    ChunkDamaged,
    ChunkRequested,
    ChunksRetracted,
    ChunkVerified,
    LeaveRequested,
    PeerConnected,
    TimerFired,
    VersionAdded,
    VersionRemoved,
)
from swarm.protocol.ids import ChunkIndex, NodeId, SessionId
from tests.support.story import (
    CHUNK_BYTES,
    OTHER_VERSION,
    VERSION,
    Story,
    bits,
    default_settings,
    haves,
    peer_id,
    peer_info,
)

QUIET = replace(default_settings(), has_origin=False)
"""Nothing is fetched, so that only gossip is heard."""


def found(story: Story, chunk: int, *, at: float) -> list[Command]:
    """A chunk turns up on the local disk."""
    return story.tell(ChunkVerified(VERSION, ChunkIndex(chunk), None), at=at)


def told(commands: list[Command]) -> dict[NodeId, int]:
    return {have.peer: have.bits for have in haves(commands)}


def test_a_new_link_and_a_new_version_lead_to_bit_fields() -> None:
    story = Story("##..", QUIET)
    connected = story.tell(PeerConnected(peer_info("B"), 0, is_outgoing=True, rtt_s=0.001))
    assert connected == [SendBitfield(peer_id("B"), VERSION, bits("##.."), 0)]
    assert story.tell(VersionAdded(OTHER_VERSION, (CHUNK_BYTES,), 1)) == [
        SendBitfield(peer_id("B"), OTHER_VERSION, 1, 0)
    ]


def test_the_first_chunk_goes_at_once_and_the_next_ones_in_a_batch() -> None:
    story = Story("." * 600, QUIET)
    story.link("B", "." * 600)
    assert told(found(story, 0, at=1.0)) == {peer_id("B"): 1 << 0}
    assert haves(found(story, 1, at=1.01)) == []
    assert haves(found(story, 2, at=1.02)) == []
    assert story.node.next_deadline() == 1.05
    assert told(story.tell(TimerFired(), at=1.05)) == {peer_id("B"): 1 << 1 | 1 << 2}
    assert told(found(story, 3, at=2.0)) == {peer_id("B"): 1 << 3}


def test_versions_of_few_chunks_are_announced_more_often() -> None:
    story = Story("....", QUIET)
    story.link("B", "....")
    found(story, 0, at=1.0)
    found(story, 1, at=1.001)
    assert story.node.next_deadline() == 1.02
    story = Story("....", replace(QUIET, have_interval_s=0.5))
    story.link("B", "....")
    found(story, 0, at=1.0)
    found(story, 1, at=1.001)
    assert story.node.next_deadline() == 1.5


def test_neighbours_hear_only_what_they_lack() -> None:
    story = Story("....", QUIET)
    story.link("B", "#...")
    story.link("C", "....")
    assert told(found(story, 0, at=1.0)) == {peer_id("C"): bits("#...")}
    found(story, 1, at=1.001)
    story.haves("C", ".#..")
    assert told(story.tell(TimerFired(), at=1.02)) == {peer_id("B"): bits(".#..")}


def test_neighbours_outside_the_version_hear_nothing() -> None:
    story = Story("....", QUIET)
    story.tell(PeerConnected(peer_info("B"), 0, is_outgoing=True, rtt_s=0.001))
    assert haves(found(story, 0, at=1.0)) == []


def test_what_is_verified_between_two_bit_fields_is_made_up_for() -> None:
    story = Story("....", QUIET)
    story.tell(PeerConnected(peer_info("B"), 0, is_outgoing=True, rtt_s=0.001))
    found(story, 0, at=1.0)
    found(story, 1, at=1.1)
    commands = story.tell(BitfieldReceived(peer_id("B"), VERSION, bits(".#.#"), 0))
    assert told(commands) == {peer_id("B"): bits("#...")}
    again = story.tell(BitfieldReceived(peer_id("B"), VERSION, bits(".#.#"), 0))
    assert haves(again) == []


def test_the_load_travels_in_haves() -> None:
    story = Story("#...", QUIET)
    story.link("B", "....")
    story.tell(ChunkRequested(peer_id("B"), SessionId(1), VERSION, ChunkIndex(0)))
    (have,) = haves(found(story, 1, at=1.0))
    assert have == SendHave(peer_id("B"), VERSION, bits(".#.."), 1)


def test_a_neighbour_that_lost_chunks_hears_that_we_hold_them() -> None:
    story = Story("##..", QUIET)
    story.link("B", "####")
    commands = story.tell(ChunksRetracted(peer_id("B"), VERSION, bits(".##.")))
    assert told(commands) == {peer_id("B"): bits(".#..")}
    assert story.tell(ChunksRetracted(peer_id("B"), OTHER_VERSION, bits(".##."))) == []
    assert story.tell(ChunksRetracted(peer_id("C"), VERSION, bits(".##."))) == []


def test_a_damaged_chunk_is_retracted_even_before_it_was_announced() -> None:
    story = Story("....", QUIET)
    story.link("B", "....")
    found(story, 0, at=1.0)
    found(story, 1, at=1.001)
    retracted = story.tell(ChunkDamaged(VERSION, ChunkIndex(1)))
    assert retracted == [SendRetract(peer_id("B"), VERSION, bits(".#.."))]
    assert story.tell(TimerFired(), at=1.02) == []
    found(story, 2, at=1.03)
    found(story, 3, at=1.031)
    found(story, 1, at=1.032)
    story.tell(ChunkDamaged(VERSION, ChunkIndex(3)))
    assert told(story.tell(TimerFired(), at=1.06)) == {peer_id("B"): bits(".#..")}


def test_leaving_and_removing_retract_the_whole_version() -> None:
    whole = SendRetract(peer_id("B"), VERSION, 0)
    story = Story("##..", QUIET)
    story.link("B", "....")
    assert story.tell(LeaveRequested()) == [whole]
    assert haves(found(story, 2, at=1.0)) == []
    assert story.link("C", "....") == []
    story = Story("##..", QUIET)
    story.tell(PeerConnected(peer_info("B"), 0, is_outgoing=True, rtt_s=0.001))
    story.tell(PeerConnected(peer_info("C"), 0, is_outgoing=True, rtt_s=0.001))
    assert whole in story.tell(VersionRemoved(VERSION))
