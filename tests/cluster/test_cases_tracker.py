"""A tracker that dies, restarts, or is not there at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from swarm.agent.accounting import Source
from tests.support.fault_proxy import Fault
from tests.support.fleet import Fleet
from tests.support.models import M1, M8, write_model

pytestmark = pytest.mark.cluster

CHANNEL = "production"


def bytes_held(fleet: Fleet) -> int:
    return sum(
        account.verified_bytes
        for node in fleet.nodes
        for account in node.running.ledger.accounts.values()
    )


async def test_a_download_goes_on_while_the_tracker_is_down(fleet: Fleet, tmp_path: Path) -> None:
    """Killed at about 30 %, back 8 s later with nothing in memory. Ten agents read an origin
    that gives each connection 150 kB/s, so that there is something left to do all the time."""
    result = await fleet.publish(write_model(tmp_path / "model", M8))
    await fleet.set_channel(CHANNEL, result.version)
    slow = Fault(target_part="/files/", rate=150e3, piece_bytes=8192)
    fleet.served.proxy.faults.append(slow)
    nodes = await fleet.start(10, channels=(CHANNEL,))
    total = len(nodes) * result.unique_bytes
    await fleet.wait(lambda: bytes_held(fleet) > 0.3 * total, "30 %", timeout_s=60)

    fleet.tracker.kill()
    before = bytes_held(fleet)
    for _ in range(2):
        await trio.sleep(4.0)
        after = bytes_held(fleet)
        assert after > before or after == total, "4 s without a byte while the tracker is down"
        before = after
    await fleet.start_tracker()
    back_at = trio.current_time()
    client = fleet.operator()

    async def all_are_back() -> bool:
        return len(await client.peers(result.version.hex())) == len(nodes)

    await fleet.wait(all_are_back, "all agents are known again", timeout_s=20)
    await client.aclose()
    await fleet.wait_ready(nodes, result.version, timeout_s=60)
    assert trio.current_time() - back_at < 60
    documents = fleet.served.directory / "versions" / result.version.hex()
    document_bytes = sum(path.stat().st_size for path in documents.iterdir())
    sent = fleet.served.proxy.body_bytes_sent - len(nodes) * document_bytes
    assert sent <= 1.10 * result.unique_bytes


async def test_a_cached_version_serves_without_a_tracker(
    fleet: Fleet, tmp_path: Path, silent_url: str
) -> None:
    """From the channel's last link, told apart from what the tracker confirmed."""
    result = await fleet.publish(write_model(tmp_path / "model", M1))
    await fleet.set_channel(CHANNEL, result.version)
    (node,) = await fleet.start(1, channels=(CHANNEL,))
    await fleet.wait_ready([node], result.version)
    link = node.cache / "channels" / CHANNEL
    await fleet.wait(link.is_symlink, "the channel is linked")
    await node.stop()
    fleet.tracker.kill()
    seen = len(fleet.served.proxy.requests)
    for url in (fleet.tracker_url, "http://no-such-host.invalid:9", silent_url):
        node.change(trackers=(url,))
        await node.start()
        waited_s = await fleet.wait(
            lambda: node.is_ready(result.version) and node.reasons() == "", f"ready without {url}"
        )
        assert waited_s < 5
        assert not node.running.follower.is_confirmed(CHANNEL)
        assert link.resolve() == node.directory(result.version).resolve()
        await node.stop()
    assert len(fleet.served.proxy.requests) == seen

    await fleet.start_tracker()
    node.change(trackers=(fleet.tracker_url,))
    await node.start()
    await fleet.wait(lambda: node.running.follower.is_confirmed(CHANNEL), "confirmed")


@pytest.mark.parametrize("kind", ["refused", "no name", "silent"])
async def test_without_tracker_and_cache_the_origin_is_read(
    fleet_alone: Fleet, tmp_path: Path, silent_url: str, kind: str
) -> None:
    """By the version's id; each node reads one copy at most."""
    fleet = fleet_alone
    result = await fleet.publish(write_model(tmp_path / "model", M1))
    url = {"refused": fleet.tracker_url, "no name": "http://no-such-host.invalid:9"}
    (node,) = await fleet.start(
        1, versions=(result.version.hex(),), trackers=(url.get(kind, silent_url),)
    )
    waited_s = await fleet.wait_ready([node], result.version, timeout_s=30)
    assert waited_s < 20
    assert node.received(result.version, Source.ORIGIN) == result.unique_bytes
    documents = fleet.served.directory / "versions" / result.version.hex()
    document_bytes = sum(path.stat().st_size for path in documents.iterdir())
    assert fleet.served.proxy.body_bytes_sent <= 1.05 * result.unique_bytes + document_bytes


async def test_names_wait_for_the_tracker_and_say_so(fleet_alone: Fleet, tmp_path: Path) -> None:
    """What only the tracker knows is waited for, by an agent that is not ready; it needs
    no restart when the tracker comes, nor when the version is published after that."""
    fleet = fleet_alone
    model = write_model(tmp_path / "model", M1)
    (node,) = await fleet.start(1, versions=("model@v1",), channels=(CHANNEL,))
    await trio.sleep(1.0)
    reasons = node.reasons()
    assert "model@v1" in reasons, reasons
    assert CHANNEL in reasons, reasons

    await fleet.start_tracker()
    await trio.sleep(1.0)
    assert "model@v1" in node.reasons()
    result = await fleet.publish(model)
    await fleet.set_channel(CHANNEL, result.version)
    await fleet.wait_ready([node], result.version, timeout_s=15)
    await fleet.wait(lambda: node.reasons() == "", "nothing is waited for")


async def test_an_id_that_nobody_has_is_waited_for(fleet: Fleet, tmp_path: Path) -> None:
    """An agent that starts before the publisher has finished needs no restart."""
    model = write_model(tmp_path / "model", M1)
    result = await fleet.publish(model)
    published = list(fleet.served.directory.iterdir())
    hidden = tmp_path / "origin-hidden"
    hidden.mkdir()
    for path in published:
        path.rename(hidden / path.name)
    unknown = os.urandom(32).hex()
    (node,) = await fleet.start(1, versions=(result.version.hex(), unknown), trackers=())
    await fleet.wait(lambda: unknown[:12] in node.reasons(), "the unknown version is named")
    await fleet.wait(lambda: "manifest" in node.reasons(), "and what is missing")
    for path in published:
        (hidden / path.name).rename(path)
    await fleet.wait_ready([node], result.version, timeout_s=20)
    assert unknown[:12] in node.reasons()
