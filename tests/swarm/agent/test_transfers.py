"""Chunks between real peer networks on loopback, from the request to the verdict."""

from __future__ import annotations

import dataclasses
import os
import random

import pytest
import trio

from swarm.agent.network_settings import NetworkSettings
from swarm.errors import NotFoundError, TrackerError
from swarm.policy import commands as order
from swarm.policy.events import (
    ChunkRequested,
    ChunkVerified,
    FailureReason,
    RequestCancelled,
    SessionClosed,
    TransferFailed,
    TransferId,
    TransferNearEnd,
    UploadFinished,
)
from swarm.protocol.ids import Address, ChunkIndex, SessionId, VersionId
from swarm.protocol.messages import DocumentKind, RefuseReason
from tests.support.peers import PolicylessPeer, connect, connected_pair, peer
from tests.support.versions import MadeVersion, make_version, small_version

MIB = 1 << 20


def large_version(*, mib: int = 8, chunk_mib: int = 4) -> MadeVersion:
    return make_version(
        {"model.bin": random.Random(3).randbytes(mib * MIB + 12_345)}, chunk_bytes=chunk_mib * MIB
    )


def stored(holder: PolicylessPeer, version: MadeVersion, chunk: int) -> bytes:
    """The bytes of a chunk as another reader of the store finds them."""
    store = holder.stores[version.manifest.version]
    with store.open_span(ChunkIndex(chunk)) as span:
        return os.pread(span.fd, span.length, span.offset)


async def test_every_chunk_arrives_and_ends_in_one_event() -> None:
    version = small_version()
    async with connected_pair(version) as (seed, fetcher):
        for chunk in version.chunks:
            fetcher.request(seed, version.manifest.version, chunk, transfer=chunk)
            verified = await fetcher.wait_for(ChunkVerified)
            assert (verified.transfer, verified.chunk) == (chunk, chunk)
            finished = await seed.wait_for(UploadFinished)
            assert finished.sent_bytes == version.manifest.lengths[chunk]
            assert stored(fetcher, version, chunk) == version.chunk_bytes_of(chunk)
        assert fetcher.stores[version.manifest.version].have.is_full
        assert fetcher.count(TransferFailed) == 0
        assert fetcher.network.bytes_in == version.manifest.unique_bytes
        assert seed.network.bytes_out == version.manifest.unique_bytes
        assert fetcher.network.sample() == ()


@pytest.mark.parametrize("stripes", [2, 3])
async def test_striped_chunk_is_one_request_to_policy_and_one_hash(stripes: int) -> None:
    version = large_version()
    async with connected_pair(version) as (seed, fetcher):
        fetcher.request(seed, version.manifest.version, 0, transfer=1, stripes=stripes)
        await fetcher.wait_for(ChunkVerified)
        assert stored(fetcher, version, 0) == version.chunk_bytes_of(0)
        finished = await seed.wait_for(UploadFinished)
        assert finished.sent_bytes == 4 * MIB
        assert seed.count(ChunkRequested) == 1
        assert seed.count(UploadFinished) == 0


async def test_presend_point_of_a_small_chunk_is_its_header() -> None:
    """Policy hears of it before the chunk is verified, and once."""
    version = small_version()
    async with connected_pair(version) as (seed, fetcher):
        fetcher.request(seed, version.manifest.version, 1, transfer=1)
        await fetcher.wait_for(ChunkVerified)
        assert fetcher.count(TransferNearEnd) == 1


async def test_presend_point_of_a_large_chunk_comes_before_its_end() -> None:
    version = large_version()
    async with connected_pair(version) as (seed, fetcher):
        fetcher.request(seed, version.manifest.version, 0, transfer=1)
        await fetcher.wait_for(TransferNearEnd)
        await fetcher.wait_for(ChunkVerified)
        assert fetcher.count(TransferNearEnd) == 0


async def test_session_keeps_its_data_link() -> None:
    """The next request goes out on the same link while the current chunk arrives."""
    version = small_version()
    async with connected_pair(version) as (seed, fetcher):
        fetcher.request(seed, version.manifest.version, 0, transfer=0)
        for chunk in range(1, 5):
            await fetcher.wait_for(TransferNearEnd)
            fetcher.request(seed, version.manifest.version, chunk, transfer=chunk)
        for _ in range(5):
            await fetcher.wait_for(ChunkVerified)
        assert seed.count(ChunkRequested) == 5
        assert seed.count(SessionClosed) == 0
        assert fetcher.network.open_links() == (1, 1, 0)
        assert seed.network.open_links() == (1, 0, 1)


