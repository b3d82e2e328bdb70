"""What peers do to each other.

Links, handshakes and single transfers are tested with `tests/swarm/agent`; here whole agents with
caches, a tracker and an origin have to get through it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from swarm.agent.accounting import Source
from swarm.agent.tracker_client import TrackerClient
from swarm.errors import StalledError
from swarm.protocol.ids import Address, Identity, NodeId
from swarm.protocol.tracker_api import Report, VersionReport
from swarm.publish.record import PublishResult
from swarm.store.disk import DiskStore
from swarm.store.readiness import is_ready
from tests.support.caches import rot, tamper
from tests.support.fleet import CHUNK_BYTES, Fleet, FleetNode
from tests.support.models import M8, shard_name, write_model

pytestmark = pytest.mark.cluster

CHANNEL = "production"


@pytest.fixture
def silent_addresses() -> Iterator[list[Address]]:
    """Nineteen addresses that answer no SYN: their queue of connections is full."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(19):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            address = listener.getsockname()
            for _ in range(3):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(address)
            found.append(Address(*address))
        yield found


async def published(fleet: Fleet, tmp_path: Path) -> PublishResult:
    result = await fleet.publish(write_model(tmp_path / "model", M8))
    await fleet.set_channel(CHANNEL, result.version)
    return result


