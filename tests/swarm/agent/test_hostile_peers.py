"""Peers that lie, stall and talk rubbish: one link ends, everything else goes on."""

from __future__ import annotations

import random
import struct
from collections.abc import Awaitable, Callable

import pytest
import trio

from swarm.agent.frame_stream import FrameStream
from swarm.agent.network_settings import NetworkSettings
from swarm.policy import commands as order
from swarm.policy.events import (
    ChunkRequested,
    ChunkVerified,
    FailureReason,
    PeerConnected,
    PeerLost,
    SessionClosed,
    TransferFailed,
    TransferId,
    UploadFinished,
)
from swarm.protocol.codec import FRAME_BYTES_MAX, encode
from swarm.protocol.ids import ChunkIndex, SessionId
from swarm.protocol.messages import Chunk, LinkKind, Message, Request
from tests.support.fake_peer import (
    FakePeer,
    fake_peer,
    header_of,
    next_request,
    send_raw,
    stranger,
    wait_closed,
)
from tests.support.peers import PolicylessPeer, connect, connected_pair, peer
from tests.support.versions import MadeVersion, make_version, small_version

Behaviour = Callable[[FakePeer, FrameStream], Awaitable[None]]
IMPATIENT = NetworkSettings(no_progress_s=0.15, queue_wait_s=0.4, tick_s=0.02)


async def fetch_from(
    behaviour: Behaviour, version: MadeVersion, settings: NetworkSettings | None = None
) -> TransferFailed:
    """Ask a fake peer for chunk 1; how that ended."""
    async with (
        fake_peer("fake", behaviour) as fake,
        peer("fetcher", version, settings=settings) as fetcher,
    ):
        fetcher.network.execute(order.ConnectPeer(fake.info))
        await fetcher.wait_for(PeerConnected)
        _request(fetcher, fake, version)
        failed = await fetcher.wait_for(TransferFailed)
        assert fetcher.network.sample() == ()
        assert 1 not in fetcher.stores[version.manifest.version].have
        # Nothing of the failed attempt stands in the way of an honest one.
        async with peer("honest", version, holds=None) as honest:
            await connect(fetcher, honest)
            fetcher.request(honest, version.manifest.version, 1, transfer=99, session=99)
            await fetcher.wait_for(ChunkVerified)
        return failed


def _request(fetcher: PolicylessPeer, fake: FakePeer, version: MadeVersion) -> None:
    fetcher.network.execute(
        order.RequestChunk(
            TransferId(1),
            fake.info.node_id,
            SessionId(1),
            version.manifest.version,
            ChunkIndex(1),
            1,
        )
    )


async def test_wrong_bytes_are_corrupt_and_stay_invisible() -> None:
    async def lie(fake: FakePeer, stream: FrameStream) -> None:
        request = await next_request(fake, stream)
        await send_raw(stream, header_of(request) + bytes(request.length))

    assert (await fetch_from(lie, small_version())).reason is FailureReason.CORRUPT


async def test_silence_without_an_answer_to_pings_is_lost() -> None:
    async def mute(fake: FakePeer, stream: FrameStream) -> None:
        await next_request(fake, stream)
        await trio.sleep_forever()

    failed = await fetch_from(mute, small_version(), IMPATIENT)
    assert failed.reason is FailureReason.LOST


async def test_peer_that_queues_for_ever_is_lost() -> None:
    """It answers every ping and never serves: a real agent whose policy forgot."""
    version = small_version()
    async with connected_pair(version, settings=IMPATIENT) as (seed, fetcher):
        seed.serves_at_once = False
        started_at = trio.current_time()
        fetcher.request(seed, version.manifest.version, 0, transfer=1)
        assert (await fetcher.wait_for(TransferFailed)).reason is FailureReason.LOST
        # Longer than silence is borne: the pings were answered.
        assert trio.current_time() - started_at > 2 * IMPATIENT.no_progress_s
        await seed.wait_for(SessionClosed)


async def test_payload_that_stalls_is_lost() -> None:
    async def stall(fake: FakePeer, stream: FrameStream) -> None:
        request = await next_request(fake, stream)
        await send_raw(stream, header_of(request) + bytes(1000))
        await trio.sleep_forever()

    failed = await fetch_from(stall, small_version(), IMPATIENT)
    assert failed.reason is FailureReason.LOST


