"""Stories of a node in a rack: mates in small letters, agents outside in capital ones. One chunk a
second, two sessions; in a rack of four each node has one import."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarm.policy.commands import (
    Command,
    ConnectPeer,
    DisconnectPeer,
    RefuseRequest,
    RequestChunk,
    SendBitfield,
    SendClaim,
    StartUpload,
)
from swarm.policy.events import (
    ChunkRequested,
    ChunksRetracted,
    ChunkVerified,
    ClaimReceived,
    FailureReason,
    HandoutReceived,
    PeerConnected,
    TimerFired,
    TransferFailed,
    TransferNearEnd,
    UploadFinished,
    VersionRemoved,
)
from swarm.protocol.ids import Address, ChunkIndex, NodeId, SessionId
from swarm.protocol.messages import PeerInfo, RefuseReason
from tests.support.story import (
    CHUNK_BYTES,
    OTHER_VERSION,
    VERSION,
    Story,
    default_settings,
    haves,
    only_request,
    peer_id,
    picture,
    requests,
)

SETTINGS = replace(default_settings(), rack="r1")


class RackStory(Story):
    """A node of rack r1, and the few words of a rack."""

    @classmethod
    def among(cls, text: str) -> RackStory:
        """Linked as in the picture, in its order; the version was there before."""
        rows = picture(text)
        story = cls(rows.pop("me"), SETTINGS)
        for name, row in rows.items():
            story.meet(name, row)
        return story

    def meet(self, name: str, row: str) -> list[Command]:
        return self.link(name, row, rack="r1" if name.islower() else "r2")

    def claims(self, name: str, chunk: int, *, at: float | None = None) -> list[Command]:
        return self.tell(ClaimReceived(peer_id(name), VERSION, ChunkIndex(chunk)), at=at)

    def ask(self, name: str, chunk: int) -> list[Command]:
        event = ChunkRequested(peer_id(name), SessionId(1), VERSION, ChunkIndex(chunk))
        return self.tell(event)

    def sent(self, name: str, chunk: int) -> list[Command]:
        event = UploadFinished(peer_id(name), SessionId(1), ChunkIndex(chunk), CHUNK_BYTES)
        return self.tell(event)


def claimed(commands: list[Command]) -> list[tuple[NodeId, int]]:
    return [(command.peer, command.chunk) for command in commands if isinstance(command, SendClaim)]


def from_outside(commands: list[Command]) -> list[RequestChunk]:
    return [request for request in requests(commands) if request.peer.isupper()]


# -- what is fetched where


def test_sessions_go_to_mates_and_one_import_outside() -> None:
    story = RackStory.among("""
        me  ......
        a   ###...
        b   ###...
        c   ###...
    """)
    commands = story.meet("X", "######")
    request = only_request(commands)
    assert request.peer == peer_id("X")
    assert request.chunk >= 3, "a mate holds it"
    assert claimed(commands) == [(peer_id(mate), request.chunk) for mate in "abc"]
    sessions = story.node.statistics().session_count
    assert sessions == 2, "the import takes none of the two"


def test_nothing_that_a_mate_holds_is_imported() -> None:
    story = RackStory.among("""
        me  ....
        a   ####
        b   ....
        c   ....
    """)
    assert requests(story.meet("X", "####")) == []


def test_a_rack_without_mates_here_is_no_rack() -> None:
    story = RackStory.among("me ....")
    commands = story.meet("X", "####")
    assert [request.peer for request in requests(commands)] == [peer_id("X")] * 2
    assert claimed(commands) == []


def test_racks_of_two_zones_may_have_the_same_name() -> None:
    story = Story("....", SETTINGS)
    assert len(requests(story.link("a", "####", zone="z2", rack="r1"))) == 2
    assert story.node.statistics().session_count == 2


def test_mates_that_serve_something_else_do_not_count() -> None:
    story = RackStory("....", SETTINGS)
    story.meet("a", "....")
    story.tell(ChunksRetracted(peer_id("a"), VERSION, 0))
    assert len(requests(story.meet("X", "####"))) == 2


def test_a_session_outside_ends_when_a_mate_appears() -> None:
    story = RackStory.among("me ....")
    first, _ = requests(story.meet("X", "####"))
    story.meet("a", "####")
    assert requests(story.tell(TransferNearEnd(first.transfer), at=0.9)) == []
    commands = story.verify(first, at=1.0)
    assert only_request(commands).peer == peer_id("a")


def test_the_rarest_is_counted_within_the_rack() -> None:
    """Chunk 1 is common outside and has one holder here; chunk 2 has two and no other."""
    story = RackStory.among("""
        me  .....
        a   .....
        b   ...##
        c   .....
    """)
    first, _ = _live(story)
    story.claims("c", 1)
    for name in "XYZ":
        assert requests(story.meet(name, ".#...")) == []
    story.haves("a", ".##..")
    story.haves("c", "..#..", load=2)
    request = only_request(story.verify(first, at=2.0))
    assert (request.peer, request.chunk) == (peer_id("a"), 1)


@pytest.mark.parametrize(("mates", "imports"), [("a", 3), ("ab", 2), ("abc", 1), ("abcdefg", 1)])
def test_nodes_of_small_racks_import_more_at_once(mates: str, imports: int) -> None:
    story = RackStory("." * 12, SETTINGS)
    for mate in mates:
        story.meet(mate, "")
    assert len(from_outside(story.meet("X", "#" * 12))) == imports


def test_an_import_is_followed_by_the_next() -> None:
    story = RackStory.among("""
        me  ...
        a   ...
        b   ...
        c   ...
    """)
    first = only_request(story.meet("X", "###"))
    assert requests(story.tell(TransferNearEnd(first.transfer), at=3.9)) == []
    commands = story.verify(first, at=4.0)
    second = only_request(commands)
    assert second.chunk != first.chunk
    assert claimed(commands) == [(peer_id(mate), second.chunk) for mate in "abc"]
    assert second.session != first.session


def test_a_refused_import_is_asked_for_elsewhere() -> None:
    story = RackStory.among("""
        me  .
        a   .
        b   .
        c   .
    """)
    first = only_request(story.meet("X", "#"))
    story.meet("Y", "#")
    busy = TransferFailed(first.transfer, FailureReason.REFUSED, RefuseReason.BUSY, 9)
    assert only_request(story.tell(busy, at=0.1)).peer == peer_id("Y")


# -- claims


FOUR = """
    me  ...
    a   ...
    b   ...
    c   ...