async def test_link_of_an_ended_session_serves_the_next_one() -> None:
    version = small_version()
    async with connected_pair(version) as (seed, fetcher):
        fetcher.request(seed, version.manifest.version, 0, transfer=0, session=1)
        await fetcher.wait_for(ChunkVerified)
        fetcher.network.execute(order.EndSession(seed.node_id, SessionId(1)))
        fetcher.request(seed, version.manifest.version, 1, transfer=1, session=2)
        await fetcher.wait_for(ChunkVerified)
        # The link asks for another session now, so the first has no link left.
        closed = await seed.wait_for(SessionClosed)
        assert closed.session == 1


async def test_idle_link_is_closed_after_its_time() -> None:
    settings = NetworkSettings(data_link_idle_s=0.05, tick_s=0.02)
    version = small_version()
    async with connected_pair(version, settings=settings) as (seed, fetcher):
        fetcher.request(seed, version.manifest.version, 0, transfer=0)
        await fetcher.wait_for(ChunkVerified)
        await seed.wait_for(SessionClosed)


async def test_refusal_carries_reason_and_load() -> None:
    version = small_version()
    async with connected_pair(version) as (seed, fetcher):
        seed.serves_at_once = False
        fetcher.request(seed, version.manifest.version, 0, transfer=7)
        asked = await seed.wait_for(ChunkRequested)
        seed.network.execute(
            order.RefuseRequest(
                asked.peer, asked.session, asked.version, asked.chunk, RefuseReason.BUSY, 5
            )
        )
        failed = await fetcher.wait_for(TransferFailed)
        assert failed == TransferFailed(
            TransferId(7), FailureReason.REFUSED, RefuseReason.BUSY, load=5
        )


async def test_refused_session_can_ask_again_on_the_same_link() -> None:
    version = small_version()
    async with connected_pair(version) as (seed, fetcher):
        seed.serves_at_once = False
        for attempt in range(6):  # More than a link may have unanswered.
            fetcher.request(seed, version.manifest.version, 0, transfer=attempt)
            asked = await seed.wait_for(ChunkRequested)
            seed.network.execute(
                order.RefuseRequest(
                    asked.peer, asked.session, asked.version, asked.chunk, RefuseReason.BUSY, 1
                )
            )
            await fetcher.wait_for(TransferFailed)
        fetcher.request(seed, version.manifest.version, 0, transfer=9)
        seed.start(await seed.wait_for(ChunkRequested))
        await fetcher.wait_for(ChunkVerified)


async def test_chunk_that_the_store_lost_is_refused_and_the_upload_ends() -> None:
    """Policy believed in it; the store does not have it."""
    version = small_version()
    async with (
        peer("empty", version) as empty,
        peer("fetcher", version) as fetcher,
    ):
        await connect(fetcher, empty)
        fetcher.request(empty, version.manifest.version, 0, transfer=1)
        failed = await fetcher.wait_for(TransferFailed)
        assert (failed.reason, failed.refusal) == (FailureReason.REFUSED, RefuseReason.NOT_HELD)
        finished = await empty.wait_for(UploadFinished)
        assert finished.sent_bytes == 0


async def test_cancel_before_the_payload_keeps_the_link() -> None:
    version = small_version()
    async with connected_pair(version) as (seed, fetcher):
        seed.serves_at_once = False
        fetcher.request(seed, version.manifest.version, 0, transfer=1)
        await seed.wait_for(ChunkRequested)
        fetcher.network.execute(order.CancelTransfer(TransferId(1)))
        failed = await fetcher.wait_for(TransferFailed)
        assert failed.reason is FailureReason.CANCELLED
        taken_back = await seed.wait_for(RequestCancelled)
        assert taken_back.chunk == 0
        fetcher.request(seed, version.manifest.version, 1, transfer=2)
        seed.start(await seed.wait_for(ChunkRequested))
        await fetcher.wait_for(ChunkVerified)
        assert seed.count(SessionClosed) == 0


async def test_cancel_in_the_middle_ends_both_transfers_of_the_link() -> None:
    """Slowed down, so that the middle lasts."""
    settings = NetworkSettings(uplink_bytes_per_s=8 * MIB)
    version = large_version()
    async with connected_pair(version, settings=settings) as (seed, fetcher):
        fetcher.request(seed, version.manifest.version, 0, transfer=1)
        fetcher.request(seed, version.manifest.version, 1, transfer=2)
        await seed.wait_for(ChunkRequested)
        await _received(fetcher, 1)
        fetcher.network.execute(order.CancelTransfer(TransferId(1)))
        ends = [await fetcher.wait_for(TransferFailed) for _ in range(2)]
        reasons = {end.transfer: end.reason for end in ends}
        assert reasons == {1: FailureReason.CANCELLED, 2: FailureReason.LOST}
        await seed.wait_for(SessionClosed)
        assert not fetcher.stores[version.manifest.version].have


