"""What an origin does to a fleet.

A proxy before a real range server breaks the answers and counts what leaves the origin. How one
read judges one answer is tested where it is decided (`tests/swarm/agent/test_origin_client.py`);
here whole agents have to end with whole files, or with the right error, at the right price.
"""

from __future__ import annotations

import gzip
import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from swarm.agent.accounting import Source
from swarm.agent.origin_health import LOG_INTERVAL_S
from swarm.errors import IntegrityError, NotFoundError, OriginError
from swarm.protocol.ids import VersionId
from swarm.publish.record import PublishResult
from tests.support.caches import rot
from tests.support.fault_proxy import Fault
from tests.support.fleet import CHUNK_BYTES, QUICK, Fleet
from tests.support.models import M1, M8, ModelShape, write_model

pytestmark = pytest.mark.cluster

SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code></Error>"


async def published(fleet: Fleet, tmp_path: Path, shape: ModelShape = M8) -> PublishResult:
    return await fleet.publish(write_model(tmp_path / "model", shape))


def document_bytes(fleet: Fleet, version: VersionId) -> int:
    """Bytes of the manifest and the locations: what each copy costs beside the payload."""
    directory = fleet.served.directory / "versions" / version.hex()
    return sum(path.stat().st_size for path in directory.iterdir())


def object_of(fleet: Fleet, size: int) -> Path:
    """The stored object of so many bytes or more, the smallest."""
    objects = sorted((fleet.served.directory / "files").iterdir(), key=lambda p: p.stat().st_size)
    return next(path for path in objects if path.stat().st_size >= size)


async def test_twenty_cold_nodes_read_each_byte_once(fleet: Fleet, tmp_path: Path) -> None:
    result = await published(fleet, tmp_path)
    # Twenty agents, the proxy and the server share one loop, which needs up to 1.5 s for an answer
    # while all of them start: the usual patience of a second makes of a busy loop a sick origin.
    patient = replace(QUICK, first_byte_timeout_s=4.0)
    nodes = await fleet.start(20, channels=("production",), origin_settings=patient)
    await fleet.wait(lambda: all(n.running.session for n in nodes), "all have a session")
    proxy = fleet.served.proxy
    assert proxy.requests == [], "an idle fleet reads the origin"
    await fleet.set_channel("production", result.version)

    await fleet.wait(lambda: any(n.is_ready(result.version) for n in nodes), "one is ready")
    first_ready = len(proxy.requests)
    await fleet.wait_ready(nodes, result.version)

    allowed = 1.05 * result.unique_bytes + len(nodes) * document_bytes(fleet, result.version)
    assert proxy.body_bytes_sent <= allowed
    assert fleet.file_requests(first_ready) == 0, "one node has all, and the origin is read on"
    reads = Counter((r.target, r.headers["range"]) for r in proxy.requests if "/files/" in r.target)
    assert max(reads.values()) <= 2, reads.most_common(3)
    repeated = reads.total() - len(reads)
    assert repeated <= 0.05 * result.chunks, "a lease may be overtaken on a busy machine"
    read = sum(node.received(result.version, Source.ORIGIN) for node in nodes)
    assert result.unique_bytes <= read <= 1.05 * result.unique_bytes

    seen = len(proxy.requests)
    await nodes[3].stop()
    await nodes[3].start()
    await fleet.wait_ready(nodes, result.version, timeout_s=10)
    assert len(proxy.requests) == seen, "a restarted node reads the origin"
    assert nodes[3].status(result.version).bytes_by_source[Source.LOCAL] == result.unique_bytes