"""


def test_what_mates_claim_is_left_to_them() -> None:
    story = RackStory.among(FOUR)
    story.claims("a", 0)
    story.claims("b", 2)
    assert only_request(story.meet("X", "###")).chunk == 1


def test_all_claimed_means_wait_until_a_claim_is_old() -> None:
    story = RackStory.among(FOUR)
    for mate, chunk in (("a", 0), ("b", 1), ("c", 2)):
        story.claims(mate, chunk, at=0.1 * chunk)
    assert requests(story.meet("X", "###")) == []
    assert requests(story.tell(TimerFired(), at=29.9)) == []
    assert story.node.next_deadline() == pytest.approx(30.0), "thirty chunk times"
    assert only_request(story.tell(TimerFired(), at=30.0)).chunk == 0
    assert requests(story.tell(TimerFired(), at=30.2)) == [], "one import at a time"


def test_where_imports_take_long_claims_last_longer() -> None:
    story = RackStory.among(FOUR)
    story.verify(only_request(story.meet("X", "#..")), at=20.0)
    story.claims("a", 1)
    assert requests(story.haves("X", ".#.", at=79.0)) == []
    assert only_request(story.tell(TimerFired(), at=80.0)).chunk == 1


def test_a_chunk_that_has_come_is_fetched_from_its_importer() -> None:
    story = RackStory.among(FOUR)
    story.claims("a", 0)
    assert requests(story.meet("X", "#..")) == []
    assert only_request(story.haves("a", "#..", at=2.0)).peer == peer_id("a")


def test_a_lost_mate_claims_nothing() -> None:
    story = RackStory.among(FOUR)
    story.claims("a", 0)
    story.meet("X", "#..")
    commands = story.lose("a")
    assert only_request(commands).peer == peer_id("X")
    assert claimed(commands) == [(peer_id(mate), 0) for mate in "bc"]


def test_what_the_last_holder_here_lost_is_imported_again() -> None:
    story = RackStory.among(FOUR)
    first = only_request(story.haves("a", "#.."))
    story.meet("X", "#..")
    refused = TransferFailed(first.transfer, FailureReason.REFUSED, RefuseReason.NOT_HELD, 0)
    commands = story.tell(refused)
    assert only_request(commands).peer == peer_id("X")
    assert claimed(commands) == [(peer_id(mate), 0) for mate in "abc"]


def test_a_newer_claim_ends_the_oldest_of_the_same_mate() -> None:
    """As many as it has imports: one, in a rack of four."""
    story = RackStory.among(FOUR)
    story.claims("a", 0)
    story.claims("a", 1)
    story.claims("b", 2)
    assert only_request(story.meet("X", "###")).chunk == 0


def test_claims_of_others_and_of_no_chunk_are_nothing() -> None:
    story = RackStory.among(FOUR)
    story.meet("Y", "")
    story.claims("Y", 0)
    story.claims("Q", 0)
    story.claims("a", 3)
    story.tell(ClaimReceived(peer_id("a"), OTHER_VERSION, ChunkIndex(0)))
    assert only_request(story.meet("X", "#..")).chunk == 0


def test_a_removed_version_has_no_claims() -> None:
    story = RackStory.among(FOUR)
    story.claims("a", 0)
    story.tell(VersionRemoved(VERSION))
    story.add("...")
    assert only_request(story.meet("X", "#..")).chunk == 0


def test_a_rack_imports_sixteen_at_once() -> None:
    mates = "abcdefghijklmnopq"
    story = RackStory("." * 20, SETTINGS)
    for mate in mates:
        story.meet(mate, "")
    for chunk, mate in enumerate(mates[:16]):
        story.claims(mate, chunk)
    assert requests(story.meet("X", "#" * 20)) == []
    commands = story.haves("a", "#", at=1.0)
    assert [request.peer for request in from_outside(commands)] == [peer_id("X")]


# -- slow mates and endings


def test_a_slow_mate_is_no_holder_where_others_can_be_asked() -> None:
    """It is cut, and the chunk is imported instead."""
    story = RackStory.among("""
        me  .
        a   #
        b   .
        c   .
    """)
    (slow,) = _live(story)
    story.meet("X", "#")
    commands = story.sample((slow.transfer, CHUNK_BYTES // 50), at=5.0)
    assert slow.transfer in {getattr(command, "transfer", None) for command in commands}
    commands = story.tell(TransferFailed(slow.transfer, FailureReason.CANCELLED), at=5.01)
    assert only_request(commands).peer == peer_id("X")
    assert len(claimed(commands)) == 3


def test_the_last_chunk_is_asked_for_twice_within_the_rack_only() -> None:
    story = RackStory.among("""
        me  #.
        a   ##
        b   #.
        c   #.
    """)
    (slow,) = _live(story)
    story.meet("X", "##")
    story.sample((slow.transfer, CHUNK_BYTES * 4 // 10), at=4.0)
    assert requests(story.tell(TimerFired(), at=4.0)) == []
    commands = story.haves("b", ".#", at=4.1)
    assert only_request(commands).peer == peer_id("b")


# -- what is told


def test_mates_hear_of_an_import_at_once_however_common_it_is_outside() -> None:
    story = RackStory.among("""
        me  ..
        a   ..
        U   ##
        V   ##
        W   ##
        X   ##
        Y   ##
    """)
    first, second = _live(story)
    assert len(haves(story.verify(first, at=4.0))) == 1
    assert haves(story.verify(second, at=4.001)) == []
    assert story.node.next_deadline() == pytest.approx(4.01)
    assert [have.peer for have in haves(story.tell(TimerFired(), at=4.01))] == [peer_id("a")]


def _live(story: Story) -> list[RequestChunk]:
    """Every request that the story has seen."""
    return [
        command
        for _, _, commands in story.node.story()
        for command in commands
        if isinstance(command, RequestChunk)
    ]


# -- uploads


def served(commands: list[Command]) -> list[NodeId]:
    return [command.peer for command in commands if isinstance(command, StartUpload)]


def refused(commands: list[Command]) -> list[RefuseReason]:
    return [command.reason for command in commands if isinstance(command, RefuseRequest)]


FIVE = """
    me  ####
    a   ....
    b   ....
    c   ....
    d   ....
    W   ....
    X   ....
    Y   ....
    Z   ....
