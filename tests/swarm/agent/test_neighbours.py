"""Control links: who connects to whom, what is said, and how it ends."""

from __future__ import annotations

import dataclasses
import random
import socket

import pytest
import trio

from swarm.agent.frame_stream import LinkClosedError
from swarm.agent.network_settings import NetworkSettings
from swarm.policy import commands as order
from swarm.policy.events import (
    BadChunkReported,
    BitfieldReceived,
    ChunkRequested,
    ChunksRetracted,
    ChunkVerified,
    ClaimReceived,
    ConnectFailed,
    HavesReceived,
    PeerConnected,
    PeerLost,
)
from swarm.protocol.ids import Address, ChunkIndex, VersionId
from swarm.protocol.messages import PeerInfo, RejectReason
from tests.support.fake_peer import fake_peer
from tests.support.peers import PolicylessPeer, connect, node_id, peer
from tests.support.versions import make_version, small_version

UNKNOWN = VersionId(b"u" * 32)


def ask(opener: PolicylessPeer, target: PeerInfo) -> None:
    opener.network.execute(order.ConnectPeer(target))


async def test_both_sides_hear_of_a_link() -> None:
    async with (
        peer("a", settings=NetworkSettings(zone="z1", nic_bytes_per_s=7)) as a,
        peer("b") as b,
    ):
        ask(b, a.info)
        outgoing = await b.wait_for(PeerConnected)
        incoming = await a.wait_for(PeerConnected)
        assert outgoing.is_outgoing
        assert not incoming.is_outgoing
        assert outgoing.peer == dataclasses.replace(a.info, zone="z1")
        assert incoming.peer == b.info
        assert outgoing.nic_bytes_per_s == 7
        assert outgoing.rtt_s > 0


async def test_announcements_arrive_as_bit_sets() -> None:
    version = small_version()
    name = version.manifest.version
    async with peer("a", version) as a, peer("b", version) as b:
        await connect(a, b)
        many = sum(1 << chunk for chunk in range(0, 200, 3))
        for command in (
            order.SendBitfield(b.node_id, name, 0b101, 2),
            order.SendHave(b.node_id, name, 0b10, 3),
            order.SendHave(b.node_id, UNKNOWN, many, 3),
            order.SendRetract(b.node_id, name, 0b100),
            order.SendClaim(b.node_id, name, ChunkIndex(4)),
            order.SendBadChunk(b.node_id, name, ChunkIndex(5)),
        ):
            a.network.execute(command)
        assert await b.wait_for(BitfieldReceived) == BitfieldReceived(a.node_id, name, 0b101, 2)
        assert await b.wait_for(HavesReceived) == HavesReceived(a.node_id, name, 0b10, 3)
        assert await b.wait_for(HavesReceived) == HavesReceived(a.node_id, UNKNOWN, many, 3)
        assert await b.wait_for(ChunksRetracted) == ChunksRetracted(a.node_id, name, 0b100)
        assert await b.wait_for(ClaimReceived) == ClaimReceived(a.node_id, name, ChunkIndex(4))
        assert await b.wait_for(BadChunkReported) == BadChunkReported(
            a.node_id, name, ChunkIndex(5)
        )


async def test_announcements_longer_than_the_socket_takes_arrive_in_order() -> None:
    version = small_version()
    name = version.manifest.version
    every = (1 << 30_000) - 1
    async with peer("a", version) as a, peer("b", version) as b:
        await connect(a, b)
        for load in range(12):
            a.network.execute(order.SendHave(b.node_id, name, every, load))
        loads = [(await b.wait_for(HavesReceived)).load for _ in range(12)]
        assert loads == list(range(12))


async def test_three_agents_behind_one_address_are_three_peers() -> None:
    async with peer("a") as a, peer("b") as b, peer("c") as c:
        for opener, target in ((a, b), (b, c), (c, a)):
            await connect(opener, target)
        assert [each.network.open_links()[0] for each in (a, b, c)] == [2, 2, 2]


async def test_agent_that_meets_itself_is_no_peer() -> None:
    """Under its own address, but with another's name, as a stale handout has it."""
    async with peer("a") as a:
        ask(a, dataclasses.replace(a.info, node_id=node_id("b")))
        failed = await a.wait_for(ConnectFailed)
        assert failed.peer == node_id("b")
        assert a.network.open_links() == (0, 0, 0)
        assert a.network.desk.rejections[RejectReason.SELF] == 2


