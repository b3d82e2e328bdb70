"""An origin that is not what it should be, and agents that run on all the same: what they tell.

Peers hide a sick origin from those who only look whether versions arrive. So status, metrics and
log have to say that it is sick, how, and since when, until it is well again; and whoever waits for
what nobody has is told so, again and again, and never waits without a word.
"""

from __future__ import annotations

import os
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
import trio

from swarm.agent.accounting import Source
from swarm.agent.metrics import metrics_page
from swarm.agent.origin_health import OriginFault
from swarm.agent.status import status_document
from swarm.agent.waiting_log import FIRST_S, SILENCE_S, say_what_is_waited_for
from swarm.errors import NotFoundError
from swarm.protocol.ids import Address
from tests.support.command_line import failure, swarm
from tests.support.fault_proxy import Fault
from tests.support.fleet import Fleet, FleetNode
from tests.support.models import M1, write_model

pytestmark = pytest.mark.cluster

CHANNEL = "production"


def metric(node: FleetNode, name: str, **labels: str) -> float | None:
    """One sample of the agent's page; None if there is none."""
    wanted = "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}"
    for line in metrics_page(node.running).decode().splitlines():
        if line.startswith(f"{name}{wanted if labels else ' '}"):
            return float(line.rpartition(" ")[2])
    return None


def degraded(node: FleetNode) -> dict[str, dict[str, object]]:
    """What its status says of the origin, by reason; the metrics have to agree."""
    document = status_document(node.running)["origin"]
    assert isinstance(document, dict)
    entries = document["degraded"]
    assert isinstance(entries, list)
    found = {str(e["reason"]): dict(e) for e in entries if isinstance(e, dict)}
    for fault in OriginFault:
        value = metric(node, "swarm_origin_degraded", reason=fault.value)
        assert value == (1 if fault.value in found else 0)
    return found


async def run_swarm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command, while this process serves its origin."""
    return await trio.to_thread.run_sync(partial(swarm, *arguments, timeout_s=40.0))


FAULTS = {
    "throttled": Fault(target_part="/files/", status=503, body=b"SlowDown"),
    "unreachable": Fault(target_part="/files/", status=500, body=b"InternalError"),
    "denied": Fault(target_part="/files/", status=403, body=b"AccessDenied"),
    "missing": Fault(target_part="/files/", status=404, body=b"NoSuchKey"),
    "wrong-answer": Fault(target_part="/files/", body_cut=100),
    "corrupt": Fault(target_part="/files/", flip_bit=0),
}


@pytest.mark.parametrize("reason", FAULTS)
async def test_a_degraded_origin_is_shown_until_it_is_well(
    fleet_alone: Fleet, tmp_path: Path, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What is read when the origin is mended clears it. The node is alone, so it tries again
    by itself."""
    fleet = fleet_alone
    result = await fleet.publish(write_model(tmp_path / "model", M1))
    fault = FAULTS[reason]
    fleet.served.proxy.faults.append(fault)
    before = time.time()
    (node,) = await fleet.start(1, versions=(result.version.hex(),), trackers=())
    await fleet.wait(lambda: reason in degraded(node), f"it is shown as {reason}")
    entry = degraded(node)[reason]
    since = metric(node, "swarm_origin_degraded_since_seconds", reason=reason)
    assert before <= float(str(entry["since"])) <= time.time()
    assert since == pytest.approx(float(str(entry["since"])), abs=0.1)
    assert entry["message"]
    failures = metric(node, "swarm_origin_failures_total", reason=reason)
    assert failures is not None
    assert failures >= float(str(entry["failures"])) >= 1
    assert f"origin: {reason}: " in caplog.text
    assert not node.is_ready(result.version)

    fleet.served.proxy.faults.remove(fault)
    await fleet.wait_ready([node], result.version, timeout_s=40)
    assert degraded(node) == {}
    after = metric(node, "swarm_origin_failures_total", reason=reason)
    assert after is not None
    assert after >= failures, "a counter never falls"
    assert "origin: well again" in caplog.text