async def _received(fetcher: PolicylessPeer, transfer: int) -> None:
    with trio.fail_after(5):
        # The count is the kernel's: nobody is told when it moves.
        while not dict(fetcher.network.sample()).get(TransferId(transfer)):  # noqa: ASYNC110
            await trio.sleep(0.002)


async def test_cancel_while_the_link_is_being_opened_ends_at_once() -> None:
    version = small_version()
    async with connected_pair(version) as (seed, fetcher):
        fetcher.request(seed, version.manifest.version, 0, transfer=1)
        fetcher.network.execute(order.CancelTransfer(TransferId(1)))
        assert (await fetcher.wait_for(TransferFailed)).reason is FailureReason.CANCELLED
        assert fetcher.network.sample() == ()


async def test_two_transfers_of_one_chunk_both_end_verified() -> None:
    """End game: the second copy is dropped, and its transfer still has its one event."""
    version = small_version()
    async with connected_pair(version) as (seed, fetcher):
        fetcher.request(seed, version.manifest.version, 1, transfer=1, session=1)
        fetcher.request(seed, version.manifest.version, 1, transfer=2, session=2)
        ends = [await fetcher.wait_for(ChunkVerified) for _ in range(2)]
        assert {end.transfer for end in ends} == {1, 2}


async def test_unknown_peer_and_unknown_version_fail_at_once() -> None:
    version = small_version()
    async with peer("fetcher", version) as fetcher, peer("other") as other:
        fetcher.request(other, version.manifest.version, 0, transfer=1)
        assert (await fetcher.wait_for(TransferFailed)).reason is FailureReason.LOST
        fetcher.request(other, VersionId(bytes(32)), 0, transfer=2)
        assert (await fetcher.wait_for(TransferFailed)).reason is FailureReason.CANCELLED


async def test_seed_that_leaves_ends_transfers_as_lost() -> None:
    version = large_version()
    settings = NetworkSettings(uplink_bytes_per_s=4 * MIB)
    async with peer("fetcher", version) as fetcher:
        async with peer("seed", version, holds=None, settings=settings) as seed:
            await connect(fetcher, seed)
            fetcher.request(seed, version.manifest.version, 0, transfer=1)
            await _received(fetcher, 1)
        assert (await fetcher.wait_for(TransferFailed)).reason is FailureReason.LOST


@pytest.mark.parametrize(
    "limited",
    [NetworkSettings(uplink_bytes_per_s=4 * MIB), NetworkSettings(downlink_bytes_per_s=4 * MIB)],
    ids=["uplink", "downlink"],
)
async def test_limit_holds_the_rate(limited: NetworkSettings) -> None:
    """1 MiB at 4 MiB/s takes a quarter of a second, less the burst of 50 ms."""
    version = make_version({"a": random.Random(1).randbytes(MIB)}, chunk_bytes=MIB)
    async with connected_pair(version, settings=limited) as (seed, fetcher):
        started_at = trio.current_time()
        fetcher.request(seed, version.manifest.version, 0, transfer=1)
        await fetcher.wait_for(ChunkVerified)
        assert 0.18 < trio.current_time() - started_at < 0.6


async def test_closing_lets_the_chunk_in_flight_end() -> None:
    version = large_version()
    settings = NetworkSettings(uplink_bytes_per_s=16 * MIB)
    async with connected_pair(version, settings=settings) as (seed, fetcher):
        fetcher.request(seed, version.manifest.version, 0, transfer=1)
        await _received(fetcher, 1)
        with trio.fail_after(3):
            await seed.network.close(2.0)
        await fetcher.wait_for(ChunkVerified)


async def test_document_of_a_peer_is_read_page_by_page() -> None:
    document, version = random.Random(5).randbytes(1_200_000), VersionId(b"d" * 32)
    async with peer("seed") as seed, peer("reader") as reader:
        seed.documents[version] = document

        async def read(kind: DocumentKind, limit_bytes: int) -> bytes:
            return await reader.network.fetch_document(
                seed.info, version, kind, limit_bytes=limit_bytes
            )

        assert await read(DocumentKind.MANIFEST, 2 * MIB) == document
        with pytest.raises(NotFoundError):
            await read(DocumentKind.LOCATIONS, 2 * MIB)
        with pytest.raises(NotFoundError):
            await read(DocumentKind.MANIFEST, 1_000_000)


async def test_document_from_nobody_names_the_peer() -> None:
    async with peer("reader") as reader:
        nowhere = dataclasses.replace(reader.info, address=Address("127.0.0.1", 1))
        with pytest.raises(TrackerError, match=r"127\.0\.0\.1:1 "):
            await reader.network.fetch_document(
                nowhere, VersionId(bytes(32)), DocumentKind.MANIFEST, limit_bytes=MIB
            )
