"""Every endpoint, asked by the real client over real sockets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import trio

from swarm.errors import ConflictError, ManifestError, NotFoundError, UsageError
from swarm.protocol.ids import Address, VersionId
from swarm.protocol.tracker_api import (
    LeaseEnd,
    LeaseOutcome,
    Listen,
    Mode,
    Report,
    VersionReport,
)
from tests.support.polling import until
from tests.support.tracker_server import made_version, running_tracker


def a_report(version: VersionId, *, sequence: int = 1, bits: bytes = b"\x00") -> Report:
    return Report(
        sequence=sequence,
        address=Address("10.0.0.7", 7000),
        zone="",
        rack="",
        nic_bytes_per_s=0,
        versions=(VersionReport(version, bits, (), (), is_ready=False),),
        leases=(),
        ended=(),
        unreachable=(),
        channels=(),
        problem="",
        is_leaving=False,
    )


async def test_a_version_is_registered_and_found_by_every_reference(tmp_path: Path) -> None:
    record, manifest = made_version(name="org/m", tag="v1")
    async with running_tracker(tmp_path) as tracker:
        operator = tracker.operator()
        assert await operator.register_version(record, manifest) == record
        assert await operator.register_version(record, manifest) == record
        for reference in ("org/m@v1", record.version.hex(), record.version.hex()[:12]):
            assert await operator.show_version(reference) == record
        assert await operator.list_versions() == (record,)
        assert await tracker.agent().manifest(record.version) == manifest
        await operator.set_channel("prod", "org/m@v1", "first")
        assert (await tracker.agent().show_version("channel:prod")).version == record.version


async def test_a_name_that_is_taken_is_a_conflict(tmp_path: Path) -> None:
    """Two publishers at the same moment: exactly one wins."""
    losers: list[ConflictError] = []
    async with running_tracker(tmp_path) as tracker:

        async def publish() -> None:
            record, manifest = made_version(name="m", tag="v1")
            try:
                await tracker.operator().register_version(record, manifest)
            except ConflictError as conflict:
                losers.append(conflict)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            nursery.start_soon(publish)
        assert len(await tracker.operator().list_versions()) == 1
    (loser,) = losers
    assert "m@v1" in loser.message
    assert tracker.url in loser.message


async def test_a_record_that_does_not_fit_its_manifest_is_refused(tmp_path: Path) -> None:
    record, manifest = made_version()
    async with running_tracker(tmp_path) as tracker:
        operator = tracker.operator()
        with pytest.raises(ManifestError, match="chunks is 9"):
            await operator.register_version(replace(record, chunks=9), manifest)
        with pytest.raises(ManifestError):
            await operator.register_version(record, manifest[:-1])
        assert await operator.list_versions() == ()


async def test_channels_are_set_listed_and_remembered(tmp_path: Path) -> None:
    (one, one_manifest), (two, two_manifest) = made_version(), made_version()
    async with running_tracker(tmp_path) as tracker:
        operator = tracker.operator()
        await operator.register_version(one, one_manifest)
        await operator.register_version(two, two_manifest)
        with pytest.raises(NotFoundError):
            await operator.show_channel("prod")
        with pytest.raises(NotFoundError):
            await operator.set_channel("prod", "ee" * 32, "no such version")
        await operator.set_channel("prod", one.version.hex(), "first", changed_by="alice")
        with pytest.raises(ConflictError):
            await operator.set_channel("prod", two.version.hex(), "late", expected_revision=0)
        target = await operator.set_channel("prod", two.version.hex(), "", expected_revision=1)
        assert (target.version, target.revision) == (two.version, 2)
        # A promotion copies a pointer.
        await operator.set_channel("canary", "channel:prod", "promote")
        assert [entry.channel for entry in await operator.list_channels()] == ["canary", "prod"]
        await operator.set_channel("prod", None, "unset")
    async with running_tracker(tmp_path) as tracker:
        history = await tracker.operator().channel_history("prod")
        assert [entry.revision for entry in history] == [3, 2, 1]
        assert [entry.version for entry in history] == [None, two.version, one.version]
        assert history[-1].changed_by == "alice"
        assert (await tracker.operator().show_channel("canary")).version == two.version
        assert tracker.service.tracker.epoch == 2


async def test_a_channel_reaches_a_waiting_agent_at_once(tmp_path: Path) -> None:
    record, manifest = made_version()
    async with running_tracker(tmp_path) as tracker:
        operator, agent = tracker.operator(), tracker.agent()
        await operator.register_version(record, manifest)
        reply = await agent.listen(Listen((0, 0), (), ("prod",)))
        assert reply.channels[0].version is None
        heard: list[float] = []

        async def wait() -> None:
            news = await agent.listen(Listen(reply.seen, (), ("prod",)))
            heard.append(trio.current_time())
            assert news.channels[0].version == record.version

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await until(lambda: tracker.service.waiting_count == 1)
            await operator.set_channel("prod", record.version.hex(), "go")
            set_at = trio.current_time()
        assert heard[0] - set_at < 0.1


async def test_leases_go_out_and_completions_bring_the_next(tmp_path: Path) -> None:
    record, manifest = made_version(chunks=12)
    async with running_tracker(tmp_path) as tracker:
        await tracker.operator().register_version(record, manifest)
        agent = tracker.agent()
        await agent.report(a_report(record.version, bits=b"\x00\x00"))
        heard = await agent.listen(Listen((0, 0), (record.version,), ()))
        leases = heard.versions[0].leases
        if not leases:
            heard = await agent.listen(Listen(heard.seen, (record.version,), ()))
            leases = heard.versions[0].leases
        assert len(leases) == 8
        end = LeaseEnd(
            leases[0].lease, record.version, leases[0].chunk, LeaseOutcome.VERIFIED, None, None
        )
        held = 1 << leases[0].chunk
        report = a_report(record.version, sequence=2, bits=held.to_bytes(2, "little"))
        await agent.report(replace(report, ended=(end,)))
        with trio.fail_after(1):
            heard = await agent.listen(Listen(heard.seen, (record.version,), ()))
        assert len(heard.versions[0].leases) == 8
        assert leases[0] not in heard.versions[0].leases
        status = await tracker.operator().swarm(record.version.hex())
        assert (status.leases_granted, status.leases_verified, status.peers) == (9, 1, 1)
        assert status.origin_bytes == record.chunk_bytes
        (peer,) = await tracker.operator().peers(record.version.hex())
        assert (peer.chunks_held, peer.chunks, peer.leases) == (1, 12, 8)


async def test_a_newer_listen_ends_the_older(tmp_path: Path) -> None:
    async with running_tracker(tmp_path) as tracker:
        agent = tracker.agent()
        first = await agent.listen(Listen((0, 0), (), ("prod",)))
        seen = Listen(first.seen, (), ("prod",))
        ended: list[bool] = []

        async def wait() -> None:
            reply = await agent.listen(seen)
            ended.append(reply.channels == ())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await until(lambda: tracker.service.waiting_count == 1)
            nursery.start_soon(wait)
            await until(lambda: bool(ended), timeout_s=2.0)
            tracker.service.stop()
        assert ended == [True, True]


async def test_an_agent_whose_listen_broke_off_gets_no_lease(tmp_path: Path) -> None:
    """It was killed: the leases of the next second must not go to it."""
    record, manifest = made_version(chunks=8)
    async with running_tracker(tmp_path) as tracker:
        agent = tracker.agent()
        listen = Listen((0, 0), (record.version,), ())
        await agent.report(a_report(record.version))
        seen = (await agent.listen(listen)).seen
        with trio.move_on_after(0.2):
            await agent.listen(Listen(seen, (record.version,), ()))
        await until(lambda: tracker.service.waiting_count == 0)
        await tracker.operator().register_version(record, manifest)
        await agent.report(a_report(record.version, sequence=2))
        assert tracker.service.tracker.statistics().leases_live == 0
        heard = await agent.listen(listen)
        if not heard.versions[0].leases:
            heard = await agent.listen(Listen(heard.seen, (record.version,), ()))
        assert len(heard.versions[0].leases) == 8


async def test_modes_are_set_with_a_reason_and_survive(tmp_path: Path) -> None:
    record, manifest = made_version()
    async with running_tracker(tmp_path) as tracker:
        operator = tracker.operator()
        await operator.register_version(record, manifest)
        reference = record.version.hex()
        change = await operator.set_mode(reference, Mode.STOP, "incident 7", changed_by="bob")
        assert change.mode is Mode.STOP
    async with running_tracker(tmp_path) as tracker:
        (kept,) = await tracker.operator().list_modes()
        assert (kept.mode, kept.reason, kept.changed_by) == (Mode.STOP, "incident 7", "bob")
        assert (await tracker.operator().swarm(record.version.hex())).mode is Mode.STOP
        agent = tracker.agent()
        await agent.report(a_report(record.version))
        reply = await agent.listen(Listen((0, 0), (record.version,), ()))
        assert reply.versions[0].mode is Mode.STOP
        assert reply.versions[0].leases == ()


async def test_what_cannot_be_true_is_refused_by_name(tmp_path: Path) -> None:
    record, manifest = made_version(chunks=8)
    async with running_tracker(tmp_path) as tracker:
        await tracker.operator().register_version(record, manifest)
        with pytest.raises(UsageError, match="does not fit 8 chunks"):
            await tracker.agent().report(a_report(record.version, bits=b"\x00\x00"))
        with pytest.raises(UsageError):
            await tracker.operator().show_version("no reference")


async def test_health_and_metrics_are_open_and_show_no_key(tmp_path: Path) -> None:
    record, manifest = made_version(name="m", tag="v1")
    async with running_tracker(tmp_path) as tracker, httpx.AsyncClient(trust_env=False) as web:
        operator = tracker.operator()
        await operator.register_version(record, manifest)
        await operator.set_channel("prod", "m@v1", "go")
        await tracker.agent().report(a_report(record.version))
        for path in ("/healthz", "/readyz"):
            assert (await web.get(tracker.url + path)).status_code == 200
        page = (await web.get(f"{tracker.url}/metrics")).text
    for line in (
        "swarm_tracker_peers 1.0",
        'swarm_tracker_channel_revision{channel="prod"} 1.0',
        f'swarm_tracker_version_peers{{version="{record.version.hex()[:12]}"}} 1.0',
        'swarm_tracker_requests_total{route="POST /v1/report",status="200"} 1.0',
        'swarm_tracker_request_seconds_count{route="POST /v1/report"} 1.0',
    ):
        assert line in page
    assert "000102030405" not in page


async def test_json_is_given_to_who_asks_for_it(tmp_path: Path) -> None:
    record, manifest = made_version()
    async with (
        running_tracker(tmp_path, cluster=None) as tracker,
        httpx.AsyncClient(trust_env=False) as web,
    ):
        await tracker.operator(key=None).register_version(record, manifest)
        stamp = f"Swarm role=operator,node={'0' * 32},generation=0,time=0,nonce={'0' * 32},mac="
        headers = {"Authorization": stamp, "Accept": "application/json"}
        answer = await web.get(f"{tracker.url}/v1/versions", headers=headers)
        assert answer.headers["content-type"] == "application/json"
        assert json.loads(answer.content)["versions"][0]["version"] == record.version.hex()
        answer = await web.get(f"{tracker.url}/v1/versions/x@y", headers=headers)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "E_NOTFOUND"