async def test_payload_that_drips_is_lost() -> None:
    """A byte now and then is progress to the watchdog, and a drip to patience."""

    async def drip(fake: FakePeer, stream: FrameStream) -> None:
        request = await next_request(fake, stream)
        await send_raw(stream, header_of(request))
        while True:
            await send_raw(stream, b"x")
            await trio.sleep(0.02)

    settings = NetworkSettings(no_progress_s=1.0, payload_patience_s=0.15, tick_s=0.02)
    failed = await fetch_from(drip, small_version(), settings)
    assert failed.reason is FailureReason.LOST


async def test_close_in_the_middle_of_a_payload_is_lost() -> None:
    async def cut(fake: FakePeer, stream: FrameStream) -> None:
        request = await next_request(fake, stream)
        await send_raw(stream, header_of(request) + bytes(1000))
        stream.close()

    assert (await fetch_from(cut, small_version())).reason is FailureReason.LOST


async def _other_header(fake: FakePeer, stream: FrameStream, change: dict[str, int]) -> None:
    request = await next_request(fake, stream)
    fields: dict[str, int] = {
        "session": request.session,
        "chunk": request.chunk,
        "offset": request.offset,
        "length": request.length,
        **change,
    }
    header = Chunk(
        SessionId(fields["session"]),
        request.version,
        ChunkIndex(fields["chunk"]),
        fields["offset"],
        fields["length"],
    )
    await send_raw(stream, encode(header) + bytes(4096))


@pytest.mark.parametrize(
    "change", [{"chunk": 2}, {"session": 9}, {"length": 100}, {"length": 1 << 31}, {"offset": 1}]
)
async def test_payload_that_was_not_asked_for_ends_the_link(change: dict[str, int]) -> None:
    async def answer(fake: FakePeer, stream: FrameStream) -> None:
        await _other_header(fake, stream, change)

    assert (await fetch_from(answer, small_version())).reason is FailureReason.LOST


async def test_answers_may_come_in_another_order() -> None:
    version = small_version()

    async def backwards(fake: FakePeer, stream: FrameStream) -> None:
        requests = [await next_request(fake, stream) for _ in range(2)]
        for request in reversed(requests):
            payload = version.chunk_bytes_of(request.chunk)
            await send_raw(stream, header_of(request) + payload)

    async with fake_peer("fake", backwards) as fake, peer("fetcher", version) as fetcher:
        fetcher.network.execute(order.ConnectPeer(fake.info))
        await fetcher.wait_for(PeerConnected)
        for chunk in (1, 2):
            fetcher.network.execute(
                order.RequestChunk(
                    TransferId(chunk),
                    fake.info.node_id,
                    SessionId(1),
                    version.manifest.version,
                    ChunkIndex(chunk),
                    1,
                )
            )
        assert [(await fetcher.wait_for(ChunkVerified)).chunk for _ in range(2)] == [2, 1]
        assert fake.opened[LinkKind.DATA] == 1


async def test_garbage_on_a_data_link_ends_it() -> None:
    async def rubbish(fake: FakePeer, stream: FrameStream) -> None:
        await next_request(fake, stream)
        await send_raw(stream, random.Random(1).randbytes(500))

    assert (await fetch_from(rubbish, small_version())).reason is FailureReason.LOST