"""


def test_two_outsiders_are_served_beside_mates() -> None:
    story = RackStory.among(FIVE)
    assert served(story.ask("a", 0) + story.ask("b", 0)) == [peer_id("a"), peer_id("b")]
    assert served(story.ask("X", 0) + story.ask("Y", 0)) == [peer_id("X"), peer_id("Y")]


def test_each_side_has_a_place_in_the_queue() -> None:
    story = RackStory.among(FIVE)
    for name in "abXY":
        story.ask(name, 0)
    assert story.ask("c", 0) == []
    assert story.ask("Z", 0) == []
    assert refused(story.ask("d", 0) + story.ask("W", 0)) == [RefuseReason.BUSY] * 2
    assert served(story.sent("X", 0)) == [peer_id("Z")]
    assert served(story.sent("a", 0)) == [peer_id("c")]


def test_outsiders_get_what_mates_leave_and_mates_their_own() -> None:
    story = RackStory.among(FIVE)
    for name in "WXYZ":
        assert served(story.ask(name, 0)) == [peer_id(name)]
    assert story.ask("a", 0) == [], "all four are taken"
    assert served(story.sent("W", 0)) == [peer_id("a")]


def test_a_session_of_a_mate_yields_to_a_mate_only() -> None:
    story = RackStory.among(FIVE)
    for name in "abXYZ":
        story.ask(name, 0)
    story.ask("a", 1)
    assert served(story.sent("a", 0)) == [peer_id("a")], "the queued outsider waits for its own"
    story.ask("a", 2)
    story.ask("c", 0)
    commands = story.sent("a", 1)
    assert served(commands) == [peer_id("c")]
    assert refused(commands) == [RefuseReason.YIELDED]


def loads(story: RackStory) -> dict[str, int]:
    """What a mate and an outsider that come now are told."""
    told = {}
    for name in "kK":
        for command in story.meet(name, "...."):
            if isinstance(command, SendBitfield):
                told[name] = command.load
        story.lose(name)
    return told


def test_each_side_is_told_the_load_in_its_own_terms() -> None:
    """Two slots and a place in the queue: three means busy."""
    story = RackStory.among(FIVE)
    assert loads(story) == {"k": 0, "K": 0}
    story.ask("a", 0)
    story.ask("b", 0)
    assert loads(story) == {"k": 2, "K": 0}
    story.ask("X", 0)
    assert loads(story) == {"k": 2, "K": 1}
    story.ask("Y", 0)
    assert loads(story) == {"k": 2, "K": 2}
    story.ask("Z", 0)
    assert loads(story) == {"k": 2, "K": 3}
    story.ask("c", 0)
    assert loads(story) == {"k": 3, "K": 3}


def test_haves_tell_each_side_the_load_in_its_own_terms() -> None:
    story = RackStory.among("""
        me  ###.
        a   ....
        b   ....
        X   ....
    """)
    for name in "abX":
        story.ask(name, 0)
    told = haves(story.tell(ChunkVerified(VERSION, ChunkIndex(3), None)))
    assert {have.peer: have.load for have in told} == {
        peer_id("a"): 2,
        peer_id("b"): 2,
        peer_id("X"): 1,
    }


def test_alone_with_outsiders_nothing_is_reserved() -> None:
    story = RackStory("####", SETTINGS)
    for name in "WXYZ":
        story.meet(name, "....")
    assert served(story.ask("W", 0) + story.ask("X", 0)) == [peer_id("W"), peer_id("X")]
    assert story.ask("Y", 0) == []
    assert refused(story.ask("Z", 0)) == [RefuseReason.BUSY]


def test_who_waits_is_served_when_the_rack_is_gone() -> None:
    story = RackStory.among(FIVE)
    for name in "abXYZc":
        story.ask(name, 0)
    for name in "abcd":
        story.lose(name)
    assert story.node.statistics().upload_count == 3
    assert served(story.ask("W", 0) + story.sent("X", 0)) == []
    assert served(story.sent("Y", 0)) == [peer_id("W")]


# -- whom to know


def many(count: int, *, rack: str, first: int = 0) -> tuple[PeerInfo, ...]:
    """Agents whose ids are above ours, so that they are dialled at once."""
    return tuple(
        PeerInfo(
            NodeId(b"Z" + index.to_bytes(15, "big")), 1, Address("10.1.0.1", index + 1), "", rack
        )
        for index in range(first, first + count)
    )


def dialled(commands: list[Command]) -> list[PeerInfo]:
    return [command.peer for command in commands if isinstance(command, ConnectPeer)]


def linked(story: Story, *peers: PeerInfo, is_outgoing: bool = True) -> list[Command]:
    commands = []
    for peer in peers:
        commands += story.tell(PeerConnected(peer, 0, is_outgoing=is_outgoing, rtt_s=0.001))
    return commands


def test_all_mates_are_dialled_first_and_two_others() -> None:
    story = Story("....", SETTINGS)
    others, mates = many(60, rack="r2"), many(15, rack="r1", first=100)
    dials = dialled(story.tell(HandoutReceived(VERSION, others + mates)))
    assert set(dials[:15]) == set(mates)
    assert len(dials) == 16, "no more are under way at once"
    dials += dialled(linked(story, *dials))
    assert len(dials) == 17
    assert dialled(linked(story, dials[-1])) == []


def test_in_a_rack_of_two_more_others_are_known() -> None:
    story = Story("....", SETTINGS)
    others, mates = many(60, rack="r2"), many(1, rack="r1", first=100)
    dials = dialled(story.tell(HandoutReceived(VERSION, others + mates)))
    assert len(dials) == 1 + 7


def test_mates_have_places_of_their_own() -> None:
    story = Story("....", SETTINGS)
    commands = linked(story, *many(50, rack="r2"), is_outgoing=False)
    assert sum(isinstance(command, DisconnectPeer) for command in commands) == 2
    commands = linked(story, *many(41, rack="r1", first=100), is_outgoing=False)
    assert sum(isinstance(command, DisconnectPeer) for command in commands) == 1


def test_a_mate_is_never_let_go_as_useless() -> None:
    story = Story("....", SETTINGS)
    mates, others = many(3, rack="r1"), many(40, rack="r2", first=100)
    story.tell(HandoutReceived(VERSION, mates + others))
    linked(story, *mates)
    commands: list[Command] = []
    for tick in range(1, 10):
        commands += story.tell(TimerFired(), at=5.0 * tick)
    gone = {command.peer for command in commands if isinstance(command, DisconnectPeer)}
    assert not gone & {mate.node_id for mate in mates}