async def pretend_whole(
    fleet: Fleet, addresses: list[Address], result: PublishResult
) -> list[NodeId]:
    """Tell the tracker of agents that hold all of a version and are not there."""
    nodes = []
    for address in addresses:
        identity = Identity(NodeId(os.urandom(16)), 1)
        client = TrackerClient([fleet.tracker_url], key=fleet.cluster_key, identity=identity)
        bits = ((1 << result.chunks) - 1).to_bytes((result.chunks + 7) // 8, "little")
        version = VersionReport(
            result.version, bits, (), (), True, result.chunks, result.chunk_bytes
        )
        report = Report(1, address, "", "", 0, (version,), (), (), (), (), "", is_leaving=False)
        await client.report(report)
        await client.aclose()
        nodes.append(identity.node_id)
    return nodes


async def test_dead_peers_cost_less_than_five_seconds(
    fleet: Fleet, tmp_path: Path, silent_addresses: list[Address]
) -> None:
    """Nineteen addresses that swallow every SYN, one good peer."""
    result = await published(fleet, tmp_path)
    (good,) = await fleet.start(1, channels=(CHANNEL,))
    await fleet.wait_ready([good], result.version)
    await pretend_whole(fleet, silent_addresses, result)

    (late,) = await fleet.start(1, channels=(CHANNEL,), origin="http://127.0.0.1:1")
    took_s = await fleet.wait_ready([late], result.version)
    assert took_s <= 5 + 1, "a second for the peer alone"
    assert late.received(result.version, Source.PEER_SAME_ZONE) == result.unique_bytes


async def test_with_all_peers_dead_the_origin_is_read(
    fleet: Fleet, tmp_path: Path, silent_addresses: list[Address]
) -> None:
    """The tracker believes in twenty holders, and nobody of them answers."""
    result = await published(fleet, tmp_path)
    await pretend_whole(fleet, silent_addresses, result)
    (late,) = await fleet.start(1, channels=(CHANNEL,))
    took_s = await fleet.wait_ready([late], result.version, timeout_s=20)
    assert took_s <= 10
    assert late.received(result.version, Source.ORIGIN) == result.unique_bytes


async def test_a_file_that_vanished_is_withdrawn_and_fetched_again(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Somebody deletes files of a ready version under its agent, while another downloads."""
    result = await published(fleet, tmp_path)
    (first,) = await fleet.start(1, channels=(CHANNEL,))
    await fleet.wait_ready([first], result.version)
    for number in range(4):
        (first.directory(result.version) / shard_name(number, 8)).unlink()

    (second,) = await fleet.start(1, channels=(CHANNEL,))
    await fleet.wait_ready([second], result.version, timeout_s=15)
    # What was asked for and is not there was noticed, announced no more, and came back.
    await fleet.wait_ready([first], result.version, timeout_s=15)
    for number in range(4):
        path = Path("versions", result.version.hex(), shard_name(number, 8))
        await fleet.wait((first.cache / path).exists, f"{path.name} is back")


async def test_an_evicted_version_can_be_fetched_again_at_once(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Evicted between two runs, while the tracker and a peer still believe in it."""
    result = await published(fleet, tmp_path)
    nodes = await fleet.start(2, channels=(CHANNEL,))
    await fleet.wait_ready(nodes, result.version)
    evicted = nodes[0]
    await evicted.stop()
    (evicted.cache / "channels" / CHANNEL).unlink()
    with DiskStore.open_cache(str(evicted.cache)) as store:
        store.evict(result.version)
    await evicted.start()
    await fleet.wait_ready([evicted], result.version, timeout_s=10)
    assert evicted.received(result.version, Source.PEER_SAME_ZONE) == result.unique_bytes


async def node_that_lacks_one_chunk(
    fleet: Fleet, result: PublishResult, **changes: object
) -> FleetNode:
    """A stopped node whose cache holds all of the version but one chunk of weights."""
    node = fleet.node(channels=(CHANNEL,))
    await node.start()
    await fleet.wait_ready([node], result.version)
    await node.stop()
    tamper(node.directory(result.version) / shard_name(3, 8), 500_000)
    node.change(**changes)
    return node


async def test_the_last_chunk_comes_from_the_origin_when_all_peers_died(
    fleet: Fleet, tmp_path: Path
) -> None:
    """The tracker still believes in the holders, who vanish without a word."""
    result = await published(fleet, tmp_path)
    node = await node_that_lacks_one_chunk(fleet, result)
    await pretend_whole(fleet, [Address("127.0.0.1", 1), Address("127.0.0.1", 2)], result)
    sent = fleet.served.proxy.body_bytes_sent
    await node.start()
    await fleet.wait_ready([node], result.version, timeout_s=15)
    assert node.received(result.version, Source.ORIGIN) == CHUNK_BYTES
    documents = fleet.served.directory / "versions" / result.version.hex()
    allowed = CHUNK_BYTES + sum(path.stat().st_size for path in documents.iterdir())
    assert fleet.served.proxy.body_bytes_sent - sent <= allowed


async def test_the_last_chunk_is_waited_for_when_nobody_has_it(
    fleet: Fleet, tmp_path: Path
) -> None:
    """With the origin down: what is missing is said, a pull gives up with it, and an agent goes
    on by itself when a peer is back."""
    result = await published(fleet, tmp_path)
    node = await node_that_lacks_one_chunk(fleet, result, origin="http://127.0.0.1:1")
    await node.start()
    await fleet.wait(lambda: result.version in node.running.shelf.held, "the version is open")
    await fleet.wait(lambda: "1 chunk(s)" in node.reasons(), "what is missing is named")
    assert not node.is_ready(result.version)
    assert not (node.cache / "channels" / CHANNEL).exists(), "a link to what is not ready"

    peer = fleet.node(channels=(CHANNEL,))
    await peer.start()
    await fleet.wait_ready([peer, node], result.version, timeout_s=20)
    link = node.cache / "channels" / CHANNEL
    await fleet.wait(link.is_symlink, "the channel is linked again")
    assert node.received(result.version, Source.PEER_SAME_ZONE) == CHUNK_BYTES


async def test_three_agents_of_one_host_know_each_other(fleet: Fleet, tmp_path: Path) -> None:
    """One address, three ports; a dead one of them harms the others in nothing."""
    result = await published(fleet, tmp_path)
    nodes = await fleet.start(3, channels=(CHANNEL,))
    await fleet.wait_ready(nodes, result.version)
    await fleet.wait(
        lambda: all(node.running.neighbour_count == 2 for node in nodes), "each knows both"
    )
    await nodes[0].stop()
    await fleet.wait(
        lambda: all(node.running.neighbour_count == 1 for node in nodes[1:]), "one left"
    )
    await nodes[0].start()
    await fleet.wait(
        lambda: all(node.running.neighbour_count == 2 for node in nodes), "it came back"
    )


async def test_a_chunk_that_rotted_is_found_out_and_repaired(fleet: Fleet, tmp_path: Path) -> None:
    """A's disk changed a bit after the version was ready. B, which has no other source for a
    while, complains once or twice; A takes the version back, repairs it and shows it again."""
    result = await published(fleet, tmp_path)
    (rotten,) = await fleet.start(1, channels=(CHANNEL,))
    await fleet.wait_ready([rotten], result.version)
    directory = rotten.directory(result.version)
    link = rotten.cache / "channels" / CHANNEL
    await fleet.wait(link.is_symlink, "the channel is linked")
    rot(directory / shard_name(5, 8), 700_000)
    was_unready = trio.Event()

    async def watch() -> None:
        await fleet.wait(lambda: not is_ready(str(directory)), "the damage is known")
        was_unready.set()

    fleet.nursery.start_soon(watch)
    (other,) = await fleet.start(1, channels=(CHANNEL,))
    await fleet.wait_ready([other], result.version, timeout_s=20)
    with trio.fail_after(5):
        await was_unready.wait()
    await fleet.wait_ready([rotten], result.version, timeout_s=20)
    await fleet.wait(link.is_symlink, "the channel is linked again")
    assert link.resolve() == directory.resolve()

    status = rotten.status(result.version)
    assert all(count >= 0 for count in status.bytes_by_source.values()), status
    assert sum(status.bytes_by_source.values()) == result.unique_bytes
    assert 0 < other.status(result.version).wasted_bytes <= 2 * CHUNK_BYTES


async def test_an_agent_that_is_told_of_itself_is_alone(fleet_alone: Fleet, tmp_path: Path) -> None:
    """As a seed, and under its other names; the origin is read as if there were no peer."""
    fleet = fleet_alone
    result = await fleet.publish(write_model(tmp_path / "model", M8))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    names = ("127.0.0.1", "127.0.0.2", "localhost")
    with trio.fail_after(20):
        status = await fleet.pull(
            result.version.hex(),
            tmp_path / "pulled",
            listen=Address("0.0.0.0", port),
            peers=tuple(Address(name, port) for name in names),
        )
    assert status.bytes_by_source[Source.ORIGIN] == result.unique_bytes


async def test_a_pull_whose_sources_are_gone_says_so(fleet: Fleet, tmp_path: Path) -> None:
    """E_STALLED, and what was waited for."""
    result = await published(fleet, tmp_path)
    with trio.fail_after(20), pytest.raises(StalledError, match=r"chunk\(s\)"):
        await fleet.pull(
            result.version.hex(),
            tmp_path / "pulled",
            trackers=(fleet.tracker_url,),
            origin="http://127.0.0.1:1",
            stall_timeout_s=2.0,
        )