async def test_broken_disk_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store fails while a chunk is written: LOCAL, and the operator hears why."""
    import os

    version = small_version()
    async with connected_pair(version) as (seed, fetcher):
        # The file is gone from under the store.
        def fail(*_: object) -> int:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "pwrite", fail)
        monkeypatch.setattr(os, "pwritev", fail)
        fetcher.request(seed, version.manifest.version, 1, transfer=1)
        failed = await fetcher.wait_for(TransferFailed)
        monkeypatch.undo()
        assert failed.reason is FailureReason.LOCAL
        assert len(fetcher.problems) == 1
        fetcher.request(seed, version.manifest.version, 1, transfer=2)
        await fetcher.wait_for(ChunkVerified)


BOMBS = {
    "frame of 2^32-1": b"\xff\xff\xff\xff",
    "frame of 0": b"\x00\x00\x00\x00",
    "array of 2^32": struct.pack(">I", 5) + b"\xdd\xff\xff\xff\xff",
    "map of 2^32": struct.pack(">I", 5) + b"\xdf\xff\xff\xff\xff",
    "nested 100,000 deep": struct.pack(">I", 100_000) + b"\x91" * 100_000,
    "a MiB of empty maps": struct.pack(">I", FRAME_BYTES_MAX)
    + b"\xdd\x00\x0f\xff\xfb"
    + b"\x80" * (FRAME_BYTES_MAX - 5),
}


@pytest.mark.parametrize("kind", LinkKind)
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
async def test_bomb_closes_its_link_and_nothing_else(bomb: bytes, kind: LinkKind) -> None:
    version = small_version()
    async with connected_pair(version) as (seed, fetcher):
        async with stranger(seed.address, "bomber", kind, expected=seed.node_id) as stream:
            await send_raw(stream, bomb)
            await wait_closed(stream)
        fetcher.request(seed, version.manifest.version, 0, transfer=1)
        await fetcher.wait_for(ChunkVerified)
        assert fetcher.count(PeerLost) == 0


@pytest.mark.parametrize("opening", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\x20\0", b"\x16\x03\x01"])
async def test_stranger_without_a_handshake_is_shown_out(opening: bytes) -> None:
    settings = NetworkSettings(handshake_timeout_s=0.2)
    async with peer("a", settings=settings) as a:
        with trio.fail_after(2):
            connection = await trio.open_tcp_stream(a.address.host, a.address.port)
            await connection.send_all(opening)
            await connection.receive_some(10)
            await connection.aclose()


def _asks(version: MadeVersion, count: int) -> list[Message]:
    return [
        Request(
            SessionId(1), 0, 1, version.manifest.version, ChunkIndex(chunk), 0,
            version.manifest.lengths[chunk],
        )
        for chunk in range(count)
    ]  # fmt: skip


async def test_more_requests_than_a_link_may_have_end_it() -> None:
    version = small_version()
    async with peer("seed", version, holds=None) as seed:
        seed.serves_at_once = False
        async with stranger(seed.address, "greedy", LinkKind.DATA, expected=seed.node_id) as stream:
            await stream.send(_asks(version, 5))
            await wait_closed(stream)
        await seed.wait_for(SessionClosed)
        assert seed.count(ChunkRequested) == 4


async def test_request_past_the_end_of_a_chunk_is_not_served() -> None:
    version = small_version()
    async with peer("seed", version, holds=None) as seed:
        async with stranger(seed.address, "odd", LinkKind.DATA, expected=seed.node_id) as stream:
            length = version.manifest.lengths[1]
            request = Request(
                SessionId(1), 0, 1, version.manifest.version, ChunkIndex(1), 1, length
            )
            await stream.send([request])
            assert type(await stream.receive()).__name__ == "Refuse"
        assert (await seed.wait_for(UploadFinished)).sent_bytes == 0


async def test_upload_ends_when_its_bytes_leave_and_not_when_the_kernel_has_them() -> None:
    """A chunk that fits the send buffer, to a fetcher that reads late."""
    version = make_version({"a": random.Random(1).randbytes(1 << 20)}, chunk_bytes=1 << 20)
    async with (
        peer("seed", version, holds=None) as seed,
        stranger(seed.address, "late", LinkKind.DATA, expected=seed.node_id) as stream,
    ):
        await stream.send(_asks(version, 1))
        await seed.wait_for(ChunkRequested)
        await trio.sleep(0.05)
        assert seed.count(UploadFinished) == 0
        received = 0
        with trio.fail_after(5):
            while received < 1 << 20:
                received += len(await stream.receive_some(65536))
        assert (await seed.wait_for(UploadFinished)).sent_bytes == 1 << 20


async def test_upload_that_does_not_move_is_given_up() -> None:
    version = make_version({"a": random.Random(1).randbytes(8 << 20)}, chunk_bytes=8 << 20)
    async with peer("seed", version, holds=None, settings=IMPATIENT) as seed:
        async with stranger(seed.address, "stuck", LinkKind.DATA, expected=seed.node_id) as stream:
            await stream.send(_asks(version, 1))
            await seed.wait_for(ChunkRequested)
            await seed.wait_for(SessionClosed)
        assert seed.count(UploadFinished) == 0


async def test_fetcher_that_stops_reading_holds_nobody_up() -> None:
    """It asks for a chunk larger than all buffers and does not read; another is served
    meanwhile."""
    big = make_version({"a": random.Random(1).randbytes(24 << 20)}, chunk_bytes=8 << 20)
    async with connected_pair(big) as (seed, fetcher):
        async with stranger(seed.address, "stuck", LinkKind.DATA, expected=seed.node_id) as stream:
            await stream.send(_asks(big, 1))
            await seed.wait_for(ChunkRequested)
            fetcher.request(seed, big.manifest.version, 1, transfer=1)
            await fetcher.wait_for(ChunkVerified)
        closed = await seed.wait_for(SessionClosed)
        assert closed.peer != fetcher.node_id
