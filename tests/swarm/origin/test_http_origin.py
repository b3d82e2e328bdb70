"""The HTTP origin against a real server whose answers a proxy breaks."""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from swarm.errors import (
    AuthError,
    NotFoundError,
    OriginAnswerError,
    OriginError,
    OriginThrottledError,
    UsageError,
)
from swarm.origin.origin import MemorySink, Origin, OriginSettings, open_origin
from tests.support.fault_proxy import Fault
from tests.support.served_directory import ServedDirectory, serve_directory

PAYLOAD = random.Random(7).randbytes(300_000)
CONTENT_RANGE = {"content-range": "bytes 1000-200999/300000"}
# Times divided by about twenty.
SETTINGS = OriginSettings(
    connect_timeout_s=1.0,
    first_byte_timeout_s=0.3,
    idle_timeout_s=0.3,
    retry_for_s=2.0,
    retry_pause_s=0.02,
    uses_proxy_environment=False,
)


@pytest.fixture
async def served(tmp_path: Path, nursery: trio.Nursery) -> ServedDirectory:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "a b+c").write_bytes(PAYLOAD)
    return await serve_directory(tmp_path, nursery)


@contextlib.asynccontextmanager
async def opened(url: str, settings: OriginSettings = SETTINGS) -> AsyncIterator[Origin]:
    origin = open_origin(url, settings=settings)
    try:
        yield origin
    finally:
        await origin.aclose()


async def read(origin: Origin, offset: int = 1000, length: int = 200_000) -> bytes:
    sink = MemorySink(length)
    await origin.read_range("dir/a b+c", offset, length, etag="another store's", sink=sink)
    assert sink.room() == memoryview(b""), "bytes are missing"
    return bytes(sink.payload)


class SlowSink:
    """Takes 500 bytes at a time, and a while for each."""

    def __init__(self) -> None:
        self.received = 0
        self.has_room = False

    def room(self) -> memoryview | None:
        return memoryview(bytearray(500)) if self.has_room else None

    async def wait(self) -> None:
        await trio.sleep(0.4)
        self.has_room = True

    def filled(self, count: int) -> None:
        self.received += count
        self.has_room = False


async def test_ranges_documents_and_heads_share_a_connection(served: ServedDirectory) -> None:
    async with opened(served.url + "/") as origin:
        assert await read(origin) == PAYLOAD[1000:201_000]
        assert await origin.read_document("dir/a b+c", limit_bytes=300_000) == PAYLOAD
        info = await origin.head("dir/a b+c")
        assert info is not None
        assert (info.size, info.etag) == (300_000, "")
        assert await origin.head("dir/none") is None
        assert not origin.is_writable
    assert served.proxy.connection_count == 1
    assert all(
        request.headers["accept-encoding"] == "identity" for request in served.proxy.requests
    )


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(ignores_range=True), "status 200 instead of 206"),
        (Fault(headers={"content-range": ""}), "Content-Range ''"),
        (Fault(headers={"content-range": "bytes 0-199999/300000"}), "of 'bytes 1000-200999/"),
        (Fault(body_cut=70_000), "of 200000"),
        (Fault(body_cut=70_000, is_reset=True), "of 200000"),
        (Fault(body_cut=70_000, is_chunked=True), "of 200000"),
        (Fault(gzips=True), "re-encoded (Content-Encoding: gzip)"),
        (Fault(gzips=True, is_chunked=True), "re-encoded (Content-Encoding: gzip)"),
        (Fault(status=206, body=b"x", headers=CONTENT_RANGE), "1 bytes instead of 200000"),
    ],
)  # fmt: skip
async def test_a_wrong_answer_is_named_and_the_next_connection_is_new(
    served: ServedDirectory, fault: Fault, said: str
) -> None:
    fault.for_requests = 1
    served.proxy.faults.append(fault)
    async with opened(served.url) as origin:
        with pytest.raises(OriginAnswerError) as caught:
            await read(origin)
        assert said in caught.value.message
        assert caught.value.is_retryable
        assert await read(origin) == PAYLOAD[1000:201_000]
    assert served.proxy.connection_count == 2


@pytest.mark.parametrize(
    ("fault", "kind", "said", "is_retryable"),
    [
        (Fault(status=500), OriginError, "answered 500", True),
        (Fault(status=404), NotFoundError, "dir/a b+c does not exist", False),
        (Fault(status=403), AuthError, "refused", False),
        (Fault(status=418), OriginError, "answered 418", False),
        (Fault(status=416), OriginError, "shorter than its manifest", False),
        (Fault(delay=9), OriginError, "no answer within 0.3 s", True),
        (Fault(stall_after=70_000), OriginError, "stalled after", True),
        (Fault(rate=2000, piece_bytes=100), OriginError, "stalled after", True),
    ],
)
async def test_failures_are_classed(
    served: ServedDirectory, fault: Fault, kind: type[OriginError], said: str, is_retryable: bool
) -> None:
    served.proxy.faults.append(fault)
    async with opened(served.url) as origin:
        with trio.fail_after(5), pytest.raises(kind) as caught:
            await read(origin)
    assert said in caught.value.message
    assert caught.value.is_retryable is is_retryable