async def test_address_of_someone_else_counts_as_unreachable() -> None:
    async with peer("a") as a, peer("b") as b:
        ask(a, dataclasses.replace(b.info, node_id=node_id("gone")))
        assert await a.wait_for(ConnectFailed) == ConnectFailed(node_id("gone"), True)
        assert b.count(PeerConnected) == 0


async def test_other_cluster_is_refused_and_counted() -> None:
    async with peer("a") as a, peer("b", key=b"k" * 32) as b:
        ask(a, b.info)
        assert await a.wait_for(ConnectFailed) == ConnectFailed(b.node_id, False)
        assert a.network.desk.rejections[RejectReason.WRONG_KEY] == 1


async def test_nobody_there_is_unreachable() -> None:
    async with peer("a") as a:
        ask(a, PeerInfo(node_id("b"), 1, Address("127.0.0.1", 1)))
        assert await a.wait_for(ConnectFailed) == ConnectFailed(node_id("b"), True)


async def test_silent_addresses_are_given_up_together() -> None:
    """Twenty that accept and say nothing cost one time-out, not twenty."""
    settings = NetworkSettings(handshake_timeout_s=0.2)
    silent = socket.create_server(("127.0.0.1", 0), backlog=64)
    host, port = silent.getsockname()
    async with peer("a", settings=settings) as a, peer("good") as good:
        started_at = trio.current_time()
        for number in range(20):
            ask(a, PeerInfo(node_id(f"dead{number}"), 1, Address(host, port)))
        ask(a, good.info)
        await a.wait_for(PeerConnected)
        for _ in range(20):
            assert (await a.wait_for(ConnectFailed)).is_unreachable
        assert trio.current_time() - started_at < 1.0
    silent.close()


async def test_asking_twice_makes_one_link() -> None:
    async with peer("a") as a, peer("b") as b:
        ask(a, b.info)
        ask(a, b.info)
        await connect(a, b)
        assert a.network.open_links()[0] == 1
        assert a.count(ConnectFailed) == 0


@pytest.mark.parametrize("_", range(5))
async def test_dialling_each_other_leaves_the_same_one_link(_: int) -> None:
    async with peer("a") as a, peer("b") as b:
        ask(a, b.info)
        ask(b, a.info)
        await _settle(a, b)
        for each, other in ((a, b), (b, a)):
            assert each.network.open_links()[0] == 1
            assert each.count(PeerConnected) - each.count(PeerLost) == 1
            each.network.execute(order.SendHave(other.node_id, UNKNOWN, 1, 0))
        await a.wait_for(HavesReceived)
        await b.wait_for(HavesReceived)


async def _settle(*peers: PolicylessPeer) -> None:
    """Until nothing has happened for a while."""
    before = -1
    while (now := sum(len(each.events) for each in peers)) != before or now == 0:
        before = now
        await trio.sleep(0.05)


async def test_agent_that_started_anew_replaces_its_old_link() -> None:
    async with peer("a") as a, peer("b", generation=1) as old:
        await connect(old, a)
        async with peer("b", generation=2) as new:
            ask(new, a.info)
            await new.wait_for(PeerConnected)
            assert (await a.wait_for(PeerLost)).peer == new.node_id
            assert (await a.wait_for(PeerConnected)).peer.generation == 2
            assert a.network.open_links()[0] == 1


async def test_predecessor_of_a_proven_generation_is_stale() -> None:
    async with peer("a") as a:
        async with peer("b", generation=5) as new:
            await connect(new, a)
        async with peer("b", generation=4) as old:
            ask(old, a.info)
            await old.wait_for(ConnectFailed)
        assert a.network.desk.rejections[RejectReason.STALE_GENERATION] == 1


async def test_disconnecting_is_clean_on_both_sides() -> None:
    async with peer("a") as a, peer("b") as b:
        await connect(a, b)
        a.network.execute(order.DisconnectPeer(b.node_id, "no use"))
        assert await a.wait_for(PeerLost) == PeerLost(b.node_id, True)
        assert await b.wait_for(PeerLost) == PeerLost(a.node_id, True)


