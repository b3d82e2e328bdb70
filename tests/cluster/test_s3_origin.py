"""The S3 origin against a real server that verifies signatures."""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterator, Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
import trio

from swarm.errors import AuthError, ChangedError, ConflictError, NotFoundError, OriginError
from swarm.origin.origin import MIB, MemorySink, Origin, OriginSettings, open_origin
from tests.support.fault_proxy import Fault, FaultProxy, fault_proxy_in_thread
from tests.support.seaweed import SeaweedServer

pytestmark = pytest.mark.cluster

PART_BYTES = 5 * MIB
SETTINGS = OriginSettings(retry_for_s=5.0, retry_pause_s=0.05, upload_parts_in_flight=1)


class BytesSource:
    """An object in memory; fails at `failing_index` with `failure`."""

    def __init__(
        self, payload: bytes, failing_index: int = -1, failure: Exception | None = None
    ) -> None:
        self.payload = payload
        self.size = len(payload)
        self.part_bytes = PART_BYTES
        self._failing_index = failing_index
        self._failure = failure

    async def read_part(self, index: int) -> bytes:
        await trio.lowlevel.checkpoint()
        if index == self._failing_index and self._failure is not None:
            raise self._failure
        return self.payload[index * PART_BYTES : (index + 1) * PART_BYTES]


async def read(origin: Origin, key: str, offset: int, length: int, etag: str | None) -> bytes:
    sink = MemorySink(length)
    await origin.read_range(key, offset, length, etag=etag, sink=sink)
    assert sink.room() == memoryview(b""), "bytes are missing"
    return bytes(sink.payload)


@pytest.fixture
async def origin(bucket: str) -> AsyncIterator[Origin]:
    opened = open_origin(f"s3://{bucket}/models//a b/", settings=SETTINGS)
    yield opened
    await opened.aclose()


@pytest.fixture
def proxy(seaweed: SeaweedServer) -> Iterator[FaultProxy]:
    with fault_proxy_in_thread(seaweed.endpoint) as running:
        yield running


