"""Stories of what neighbours say that they hold. `Story` checks after each event that the holder
counts equal the announcements."""

from __future__ import annotations

from dataclasses import replace

from swarm.policy.commands import (
    Command,
    DisconnectPeer,
    EndSession,
    ReportUnreachable,
    RequestChunk,
    SendBadChunk,
)
from swarm.policy.events import (
    BitfieldReceived,
    ChunksRetracted,
    FailureReason,
    HavesReceived,
    TimerFired,
    TransferFailed,
    VersionAdded,
)
from swarm.protocol.ids import VersionId
from tests.support.story import (
    CHUNK_BYTES,
    OTHER_VERSION,
    VERSION,
    Story,
    bits,
    default_settings,
    only_request,
    peer_id,
    requests,
)


def one_session() -> Story:
    return Story("....", replace(default_settings(), session_count=1))


def corrupt(story: Story, request: RequestChunk, *, at: float) -> list[Command]:
    return story.tell(TransferFailed(request.transfer, FailureReason.CORRUPT), at=at)


def unavailable(story: Story) -> int:
    return story.node.statistics().versions[0].unavailable_count


def test_a_bit_field_replaces_and_haves_add() -> None:
    story = Story("....")
    story.link("B", "##..")
    assert unavailable(story) == 2
    story.haves("B", ".##.")
    assert unavailable(story) == 1
    story.tell(BitfieldReceived(peer_id("B"), VERSION, bits("#..."), 0))
    assert unavailable(story) == 3


def test_chunks_past_the_end_do_not_exist() -> None:
    story = Story("....")
    story.link("B", "....####")
    assert unavailable(story) == 4
    story.haves("B", "....####")
    assert unavailable(story) == 4


def test_words_of_strangers_are_ignored() -> None:
    story = Story("....")
    assert story.haves("B", "####") == []
    assert story.tell(BitfieldReceived(peer_id("B"), VERSION, bits("####"), 0)) == []


def test_retracted_chunks_are_not_asked_for() -> None:
    story = one_session()
    request = only_request(story.link("B", "##.."))
    story.tell(ChunksRetracted(peer_id("B"), VERSION, bits("####")))
    assert requests(story.verify(request, at=1.0)) == []
    assert unavailable(story) == 3


def test_a_version_can_be_announced_before_we_take_part_in_it() -> None:
    story = Story("#")
    story.link("B", "#")
    story.tell(BitfieldReceived(peer_id("B"), OTHER_VERSION, bits("#.."), 0))
    story.tell(HavesReceived(peer_id("B"), OTHER_VERSION, bits("..#.#"), 0))
    story.tell(ChunksRetracted(peer_id("B"), OTHER_VERSION, bits("#..")))
    commands = story.tell(VersionAdded(OTHER_VERSION, (CHUNK_BYTES,) * 3, 0))
    assert only_request(commands).chunk == 2


def test_foreign_announcements_are_bounded() -> None:
    story = Story("#")
    story.link("B", "#")
    for number in range(100):
        version = VersionId(bytes([number]) * 32)
        story.tell(BitfieldReceived(peer_id("B"), version, 1, 0))
    huge = VersionId(b"h" * 32)
    story.link("C", "#")
    story.tell(HavesReceived(peer_id("C"), huge, 1 << (1 << 21), 0))
    assert requests(story.tell(VersionAdded(huge, (CHUNK_BYTES,), 0))) == []
    late = VersionId(bytes([99]) * 32)
    assert requests(story.tell(VersionAdded(late, (CHUNK_BYTES,), 0))) == []
    assert requests(story.tell(HavesReceived(peer_id("B"), late, 1, 0))) == []
    early = VersionId(bytes([5]) * 32)
    assert len(requests(story.tell(VersionAdded(early, (CHUNK_BYTES,), 0)))) == 1


def test_a_wrong_chunk_is_asked_of_the_same_peer_once_more_later() -> None:
    story = Story(".", replace(default_settings(), session_count=1))
    request = only_request(story.link("B", "#"))
    assert requests(corrupt(story, request, at=1.0)) == []
    assert story.node.next_deadline() == 5.0
    story.tell(TimerFired(), at=5.0)
    assert story.node.next_deadline() == 6.0
    second = only_request(story.tell(TimerFired(), at=6.0))
    commands = corrupt(story, second, at=7.0)
    assert [type(command) for command in commands] == [
        EndSession,
        SendBadChunk,
        DisconnectPeer,
        ReportUnreachable,
    ]
    assert requests(story.haves("B", "#", at=7.1)) == []
    assert requests(story.tell(BitfieldReceived(peer_id("B"), VERSION, bits("#"), 0))) == []


def test_a_peer_that_repaired_its_chunk_is_believed_at_once() -> None:
    story = Story(".", replace(default_settings(), session_count=1))
    request = only_request(story.link("B", "#"))
    corrupt(story, request, at=1.0)
    story.tell(ChunksRetracted(peer_id("B"), VERSION, bits("#")))
    assert only_request(story.haves("B", "#", at=2.0)).peer == peer_id("B")


def test_a_peer_that_left_meanwhile_gets_no_second_chance() -> None:
    story = Story(".", replace(default_settings(), session_count=1))
    request = only_request(story.link("B", "#"))
    corrupt(story, request, at=1.0)
    story.lose("B")
    assert requests(story.tell(TimerFired(), at=6.0)) == []
    assert unavailable(story) == 1


def test_a_peer_is_dropped_once_however_much_is_still_on_its_way() -> None:
    story = Story("." * 8, replace(default_settings(), session_count=6))
    running = requests(story.link("B", "#" * 8))
    commands: list[Command] = []
    for request in running:
        commands += corrupt(story, request, at=1.0)
    assert sum(isinstance(command, DisconnectPeer) for command in commands) == 1


def test_a_neighbour_of_another_version_is_no_reason_to_keep_a_link() -> None:
    story = Story("####")
    story.link("B", "####")
    story.tell(VersionAdded(OTHER_VERSION, (CHUNK_BYTES,), 1))
    story.tell(TimerFired(), at=5.0)
    assert story.node.statistics().neighbour_count == 1