async def test_leaving_says_bye_and_accepts_nobody() -> None:
    async with peer("a") as a, peer("b") as b:
        await connect(a, b)
        await a.network.close(0.0)
        assert (await b.wait_for(PeerLost)).is_clean


async def test_leaving_agent_turns_newcomers_away_while_a_chunk_is_in_flight() -> None:
    version = make_version({"a": random.Random(1).randbytes(1 << 20)}, chunk_bytes=1 << 20)
    slow = NetworkSettings(uplink_bytes_per_s=2 << 20)
    async with (
        peer("seed", version, holds=None, settings=slow) as seed,
        peer("fetcher", version) as fetcher,
        peer("late") as late,
        trio.open_nursery() as nursery,
    ):
        await connect(fetcher, seed)
        fetcher.request(seed, version.manifest.version, 0, transfer=1)
        await seed.wait_for(ChunkRequested)
        nursery.start_soon(seed.network.close, 5.0)
        await fetcher.wait_for(PeerLost)
        ask(late, seed.info)
        assert await late.wait_for(ConnectFailed) == ConnectFailed(seed.node_id, False)
        assert late.network.desk.rejections[RejectReason.LEAVING] == 1
        await fetcher.wait_for(ChunkVerified)


async def test_agent_that_dies_is_lost_without_a_bye() -> None:
    async with peer("a") as a:
        async with peer("b") as b:
            await connect(a, b)
        assert await a.wait_for(PeerLost) == PeerLost(node_id("b"), False)


async def test_silent_neighbour_is_dropped_and_no_task_stays() -> None:
    """It reads nothing and answers no ping, without closing."""
    settings = NetworkSettings(ping_interval_s=0.03, tick_s=0.01)

    async def never(_: object, __: object) -> None:
        return

    async with fake_peer("mute", never) as mute, peer("a", settings=settings) as a:
        tasks = trio.lowlevel.current_statistics().tasks_living
        ask(a, mute.info)
        await a.wait_for(PeerConnected)
        assert await a.wait_for(PeerLost) == PeerLost(mute.info.node_id, False)
        mute_tasks = 1  # The fake peer's own task for the connection may still be there.
        await trio.sleep(0.02)
        assert trio.lowlevel.current_statistics().tasks_living <= tasks + mute_tasks


async def test_pings_keep_an_idle_link() -> None:
    settings = NetworkSettings(ping_interval_s=0.03, tick_s=0.01)
    async with peer("a", settings=settings) as a, peer("b", settings=settings) as b:
        await connect(a, b)
        await trio.sleep(0.3)
        assert a.count(PeerLost) == b.count(PeerLost) == 0


async def test_agents_meet_over_ipv6() -> None:
    async with peer("a", host="::1") as a, peer("b", host="::1") as b:
        await connect(a, b)
        assert a.network.open_links()[0] == 1


async def test_agent_that_listens_everywhere_is_known_by_the_address_it_came_from() -> None:
    """It cannot say its own address; its neighbours see it."""
    async with peer("a") as a, peer("b", host="0.0.0.0") as b:
        b.network.execute(order.ConnectPeer(a.info))
        met = await a.wait_for(PeerConnected)
        assert met.peer.address == Address("127.0.0.1", b.address.port)


async def test_seed_named_by_address_alone_becomes_a_neighbour() -> None:
    async def call_until_it_ends(caller: PolicylessPeer, address: Address) -> None:
        with pytest.raises(LinkClosedError):
            await caller.network.call(address)

    async with peer("a") as a, peer("b") as b, trio.open_nursery() as nursery:
        nursery.start_soon(call_until_it_ends, b, a.address)
        assert (await b.wait_for(PeerConnected)).peer == a.info
        assert (await a.wait_for(PeerConnected)).peer == b.info
        b.network.execute(order.DisconnectPeer(a.node_id, "enough"))
        assert (await b.wait_for(PeerLost)).is_clean


async def test_neighbours_name_other_agents() -> None:
    async with peer("a") as a, peer("b") as b, peer("c") as c:
        await connect(a, b)
        a.network.send_peers(b.node_id, (c.info, a.info))
        with trio.fail_after(5):
            # The list has no event to wait for, and a test needs none to be added.
            while not b.named:  # noqa: ASYNC110
                await trio.sleep(0.001)
        assert b.named == [c.info, a.info]
