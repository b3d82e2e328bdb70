"""Stories of a serving node: two slots, one place in the queue."""

from __future__ import annotations

from swarm.policy.commands import (
    Command,
    HashAgain,
    RefuseRequest,
    SendHave,
    SendRetract,
    StartUpload,
)
from swarm.policy.events import (
    BadChunkReported,
    ChunkDamaged,
    ChunkRequested,
    LeaveRequested,
    PeerConnected,
    RequestCancelled,
    SessionClosed,
    TimerFired,
    UploadFinished,
    VersionRemoved,
)
from swarm.protocol.ids import ChunkIndex, SessionId, VersionId
from swarm.protocol.messages import RefuseReason
from tests.support.story import (
    CHUNK_BYTES,
    OTHER_VERSION,
    VERSION,
    Story,
    default_settings,
    peer_id,
    peer_info,
)


class Server(Story):
    """A node that holds everything, with the few words of a server."""

    def __init__(self, held: str = "########") -> None:
        super().__init__(held, default_settings())

    def ask(
        self, name: str, chunk: int, *, session: int = 1, version: VersionId = VERSION
    ) -> list[Command]:
        return self.tell(
            ChunkRequested(peer_id(name), SessionId(session), version, ChunkIndex(chunk))
        )

    def sent(self, name: str, chunk: int, *, session: int = 1) -> list[Command]:
        return self.tell(
            UploadFinished(peer_id(name), SessionId(session), ChunkIndex(chunk), CHUNK_BYTES)
        )

    def cancel(self, name: str, chunk: int) -> list[Command]:
        return self.tell(RequestCancelled(peer_id(name), SessionId(1), ChunkIndex(chunk)))

    def close(self, name: str) -> list[Command]:
        return self.tell(SessionClosed(peer_id(name), SessionId(1)))


def start(name: str, chunk: int) -> StartUpload:
    return StartUpload(peer_id(name), SessionId(1), VERSION, ChunkIndex(chunk))


def refuse(name: str, chunk: int, reason: RefuseReason, load: int) -> RefuseRequest:
    return RefuseRequest(peer_id(name), SessionId(1), VERSION, ChunkIndex(chunk), reason, load)


def test_slots_then_the_queue_then_a_refusal_with_the_load() -> None:
    server = Server()
    assert server.ask("B", 0) == [start("B", 0)]
    assert server.ask("C", 1) == [start("C", 1)]
    assert server.ask("D", 2) == []
    assert server.ask("E", 3) == [refuse("E", 3, RefuseReason.BUSY, 3)]
    statistics = server.node.statistics()
    assert (statistics.upload_count, statistics.load, statistics.refused_count) == (2, 3, 1)


def test_the_next_request_of_a_session_waits_with_it_and_starts_at_once() -> None:
    server = Server()
    server.ask("B", 0)
    assert server.ask("B", 1) == []
    assert server.sent("B", 0) == [start("B", 1)]
    assert server.node.statistics().upload_count == 1
    assert server.node.statistics().uploaded_bytes == CHUNK_BYTES


def test_a_queued_peer_goes_first_and_the_session_yields() -> None:
    server = Server()
    server.ask("B", 0)
    server.ask("C", 1)
    server.ask("D", 2)
    server.ask("B", 3)
    assert server.sent("B", 0) == [start("D", 2), refuse("B", 3, RefuseReason.YIELDED, 2)]


def test_a_session_without_a_waiting_request_gives_its_slot_to_the_queue() -> None:
    server = Server()
    server.ask("B", 0)
    server.ask("C", 1)
    server.ask("D", 2)
    assert server.sent("B", 0) == [start("D", 2)]
    assert server.ask("B", 3) == []
    assert server.sent("C", 1) == [start("B", 3)]


def test_an_idle_session_holds_nothing() -> None:
    server = Server()
    server.ask("B", 0)
    server.sent("B", 0)
    assert server.node.statistics().load == 0
    assert server.sent("B", 0) == []