@pytest.fixture
async def proxied(
    proxy: FaultProxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Origin]:
    """An origin behind the fault proxy."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
    opened = open_origin(f"s3://{bucket}/prefix", settings=SETTINGS)
    yield opened
    await opened.aclose()


def sent_parts(proxy: FaultProxy, since: int) -> list[int]:
    """Numbers of the parts that were uploaded after the first `since` requests."""
    return sorted(
        int(parse_qs(urlsplit(request.target).query)["partNumber"][0])
        for request in proxy.requests[since:]
        if request.method == "PUT" and "partNumber=" in request.target
    )


async def test_a_document_is_stored_and_read(origin: Origin) -> None:
    await origin.put_document("versions/α+β/manifest", b"m" * 1000)
    assert await origin.read_document("versions/α+β/manifest", limit_bytes=1000) == b"m" * 1000
    with pytest.raises(OriginError, match="larger than 999"):
        await origin.read_document("versions/α+β/manifest", limit_bytes=999)
    with pytest.raises(NotFoundError, match="versions/none"):
        await origin.read_document("versions/none", limit_bytes=10)


async def test_a_range_is_read_if_the_object_is_still_the_same(origin: Origin) -> None:
    payload = random.Random(1).randbytes(3 * MIB)
    await origin.put_document("file", payload)
    info = await origin.head("file")
    assert info is not None
    assert (info.size, info.etag) == (len(payload), hashlib.md5(payload).hexdigest())
    assert await read(origin, "file", 1000, 2 * MIB, info.etag) == payload[1000 : 1000 + 2 * MIB]
    await origin.put_document("file", payload[::-1])
    with pytest.raises(OriginError, match="replaced") as caught:
        await read(origin, "file", 1000, 2 * MIB, info.etag)
    assert not caught.value.is_retryable


async def test_a_range_past_the_end_is_an_error(origin: Origin) -> None:
    await origin.put_document("file", b"0123456789")
    with pytest.raises(OriginError, match="does not fit the range"):
        await read(origin, "file", 5, 10, None)
    with pytest.raises(OriginError, match="shorter"):
        await read(origin, "file", 10, 1, None)


async def test_create_only_keeps_what_is_there(origin: Origin) -> None:
    await origin.put_document("name", b"first", is_create_only=True)
    await origin.put_document("name", b"first", is_create_only=True)
    with pytest.raises(ConflictError, match="name"):
        await origin.put_document("name", b"other", is_create_only=True)
    assert await origin.read_document("name", limit_bytes=100) == b"first"


async def test_listings_go_past_the_first_page(origin: Origin) -> None:
    keys = [f"list/ü {number:04}" for number in range(1003)]
    limiter = trio.CapacityLimiter(16)

    async def put(key: str) -> None:
        async with limiter:
            await origin.put_document(key, b"x")

    async with trio.open_nursery() as nursery:
        for key in keys:
            nursery.start_soon(put, key)
        nursery.start_soon(put, "listed-too?no")
    assert [info.key async for info in origin.list_objects("list/")] == keys
    assert [info.key async for info in origin.list_objects("list/ü 099")] == keys[990:1000]


async def test_a_large_object_is_stored_in_parts(origin: Origin) -> None:
    payload = random.Random(2).randbytes(3 * PART_BYTES + 7)
    done: list[int] = []
    info = await origin.upload("files/large", BytesSource(payload), progress=done.append)
    assert (info.size, sum(done)) == (len(payload), len(payload))
    assert info.etag.endswith("-4")
    assert await read(origin, "files/large", 0, len(payload), info.etag) == payload


async def test_an_interrupted_upload_goes_on_with_the_parts_it_has(
    proxied: Origin, proxy: FaultProxy
) -> None:
    """The parts in the store are told by their bytes; a changed part is sent again."""
    payload = bytearray(random.Random(3).randbytes(4 * PART_BYTES))
    failure = OriginError("the process was killed here", is_retryable=False)
    with pytest.raises(OriginError, match="killed here"):
        await proxied.upload("f", BytesSource(bytes(payload), 3, failure), progress=lambda _: None)
    assert await proxied.head("f") is None
    payload[0] ^= 1
    since = len(proxy.requests)
    info = await proxied.upload("f", BytesSource(bytes(payload)), progress=lambda _: None)
    assert sent_parts(proxy, since) == [1, 4]
    assert await read(proxied, "f", 0, len(payload), info.etag) == bytes(payload)


async def test_a_changed_file_leaves_no_object_and_no_parts(
    proxied: Origin, proxy: FaultProxy
) -> None:
    payload = random.Random(4).randbytes(3 * PART_BYTES)
    failure = ChangedError("model.safetensors changed")
    with pytest.raises(ChangedError):
        await proxied.upload("f", BytesSource(payload, 2, failure), progress=lambda _: None)
    since = len(proxy.requests)
    await proxied.upload("f", BytesSource(payload), progress=lambda _: None)
    assert sent_parts(proxy, since) == [1, 2, 3]


async def test_a_wrong_secret_is_refused_and_not_shown(
    origin: Origin,
    bucket: str,
    seaweed: SeaweedServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    await origin.put_document("file", b"bytes")
    for name, value in seaweed.environment(secret_key="canary-wrong-secret").items():
        monkeypatch.setenv(name, value)
    stranger = open_origin(origin.url, settings=SETTINGS)
    with pytest.raises(AuthError, match=r"file: access is refused \(403 SignatureDoesNotMatch\)"):
        await stranger.read_document("file", limit_bytes=10)
    with pytest.raises(AuthError, match="SignatureDoesNotMatch"):
        await stranger.head("file")
    for canary in ("canary", "AKID", "Signature=", "X-Amz-"):
        assert canary not in caplog.text
    await stranger.aclose()


async def test_a_missing_bucket_is_named(bucket: str) -> None:
    origin = open_origin("s3://no-such-bucket/prefix", settings=SETTINGS)
    with pytest.raises(NotFoundError, match="bucket 'no-such-bucket'"):
        await origin.read_document("file", limit_bytes=10)
    await origin.aclose()


async def test_transient_failures_do_not_end_an_upload(proxied: Origin, proxy: FaultProxy) -> None:
    payload = random.Random(5).randbytes(2 * PART_BYTES)
    proxy.faults.append(
        Fault(method="PUT", for_requests=2, status=503, headers={"retry-after": "0"})
    )
    proxy.faults.append(Fault(method="POST", for_requests=1, status=500))
    info = await proxied.upload("f", BytesSource(payload), progress=lambda _: None)
    assert await read(proxied, "f", 0, len(payload), info.etag) == payload
