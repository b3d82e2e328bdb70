"""Stories of the neighbourhood: whom to dial, whom to let go."""

from __future__ import annotations

from dataclasses import replace

from swarm.policy.commands import (
    Command,
    ConnectPeer,
    DisconnectPeer,
    ReportUnreachable,
    SendBadChunk,
)
from swarm.policy.events import (
    BitfieldReceived,
    ConnectFailed,
    FailureReason,
    HandoutReceived,
    LeaveRequested,
    PeerConnected,
    PeerLost,
    TimerFired,
    TransferFailed,
)
from swarm.policy.settings import NodeSettings
from swarm.protocol.ids import Address, NodeId
from swarm.protocol.messages import PeerInfo
from tests.support.story import (
    ME,
    VERSION,
    Story,
    bits,
    default_settings,
    only_request,
    peer_id,
    peer_info,
    requests,
)


def many(count: int, *, zone: str = "", first: int = 0) -> tuple[PeerInfo, ...]:
    """Agents whose ids are above ours, so that they are dialled at once."""
    return tuple(
        PeerInfo(NodeId(b"Z" + index.to_bytes(15, "big")), 1, Address("10.1.0.1", index + 1), zone)
        for index in range(first, first + count)
    )


def dialled(commands: list[Command]) -> list[PeerInfo]:
    return [command.peer for command in commands if isinstance(command, ConnectPeer)]


def let_go(commands: list[Command]) -> list[NodeId]:
    return [command.peer for command in commands if isinstance(command, DisconnectPeer)]


def lost(peer: PeerInfo, *, is_clean: bool = False) -> PeerLost:
    return PeerLost(peer.node_id, is_clean)


def connect(
    story: Story, *peers: PeerInfo, is_outgoing: bool = True, row: str | None = None
) -> list[Command]:
    commands: list[Command] = []
    for peer in peers:
        commands += story.tell(PeerConnected(peer, 0, is_outgoing, 0.001))
        if row is not None:
            commands += story.tell(BitfieldReceived(peer.node_id, VERSION, bits(row), 0))
    return commands


def test_the_lower_id_dials_at_once_and_the_higher_one_holds_back() -> None:
    story = Story("....")
    assert dialled(story.know("A", "Z")) == [peer_info("Z")]
    assert story.node.next_deadline() == 0.05
    assert dialled(story.tell(TimerFired(), at=0.05)) == [peer_info("A")]


def test_a_link_that_came_in_meanwhile_is_not_dialled() -> None:
    story = Story("....")
    story.know("A")
    connect(story, peer_info("A"), is_outgoing=False)
    assert dialled(story.tell(TimerFired(), at=1.0)) == []


def test_this_node_itself_is_never_dialled() -> None:
    story = Story("....")
    assert story.tell(HandoutReceived(VERSION, (peer_info("M"),))) == []
    assert peer_info("M").node_id == ME


def test_a_small_swarm_is_a_full_mesh_dialled_a_few_at_a_time() -> None:
    story = Story("....")
    peers = many(32)
    waiting = dialled(story.tell(HandoutReceived(VERSION, peers)))
    assert len(waiting) == 16
    seen = set()
    while waiting:
        peer = waiting.pop()
        seen.add(peer.node_id)
        waiting += dialled(connect(story, peer))
    assert len(seen) == 32
    assert story.node.statistics().neighbour_count == 32


def test_in_a_large_swarm_half_the_links_are_dialled() -> None:
    story = Story("....")
    first = dialled(story.tell(HandoutReceived(VERSION, many(100))))
    assert len(first) == 8
    assert dialled(connect(story, *first)) == []
    assert dialled(connect(story, *many(8, first=200), is_outgoing=False)) == []
    assert story.node.statistics().neighbour_count == 16
    assert dialled(story.tell(HandoutReceived(VERSION, many(1, first=300)))) == []


def test_a_lost_link_is_replaced() -> None:
    story = Story("....")
    first = dialled(story.tell(HandoutReceived(VERSION, many(100))))
    connect(story, *first)
    commands = story.tell(lost(first[0]))
    assert len(dialled(commands)) == 1


def test_a_failed_dial_is_repeated_after_thirty_seconds_then_later_and_reported() -> None:
    story = Story("....")
    story.know("Z")
    failed = ConnectFailed(peer_id("Z"), is_unreachable=True)
    assert story.tell(failed, at=2.0) == [ReportUnreachable(peer_id("Z"))]
    assert story.node.next_deadline() == 32.0
    assert dialled(story.know("Z", at=20.0)) == []
    assert dialled(story.tell(TimerFired(), at=32.0)) == [peer_info("Z")]
    story.tell(failed, at=34.0)
    assert story.node.next_deadline() == 94.0
    for _ in range(8):
        story.tell(TimerFired(), at=story.node.next_deadline())
        story.tell(failed)
    deadline = story.node.next_deadline()
    assert deadline is not None
    assert deadline - story.now == 480.0


def test_a_refused_dial_is_not_reported() -> None:
    story = Story("....")
    story.know("Z")
    assert story.tell(ConnectFailed(peer_id("Z"), is_unreachable=False), at=1.0) == []
    assert story.tell(ConnectFailed(peer_id("Y"), is_unreachable=True), at=1.0) == []


def test_the_loser_of_two_dials_is_no_failure() -> None:
    story = Story("....")
    story.know("Z")
    connect(story, peer_info("Z"), is_outgoing=False)
    assert story.tell(ConnectFailed(peer_id("Z"), is_unreachable=True)) == []
    assert story.node.statistics().known_count == 1