def test_a_session_may_have_one_request_waiting() -> None:
    server = Server()
    server.ask("B", 0)
    server.ask("B", 1)
    assert server.ask("B", 2) == [refuse("B", 2, RefuseReason.BUSY, 1)]
    server.ask("C", 0)
    server.ask("D", 0)
    assert server.ask("D", 1) == [refuse("D", 1, RefuseReason.BUSY, 3)]


def test_further_stripes_of_a_request_are_no_news() -> None:
    server = Server()
    server.ask("B", 0)
    assert server.ask("B", 0) == []
    server.ask("B", 1)
    assert server.ask("B", 1) == []
    server.ask("C", 2)
    server.ask("D", 3)
    assert server.ask("D", 3) == []
    assert server.node.statistics().load == 3


def test_sessions_of_one_peer_are_apart() -> None:
    server = Server()
    server.ask("B", 0, session=1)
    server.ask("B", 1, session=2)
    assert server.node.statistics().upload_count == 2


def test_a_closed_session_frees_its_slot_for_the_queue() -> None:
    server = Server()
    server.ask("B", 0)
    server.ask("C", 1)
    server.ask("D", 2)
    assert server.close("B") == [start("D", 2)]
    assert server.close("B") == []
    server.ask("E", 3)
    assert server.close("E") == []
    assert server.node.statistics().load == 2


def test_a_request_can_be_taken_back_wherever_it_waits() -> None:
    server = Server()
    server.ask("B", 0)
    server.ask("B", 4)
    server.ask("C", 1)
    server.ask("D", 2)
    assert server.cancel("D", 7) == []
    assert server.cancel("D", 2) == []
    assert server.cancel("B", 4) == []
    assert server.node.statistics().load == 2
    assert server.cancel("B", 5) == []
    assert server.cancel("B", 0) == []
    assert server.node.statistics().load == 1
    assert server.cancel("F", 0) == []


def test_a_lost_peer_frees_all_it_had() -> None:
    server = Server()
    server.link("B")
    server.ask("B", 0, session=1)
    server.ask("B", 1, session=2)
    server.ask("C", 2)
    assert server.lose("B") == [start("C", 2)]
    server.link("C")
    server.lose("C")
    assert server.node.statistics().load == 0


def test_what_is_not_held_not_known_or_not_there_gets_one_reply() -> None:
    server = Server("##......")
    not_held = RefuseReason.NOT_HELD
    assert server.ask("B", 5) == [refuse("B", 5, not_held, 0)]
    assert server.ask("B", 99) == [refuse("B", 99, not_held, 0)]
    (reply,) = server.ask("B", 0, version=OTHER_VERSION)
    assert isinstance(reply, RefuseRequest)
    assert reply.reason is not_held


def test_leaving_finishes_what_runs_and_refuses_what_waits() -> None:
    server = Server()
    server.ask("B", 0)
    server.ask("B", 1)
    server.ask("C", 2)
    server.ask("D", 3)
    leaving = RefuseReason.LEAVING
    assert server.tell(LeaveRequested()) == [
        refuse("D", 3, leaving, 2),
        refuse("B", 1, leaving, 2),
    ]
    assert server.ask("B", 4) == [refuse("B", 4, leaving, 2)]
    assert server.sent("B", 0) == []
    assert server.sent("C", 2) == []
    assert server.node.statistics().is_leaving


def test_a_removed_version_is_not_served_any_more() -> None:
    server = Server()
    server.ask("B", 0)
    server.ask("B", 1)
    server.ask("C", 2)
    server.ask("D", 3)
    not_held = RefuseReason.NOT_HELD
    assert server.tell(VersionRemoved(VERSION)) == [
        refuse("D", 3, not_held, 2),
        refuse("B", 1, not_held, 2),
    ]
    assert server.tell(VersionRemoved(VERSION)) == []
    assert server.ask("E", 0) == [refuse("E", 0, not_held, 2)]


def test_a_doubted_chunk_is_hashed_again_and_not_served_meanwhile() -> None:
    server = Server()
    doubt = BadChunkReported(peer_id("B"), VERSION, ChunkIndex(5))
    assert server.tell(doubt) == [HashAgain(VERSION, ChunkIndex(5))]
    assert server.ask("C", 5) == [refuse("C", 5, RefuseReason.NOT_HELD, 0)]
    assert server.ask("C", 4) == [start("C", 4)]
    assert server.node.next_deadline() == 5.0
    server.tell(TimerFired(), at=5.0)
    assert server.ask("D", 5) == [start("D", 5)]