async def test_peers_that_make_up_for_an_origin_do_not_hide_it(
    fleet: Fleet, tmp_path: Path
) -> None:
    """An object is gone, one node has it: the others become whole and say what is missing."""
    result = await fleet.publish(write_model(tmp_path / "model", M1))
    objects = sorted((fleet.served.directory / "files").iterdir(), key=lambda p: p.stat().st_size)
    (whole,) = await fleet.start(1, channels=(CHANNEL,))
    await fleet.set_channel(CHANNEL, result.version)
    await fleet.wait_ready([whole], result.version)
    content = objects[-1].read_bytes()
    objects[-1].unlink()
    # It reads the origin by itself: nobody has told it of a peer yet.
    (late,) = await fleet.start(
        1, versions=(result.version.hex(),), trackers=(), listen=Address("127.0.0.1", 0)
    )
    await fleet.wait(lambda: "missing" in degraded(late), "the missing object is met")
    message = str(degraded(late)["missing"]["message"])
    assert result.version.hex()[:12] in message
    assert "file 'model-0" in message
    assert "chunk" in message
    assert not late.is_ready(result.version)

    address = late.running.network.desk.address
    (helper,) = await fleet.start(1, versions=(result.version.hex(),), peers=(address,))
    await fleet.wait_ready([helper, late], result.version)
    assert late.received(result.version, Source.PEER_SAME_ZONE) >= len(content)
    assert "missing" in degraded(late), "the object is still gone"
    problems = status_document(late.running)["waiting"]
    assert problems == [], "it serves all the same"


async def test_a_command_shows_a_degraded_origin(fleet: Fleet, tmp_path: Path) -> None:
    """`swarm status`, for a person and for a program."""
    result = await fleet.publish(write_model(tmp_path / "model", M1))
    fleet.served.proxy.faults.append(FAULTS["throttled"])
    agent = fleet.process("--version", result.version.hex(), *fleet.tracker_flags)
    await trio.to_thread.run_sync(agent.start)
    await fleet.wait(lambda: fleet.file_requests() > 0, "it reads")
    command = ("status", "--socket", str(agent.socket))

    async def shows(what: str) -> bool:
        return what in (await run_swarm(*command)).stdout

    await fleet.wait(partial(shows, "degraded"), "it is shown")
    shown = (await run_swarm(*command)).stdout
    assert f"origin {fleet.served.url} degraded: throttled since 20" in shown
    fleet.served.proxy.faults.clear()
    ready = agent.directory(result.version.hex()) / ".swarm" / "READY"
    await fleet.wait(ready.exists, "ready")
    await fleet.wait(partial(shows, "model@v1"), "the tracker's name is shown")
    shown = (await run_swarm(*command)).stdout
    assert f"origin {fleet.served.url} ok" in shown