async def test_a_slow_body_ends_at_its_hard_deadline(served: ServedDirectory) -> None:
    """Every window of the idle limit brings enough, and the whole is still too slow."""
    served.proxy.faults.append(Fault(rate=400_000, piece_bytes=20_000))
    settings = OriginSettings(idle_timeout_s=0.2, progress_bytes=1000, bytes_per_s_min=2_000_000)
    async with opened(served.url, settings) as origin:
        started_at = trio.current_time()
        with pytest.raises(OriginError, match="stalled"):
            await read(origin)
    assert trio.current_time() - started_at == pytest.approx(0.3, abs=0.15)


async def test_a_slow_reader_is_not_the_origins_fault(served: ServedDirectory) -> None:
    sink = SlowSink()
    async with opened(served.url) as origin:
        await origin.read_range("dir/a b+c", 0, 1000, etag=None, sink=sink)
    assert sink.received == 1000


@pytest.mark.parametrize(
    ("value", "expected_s"),
    [("5", 5.0), ("", None), ("Wed, 21 Oct 2026 07:28:07 GMT", 7.0), ("soon", None)],
)
async def test_throttling_tells_how_long(
    served: ServedDirectory, value: str, expected_s: float | None
) -> None:
    headers = {"retry-after": value, "date": "Wed, 21 Oct 2026 07:28:00 GMT"}
    served.proxy.faults.append(Fault(status=503, headers=headers))
    async with opened(served.url) as origin:
        with pytest.raises(OriginThrottledError) as caught:
            await read(origin)
    assert caught.value.retry_after_s == expected_s


async def test_documents_repeat_what_is_transient_and_a_few_wrong_answers(
    served: ServedDirectory,
) -> None:
    served.proxy.faults += [
        Fault(for_requests=2, status=503, headers={"retry-after": "0"}),
        Fault(for_requests=1, body_cut=10),
    ]
    async with opened(served.url) as origin:
        assert await origin.read_document("dir/a b+c", limit_bytes=300_000) == PAYLOAD
        assert len(served.proxy.requests) == 4
        served.proxy.faults[:] = [Fault(gzips=True)]
        with pytest.raises(OriginAnswerError, match="Content-Encoding: gzip"):
            await origin.read_document("dir/a b+c", limit_bytes=300_000)
        assert len(served.proxy.requests) == 8
        served.proxy.faults.clear()
        with pytest.raises(OriginError, match="larger than 10 bytes"):
            await origin.read_document("dir/a b+c", limit_bytes=10)


async def test_an_unreachable_origin_is_named() -> None:
    async with opened("http://127.0.0.1:1/x") as origin:
        with pytest.raises(OriginError, match=r"http://127\.0\.0\.1:1/x/dir/a b") as caught:
            await read(origin)
        assert caught.value.is_retryable
    async with opened("http://no-such-host.invalid/x") as origin:
        with pytest.raises(OriginError, match="does not resolve"):
            await read(origin)


async def test_redirects_keep_the_range_and_drop_secrets_for_others(
    served: ServedDirectory, tmp_path: Path, nursery: trio.Nursery
) -> None:
    """The other host is the same files at another port."""
    other = await serve_directory(tmp_path, nursery)
    target = f"{other.url}/dir/a%20b+c?signed=1"
    served.proxy.faults.append(Fault(status=302, headers={"location": target}))
    settings = OriginSettings(http_headers=(("authorization", "Bearer canary"),))
    async with opened(served.url, settings) as origin:
        assert await read(origin) == PAYLOAD[1000:201_000]
        assert served.proxy.requests[0].headers["authorization"] == "Bearer canary"
        assert "authorization" not in other.proxy.requests[0].headers
        other.proxy.faults.append(Fault(status=302, headers={"location": target}))
        with pytest.raises(OriginError, match="more than 5 redirects"):
            await read(origin)


async def test_nothing_secret_is_shown(
    served: ServedDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = served.url.replace("http://", "http://user:canary1@") + "/?sig=canary2"
    settings = OriginSettings(http_headers=(("authorization", "Bearer canary3"),))
    async with opened(url, settings) as origin:
        assert await read(origin) == PAYLOAD[1000:201_000]
        assert served.proxy.requests[-1].target.endswith("a%20b+c?sig=canary2")
        served.proxy.faults.append(Fault(status=302, headers={"location": "ftp://x/?s=canary4"}))
        with pytest.raises(OriginError) as caught:
            await read(origin)
        assert origin.url == served.url
    assert "canary" not in caught.value.message + caplog.text


async def test_the_origin_cannot_be_written_or_listed(served: ServedDirectory) -> None:
    async with opened(served.url) as origin:
        with pytest.raises(UsageError, match="read only"):
            await origin.put_document("x", b"")
        with pytest.raises(OriginError, match="cannot be listed"):
            origin.list_objects("x")


async def test_a_proxy_of_the_environment_is_used_unless_switched_off(
    served: ServedDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with opened(served.url, OriginSettings()) as origin:
        with pytest.raises(OriginError, match="connect"):
            await read(origin)
    async with opened(served.url, SETTINGS) as origin:
        assert len(await read(origin)) == 200_000


async def test_a_cancelled_read_frees_its_connection(served: ServedDirectory) -> None:
    served.proxy.faults.append(Fault(stall_after=70_000, for_requests=1))
    async with opened(served.url, OriginSettings(uses_proxy_environment=False)) as origin:
        with trio.move_on_after(0.2) as scope:
            await read(origin)
        assert scope.cancelled_caught
        assert await read(origin) == PAYLOAD[1000:201_000]