def test_a_sound_chunk_is_announced_again_to_those_who_were_refused() -> None:
    server = Server()
    server.link("B", "####.###")
    server.link("C", "########")
    server.tell(BadChunkReported(peer_id("B"), VERSION, ChunkIndex(4)))
    again = server.tell(TimerFired(), at=5.0)
    assert again == [SendHave(peer_id("B"), VERSION, 1 << 4, 0)]
    server.tell(BadChunkReported(peer_id("C"), VERSION, ChunkIndex(4)))
    server.tell(VersionRemoved(VERSION))
    assert server.tell(TimerFired(), at=10.0) == []


def test_one_peer_cannot_make_us_hash_for_ever() -> None:
    server = Server()
    doubt = BadChunkReported(peer_id("B"), VERSION, ChunkIndex(5))
    other = BadChunkReported(peer_id("C"), VERSION, ChunkIndex(5))
    server.tell(doubt)
    assert server.tell(doubt, at=30.0) == []
    assert server.ask("D", 5) == [start("D", 5)]
    assert server.tell(other) == [HashAgain(VERSION, ChunkIndex(5))]
    assert server.tell(doubt, at=61.0) == [HashAgain(VERSION, ChunkIndex(5))]
    assert server.tell(other) == []


def test_doubts_about_chunks_we_do_not_hold_are_ignored() -> None:
    server = Server("#.......")
    assert server.tell(BadChunkReported(peer_id("B"), VERSION, ChunkIndex(5))) == []
    assert server.tell(BadChunkReported(peer_id("B"), OTHER_VERSION, ChunkIndex(0))) == []


def test_doubts_are_bounded_for_each_peer() -> None:
    server = Server("#" * 300)
    hashed = [
        command
        for chunk in range(100)
        for command in server.tell(BadChunkReported(peer_id("B"), VERSION, ChunkIndex(chunk)))
    ]
    assert len(hashed) == 32
    other = BadChunkReported(peer_id("C"), VERSION, ChunkIndex(200))
    assert server.tell(other) == [HashAgain(VERSION, ChunkIndex(200))]


def test_a_doubted_or_damaged_chunk_is_refused_to_those_who_wait_for_it() -> None:
    server = Server()
    server.ask("B", 0)
    server.ask("B", 5)
    server.ask("C", 1)
    server.ask("D", 6)
    not_held = RefuseReason.NOT_HELD
    commands = server.tell(BadChunkReported(peer_id("E"), VERSION, ChunkIndex(5)))
    assert commands == [HashAgain(VERSION, ChunkIndex(5)), refuse("B", 5, not_held, 3)]
    assert server.tell(ChunkDamaged(VERSION, ChunkIndex(6))) == [refuse("D", 6, not_held, 2)]


def test_a_faster_nic_serves_the_queue() -> None:
    server = Server()
    server.ask("B", 0)
    server.ask("C", 1)
    server.ask("D", 2)
    assert start("D", 2) in server.tell(
        PeerConnected(peer_info("E"), 100_000, is_outgoing=False, rtt_s=0.001)
    )


def test_a_damaged_chunk_is_retracted_and_fetched_again() -> None:
    server = Server()
    server.link("B", "#####...")
    commands = server.tell(ChunkDamaged(VERSION, ChunkIndex(2)))
    assert commands[0] == SendRetract(peer_id("B"), VERSION, 1 << 2)
    assert [type(command).__name__ for command in commands[1:]] == ["RequestChunk"]
    assert server.node.statistics().versions[0].held_bytes == 7 * CHUNK_BYTES
    assert server.tell(ChunkDamaged(VERSION, ChunkIndex(2))) == []
    assert server.tell(ChunkDamaged(OTHER_VERSION, ChunkIndex(2))) == []
    assert not any(isinstance(command, SendHave) for command in commands)