async def test_an_agent_that_waits_for_what_nobody_has_says_so_again_and_again(
    fleet: Fleet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In status, metrics and log; asking the origin ever less often; and it goes on at once when
    the version is published."""
    assert SILENCE_S + FIRST_S <= 30, "nothing waits for longer without a word"
    model = write_model(tmp_path / "model", M1)
    result = await fleet.publish(model)
    hidden = tmp_path / "origin-hidden"
    fleet.served.directory.rename(hidden)
    fleet.served.directory.mkdir()
    unknown = os.urandom(32).hex()
    (node,) = await fleet.start(1, versions=(unknown,))
    say = partial(say_what_is_waited_for, first_s=0.0, silence_s=0.5)
    fleet.nursery.start_soon(say, node.running)
    await fleet.wait(lambda: "E_NOTFOUND" in node.reasons(), "the reason is named")
    assert unknown[:12] in node.reasons()
    assert metric(node, "swarm_version_problem", **{"class": "E_NOTFOUND", "version": unknown}) == 1
    problem = {"version": unknown, "class": "E_NOTFOUND", "message": node.problem()}
    assert status_document(node.running)["problems"] == [problem]
    assert "missing" in degraded(node)
    caplog.clear()
    await trio.sleep(8.0)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("waiting: ")]
    assert len([line for line in lines if unknown[:12] in line and "E_NOTFOUND" in line]) >= 12
    asked = fleet.served.proxy.count("GET", unknown)
    assert asked <= 8, f"{asked} requests in 8 s: no back-off"
    assert not node.is_ready(result.version)


@pytest.mark.parametrize("known_to", ["nobody", "a peer that has none", "a peer that is gone"])
async def test_a_pull_of_what_nobody_has_ends_with_its_reason(
    fleet: Fleet, tmp_path: Path, known_to: str
) -> None:
    """At once when everybody is sure, else at its deadline; never by silence."""
    model = write_model(tmp_path / "model", M1)
    result = await fleet.publish(model)
    (seed,) = await fleet.start(1, versions=(result.version.hex(),))
    await fleet.wait_ready([seed], result.version)
    unknown = os.urandom(32).hex()
    peers = {
        "nobody": (),
        "a peer that has none": ("--peer", str(seed.running.network.desk.address)),
        "a peer that is gone": ("--peer", "127.0.0.1:1"),
    }[known_to]
    began = trio.current_time()
    done = await run_swarm(
        "pull", unknown, str(tmp_path / "pulled"), "--json", "--stall-timeout", "4",
        "--origin", fleet.served.url, "--listen", "127.0.0.1:0", *peers,
        "--cluster-key-file", str(tmp_path / "cluster.key"),
    )  # fmt: skip
    error = failure(done)
    assert error["code"] == 32, error
    assert unknown in error["message"]
    assert "the origin: " in error["message"]
    assert trio.current_time() - began < 4 + 6, "an interpreter's start and the deadline"
    assert not (tmp_path / "pulled" / ".swarm" / "READY").exists()


async def test_a_pull_names_the_object_that_is_gone_though_it_has_neighbours(
    fleet: Fleet, tmp_path: Path
) -> None:
    """They might have had it; at the deadline the origin's word is the news."""
    result = await fleet.publish(write_model(tmp_path / "model", M1))
    objects = sorted((fleet.served.directory / "files").iterdir(), key=lambda p: p.stat().st_size)
    objects[-1].unlink()
    others = await fleet.start(2, versions=(result.version.hex(),))
    await fleet.wait(lambda: any(n.problem() for n in others), "others miss it too")
    with trio.fail_after(40), pytest.raises(NotFoundError, match=r"file 'model-0.+chunk \d+"):
        await fleet.pull(
            result.version.hex(),
            tmp_path / "pulled",
            trackers=(fleet.tracker_url,),
            stall_timeout_s=12.0,
        )


async def test_a_channel_that_moves_to_what_is_gone_says_so_and_stays(
    fleet: Fleet, tmp_path: Path
) -> None:
    """It is ready, as the old version serves; the reason is in its status and metrics."""
    first = await fleet.publish(write_model(tmp_path / "model", M1))
    (node,) = await fleet.start(1, channels=(CHANNEL,))
    await fleet.set_channel(CHANNEL, first.version)
    await fleet.wait_ready([node], first.version)
    link = node.cache / "channels" / CHANNEL
    await fleet.wait(link.is_symlink, "the channel is linked")
    second = await fleet.publish(write_model(tmp_path / "model2", M1, seed=2), tag="v2")
    fleet.served.proxy.faults.append(Fault(target_part=second.version.hex(), status=404))
    await fleet.set_channel(CHANNEL, second.version)
    labels = {"class": "E_NOTFOUND", "version": second.version.hex()}
    await fleet.wait(
        lambda: metric(node, "swarm_version_problem", **labels) == 1, "the problem is counted"
    )
    status = status_document(node.running)
    assert second.version.hex()[:12] in str(status["waiting"])
    assert "'E_NOTFOUND'" in str(status["problems"])
    assert node.reasons() == "", "an old version that serves is ready"
    assert link.resolve() == node.directory(first.version).resolve()