def test_a_restarted_agent_is_dialled_at_once() -> None:
    story = Story("....")
    story.know("Z")
    story.tell(ConnectFailed(peer_id("Z"), is_unreachable=True), at=2.0)
    reborn = peer_info("Z", generation=2)
    assert dialled(story.tell(HandoutReceived(VERSION, (reborn,)), at=3.0)) == [reborn]
    old = story.tell(HandoutReceived(VERSION, (peer_info("Z", generation=1),)), at=4.0)
    assert dialled(old) == []


def test_a_broken_link_is_dialled_again_soon_and_a_closed_one_later() -> None:
    story = Story("....")
    story.link("Z")
    assert dialled(story.lose("Z")) == []
    assert story.node.next_deadline() == 0.5
    assert dialled(story.tell(TimerFired(), at=0.5)) == [peer_info("Z")]
    connect(story, peer_info("Z"))
    story.lose("Z", is_clean=True)
    assert story.node.next_deadline() == 30.5
    assert story.node.statistics().known_count == 0
    assert story.lose("Z") == []


def test_a_second_link_of_a_peer_replaces_the_first() -> None:
    story = Story("....", replace(default_settings(), session_count=1))
    request = only_request(story.link("B", "####"))
    commands = connect(story, peer_info("B"), row="####")
    assert only_request(commands).session != request.session
    assert story.node.statistics().neighbour_count == 1


def test_surplus_links_are_closed() -> None:
    story = Story("....", NodeSettings(neighbour_count=2))
    connect(story, *many(6), is_outgoing=False)
    (seventh,) = many(1, first=50)
    assert let_go(connect(story, seventh, is_outgoing=False)) == [seventh.node_id]
    assert story.tell(lost(seventh, is_clean=True)) == []
    assert story.node.statistics().neighbour_count == 6


def test_a_useless_link_makes_room_in_a_large_swarm() -> None:
    """Both sides are complete: nobody can serve the other."""
    story = Story("####")
    first = dialled(story.tell(HandoutReceived(VERSION, many(60))))
    connect(story, *first, row="####")
    commands: list[Command] = []
    for tick in range(1, 4):
        commands += story.tell(TimerFired(), at=5.0 * tick)
    assert len(let_go(commands)) >= 1
    gone = let_go(commands)[0]
    after = story.tell(lost(next(p for p in first if p.node_id == gone), is_clean=True))
    assert len(dialled(after)) == 1
    assert story.node.statistics().known_count == 60


def test_a_useful_link_is_kept() -> None:
    story = Story("##..")
    first = dialled(story.tell(HandoutReceived(VERSION, many(60))))
    connect(story, *first[:4], row="#...")
    connect(story, *first[4:], row="..##")
    for tick in range(1, 8):
        assert let_go(story.tell(TimerFired(), at=5.0 * tick)) == []


def test_useless_links_are_kept_in_a_mesh_and_where_there_is_nobody_else() -> None:
    story = Story("####")
    connect(story, *many(5), row="####")
    for tick in range(1, 5):
        assert let_go(story.tell(TimerFired(), at=5.0 * tick)) == []
    assert story.node.next_deadline() is not None
    for peer in many(5):
        story.tell(lost(peer))


def test_most_dials_go_to_the_own_zone() -> None:
    settings = replace(default_settings(), zone="a")
    handout = (*many(50, zone="b"), *many(50, zone="a", first=100))
    zones: list[str] = []
    for seed in range(10):
        story = Story("....", settings, seed=seed)
        zones += [peer.zone for peer in dialled(story.tell(HandoutReceived(VERSION, handout)))]
    assert len(zones) == 80
    assert 50 <= zones.count("a") < 80


def test_leaving_dials_nobody() -> None:
    story = Story("....")
    story.tell(LeaveRequested())
    assert dialled(story.know("Z")) == []
    assert story.link("B") == []


def test_memory_of_agents_is_bounded() -> None:
    story = Story("....")
    story.tell(HandoutReceived(VERSION, many(1200)))
    assert story.node.statistics().known_count == 1024
    failed = next(iter(dialled(story.tell(TimerFired()))), many(1)[0])
    story.tell(ConnectFailed(failed.node_id, is_unreachable=True))
    story.tell(HandoutReceived(VERSION, many(3, first=5000)))
    assert story.node.statistics().known_count <= 1024


def test_a_peer_that_sends_wrong_chunks_is_told_then_dropped_and_reported() -> None:
    story = Story("." * 20, replace(default_settings(), session_count=1))
    request = only_request(story.link("B", "#" * 20))
    commands: list[Command] = []
    for _ in range(4):
        commands = story.tell(TransferFailed(request.transfer, FailureReason.CORRUPT))
        assert commands[1] == SendBadChunk(peer_id("B"), VERSION, request.chunk)
        request = [*requests(commands), request][0]
    assert let_go(commands) == [peer_id("B")]
    assert ReportUnreachable(peer_id("B")) in commands
    story.lose("B", is_clean=True)
    assert let_go(connect(story, peer_info("B"), is_outgoing=False)) == [peer_id("B")]
    story.lose("B", is_clean=True)
    assert dialled(story.know("B", at=599.0)) == []
    assert dialled(story.tell(TimerFired(), at=600.0)) == [peer_info("B")]
    connect(story, peer_info("B"))
    assert story.node.statistics().neighbour_count == 1