@pytest.mark.parametrize("retry_after", ["", "1"])
async def test_an_origin_that_says_slow_down_is_left_alone(
    fleet: Fleet, tmp_path: Path, retry_after: str, caplog: pytest.LogCaptureFixture
) -> None:
    """At most 20 requests a second over the fleet, and a quick end once it answers again."""
    result = await published(fleet, tmp_path)
    outage_s = 6.0
    headers = {"retry-after": retry_after} if retry_after else {}
    slow = Fault(status=503, body=SLOW_DOWN, headers=headers, for_seconds=outage_s)
    fleet.served.proxy.faults.append(slow)
    nodes = await fleet.start(20, channels=("production",))
    await fleet.set_channel("production", result.version)
    proxy = fleet.served.proxy
    await fleet.wait(lambda: bool(proxy.requests), "the first request")
    began = proxy.requests[0].at

    await trio.sleep_until(began + outage_s)
    assert not any(node.is_ready(result.version) for node in nodes)
    late = sum(began + 2 < request.at < began + outage_s for request in proxy.requests)
    assert late <= 20 * (outage_s - 2), f"{late} requests in {outage_s - 2:g} s of outage"
    await fleet.wait_ready(nodes, result.version, timeout_s=15)

    assert proxy.body_bytes_sent <= (
        1.05 * result.unique_bytes
        + len(nodes) * document_bytes(fleet, result.version)
        + len(SLOW_DOWN) * len(proxy.requests)
    )
    # Whatever logs it, at the level that agents log at: a node has one line for ten seconds.
    lines = [r for r in caplog.records if r.levelno >= logging.INFO and "503" in r.getMessage()]
    lasted_s = proxy.requests[-1].at - began
    assert len(lines) <= len(nodes) * (1 + lasted_s // LOG_INTERVAL_S), "a line for each request"
    assert lines, "and none is no information"
    # Who has read it since then knows that it is well; who has all from peers forgets.
    assert any(
        not node.running.origin_health.degradations(now=trio.current_time()) for node in nodes
    )


@pytest.mark.parametrize(
    "cut",
    [
        Fault(target_part="/files/", every=3, body_cut=CHUNK_BYTES // 2),
        Fault(target_part="/files/", every=3, body_cut=CHUNK_BYTES // 2, is_reset=True),
        Fault(target_part="/files/", every=3, body_cut=CHUNK_BYTES // 2, is_chunked=True),
    ],
    ids=["fin", "rst", "chunked"],
)
async def test_cut_connections_cost_little_and_harm_nothing(
    fleet: Fleet, tmp_path: Path, cut: Fault
) -> None:
    """A pull that nobody helps."""
    result = await published(fleet, tmp_path)
    fleet.served.proxy.faults.append(cut)
    with trio.fail_after(30):
        status = await fleet.pull(result.version.hex(), tmp_path / "pulled")
    assert status.bytes_by_source[Source.ORIGIN] == result.unique_bytes
    allowed = 1.6 * result.unique_bytes + document_bytes(fleet, result.version)
    assert fleet.served.proxy.body_bytes_sent <= allowed


async def test_connections_that_are_always_cut_end_a_pull_with_the_chunk(
    fleet: Fleet, tmp_path: Path
) -> None:
    result = await published(fleet, tmp_path, M1)
    fleet.served.proxy.faults.append(Fault(target_part="/files/", body_cut=100))
    with trio.fail_after(30), pytest.raises(OriginError, match=r"file '.+', chunk \d+"):
        await fleet.pull(result.version.hex(), tmp_path / "pulled")
    ranges = [r.headers["range"] for r in fleet.served.proxy.requests if "range" in r.headers]
    assert len(ranges) <= 8 * result.chunks


async def test_a_fleet_outlives_bodies_that_stall(fleet: Fleet, tmp_path: Path) -> None:
    """The first three reads stop in the middle, with the connection open."""
    result = await published(fleet, tmp_path)
    stall = Fault(target_part="/files/", stall_after=1000, for_requests=3)
    fleet.served.proxy.faults.append(stall)
    nodes = await fleet.start(3, channels=("production",))
    await fleet.set_channel("production", result.version)
    waited_s = await fleet.wait_ready(nodes, result.version)
    assert waited_s < 8, "1 s of silence, and a lease that comes back"
    assert fleet.served.proxy.body_bytes_sent < 1.1 * result.unique_bytes + 3 * document_bytes(
        fleet, result.version
    )


async def test_a_body_that_drips_is_given_up(fleet: Fleet, tmp_path: Path) -> None:
    """A byte now and then is no progress; nobody else is there to help."""
    result = await published(fleet, tmp_path, M1)
    drip = Fault(target_part="/files/", rate=10, piece_bytes=1, for_requests=3)
    fleet.served.proxy.faults.append(drip)
    with trio.fail_after(15):
        status = await fleet.pull(result.version.hex(), tmp_path / "pulled")
    assert status.is_ready


async def test_peers_serve_a_version_whose_origin_is_gone(fleet: Fleet, tmp_path: Path) -> None:
    """Payload, manifest and all, and as quickly as with an origin."""
    result = await published(fleet, tmp_path)
    whole = await fleet.start(3, channels=("production",))
    await fleet.set_channel("production", result.version)
    await fleet.wait_ready(whole, result.version)
    (with_origin,) = await fleet.start(1, channels=("production",))
    normal_s = await fleet.wait_ready([with_origin], result.version)
    seen = len(fleet.served.proxy.requests)

    (late,) = await fleet.start(1, channels=("production",), origin="http://127.0.0.1:1")
    took_s = await fleet.wait_ready([late], result.version)
    assert took_s <= 1.5 * normal_s + 0.5, "half a second of scheduling on a busy machine"
    assert late.received(result.version, Source.ORIGIN) == 0
    assert len(fleet.served.proxy.requests) == seen


async def test_a_peer_alone_serves_a_version_whole(fleet: Fleet, tmp_path: Path) -> None:
    """Without a tracker: a seed by its address, no origin, only the version's id."""
    result = await published(fleet, tmp_path)
    (seed,) = await fleet.start(1, versions=(result.version.hex(),))
    await fleet.wait_ready([seed], result.version)
    seen = len(fleet.served.proxy.requests)
    seeds = (seed.running.network.desk.address,)
    for number, origin in enumerate(["", "http://127.0.0.1:1"]):
        with trio.fail_after(15):
            status = await fleet.pull(
                result.version.hex(), tmp_path / f"pulled{number}", peers=seeds, origin=origin
            )
        assert status.bytes_by_source[Source.PEER_SAME_ZONE] == result.unique_bytes
    assert len(fleet.served.proxy.requests) == seen


async def test_a_reencoding_proxy_is_named(fleet: Fleet, tmp_path: Path) -> None:
    """Asked for the bytes as they are, and never content with others."""
    result = await published(fleet, tmp_path, M1)
    fleet.served.proxy.faults.append(Fault(target_part="/files/", gzips=True))
    with trio.fail_after(30), pytest.raises(IntegrityError, match="gzip"):
        await fleet.pull(result.version.hex(), tmp_path / "pulled")
    asked = {request.headers["accept-encoding"] for request in fleet.served.proxy.requests}
    assert asked == {"identity"}


async def test_what_is_compressed_stays_compressed(fleet: Fleet, tmp_path: Path) -> None:
    """A `.json.gz` is a file like any other."""
    model = write_model(tmp_path / "model", M1)
    packed = gzip.compress(b"{}" * 1000)
    (model / "vocab.json.gz").write_bytes(packed)
    result = await fleet.publish(model)
    fleet.served.proxy.faults.append(Fault(headers={"content-type": "application/gzip"}))
    await fleet.pull(result.version.hex(), tmp_path / "pulled")
    assert (tmp_path / "pulled" / "vocab.json.gz").read_bytes() == packed


async def test_an_object_that_is_gone_is_named_and_the_rest_is_kept(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Nobody has the chunks; what else could be had stays for the next attempt."""
    result = await published(fleet, tmp_path)
    lost = object_of(fleet, 1 << 20)
    content = lost.read_bytes()
    lost.unlink()
    directory = tmp_path / "pulled"
    with trio.fail_after(30), pytest.raises(NotFoundError) as caught:
        await fleet.pull(result.version.hex(), directory)
    message = caught.value.message
    assert result.version.hex()[:12] in message
    assert "file 'model-0" in message
    assert "chunk" in message
    assert fleet.served.proxy.count("GET", lost.name) <= 3 * 16, "16 chunks lie in the object"
    assert not (directory / ".swarm" / "READY").exists()

    lost.write_bytes(content)
    status = await fleet.pull(result.version.hex(), directory)
    assert status.is_ready


async def test_one_peer_makes_up_for_an_object_that_is_gone(fleet: Fleet, tmp_path: Path) -> None:
    result = await published(fleet, tmp_path)
    (whole,) = await fleet.start(1, channels=("production",))
    await fleet.set_channel("production", result.version)
    await fleet.wait_ready([whole], result.version)
    object_of(fleet, 1 << 20).unlink()
    others = await fleet.start(2, channels=("production",))
    await fleet.wait_ready(others, result.version, timeout_s=10)


async def test_a_channel_whose_version_is_gone_leaves_the_old_one_serving(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Everywhere, the tracker's copy of the manifest excepted. Once the version is
    published again the channel moves on by itself."""
    first = await published(fleet, tmp_path, M1)
    second = await fleet.publish(write_model(tmp_path / "model2", M1, seed=2), tag="v2")
    hidden = tmp_path / "origin-hidden"
    files = [*(fleet.served.directory / "versions" / second.version.hex()).iterdir()]
    hidden.mkdir()
    for path in files:
        path.rename(hidden / path.name)
    (node,) = await fleet.start(1, channels=("production",))
    await fleet.set_channel("production", first.version)
    await fleet.wait_ready([node], first.version)
    link = node.cache / "channels" / "production"
    await fleet.wait(link.is_symlink, "the channel is linked")

    await fleet.set_channel("production", second.version)
    await fleet.wait(lambda: "locations" in node.problem(), "the problem is named", timeout_s=10)
    assert node.is_ready(first.version)
    assert link.resolve() == node.directory(first.version).resolve()
    assert node.reasons() == "", "an old version that serves is ready"

    for path in files:
        (hidden / path.name).rename(path)
    hidden.rmdir()
    await fleet.wait_ready([node], second.version, timeout_s=20)


async def test_one_flipped_bit_costs_one_more_read(fleet: Fleet, tmp_path: Path) -> None:
    """Its first byte, as which chunk is read first is chance and some have only 31 bytes."""
    result = await published(fleet, tmp_path, M1)
    fleet.served.proxy.faults.append(Fault(target_part="/files/", flip_bit=0, for_requests=1))
    await fleet.pull(result.version.hex(), tmp_path / "pulled")
    assert fleet.file_requests() == result.chunks + 1


async def test_bytes_that_are_always_wrong_are_never_shown_to_anyone(
    fleet: Fleet, tmp_path: Path
) -> None:
    """The stored object itself has rotted."""
    result = await published(fleet, tmp_path, M1)
    rot(object_of(fleet, 500_000), 300_000)
    with trio.fail_after(30), pytest.raises(IntegrityError, match=r"chunk \d+") as caught:
        await fleet.pull(result.version.hex(), tmp_path / "pulled")
    assert "origin" in caught.value.message
    assert "the manifest says" in caught.value.message

    nodes = await fleet.start(3, channels=("production",))
    await fleet.set_channel("production", result.version)
    await fleet.wait(
        lambda: all(n.agent and result.version in n.agent.shelf.held for n in nodes), "opened"
    )
    held = result.chunks - 1
    await fleet.wait(
        lambda: all(n.status(result.version).chunks_held == held for n in nodes), "all but one"
    )
    await fleet.wait(lambda: any("chunk" in n.problem() for n in nodes), "the chunk is named")
    for node in nodes:
        assert node.status(result.version).chunks_held == held
        assert not node.is_ready(result.version)
