"""A directory as an origin: objects appear whole or not at all, and no key leads out of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from swarm.errors import (
    ChangedError,
    ConflictError,
    NotFoundError,
    OriginError,
    PermissionDeniedError,
    UsageError,
)
from swarm.origin.origin import MemorySink, Origin, open_origin


class Source:
    """`text` in parts of four bytes; changes at part `changing_index`."""

    part_bytes = 4

    def __init__(self, payload: bytes, changing_index: int = -1) -> None:
        self.size = len(payload)
        self._payload = payload
        self._changing_index = changing_index

    async def read_part(self, index: int) -> bytes:
        await trio.lowlevel.checkpoint()
        if index == self._changing_index:
            raise ChangedError("the file changed")
        return self._payload[4 * index : 4 * index + 4]


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return open_origin(f"file://{tmp_path}/or%20igin/")


def files_below(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


async def read(origin: Origin, key: str, offset: int, length: int) -> bytes:
    sink = MemorySink(length)
    await origin.read_range(key, offset, length, etag="of some other store", sink=sink)
    assert sink.room() == memoryview(b""), "bytes are missing"
    return bytes(sink.payload)


async def test_an_uploaded_object_is_read_in_ranges(origin: Origin, tmp_path: Path) -> None:
    done: list[int] = []
    info = await origin.upload("files/x", Source(b"0123456789"), progress=done.append)
    assert (info.key, info.size, done) == ("files/x", 10, [4, 4, 2])
    assert await read(origin, "files/x", 2, 7) == b"2345678"
    assert (tmp_path / "or igin" / "files" / "x").read_bytes() == b"0123456789"
    assert (await origin.upload("empty", Source(b""), progress=done.append)).size == 0


async def test_a_range_past_the_end_is_an_error(origin: Origin) -> None:
    await origin.put_document("x", b"0123456789")
    with pytest.raises(OriginError, match="ends at byte 10"):
        await read(origin, "x", 8, 4)


async def test_an_upload_that_fails_leaves_nothing(origin: Origin, tmp_path: Path) -> None:
    with pytest.raises(ChangedError):
        await origin.upload("files/x", Source(b"0123456789", 2), progress=lambda _: None)
    assert await origin.head("files/x") is None
    assert files_below(tmp_path) == []


async def test_create_only_keeps_what_is_there(origin: Origin) -> None:
    await origin.put_document("n/a", b"first", is_create_only=True)
    await origin.put_document("n/a", b"first", is_create_only=True)
    with pytest.raises(ConflictError):
        await origin.put_document("n/a", b"other", is_create_only=True)
    with pytest.raises(ConflictError):
        await origin.put_document("n/a", b"firs", is_create_only=True)
    assert await origin.read_document("n/a", limit_bytes=5) == b"first"
    await origin.put_document("n/a", b"other")
    assert await origin.read_document("n/a", limit_bytes=5) == b"other"


async def test_a_document_over_its_limit_is_refused(origin: Origin) -> None:
    await origin.put_document("n", b"12345")
    with pytest.raises(OriginError, match="larger than 4 bytes"):
        await origin.read_document("n", limit_bytes=4)
    with pytest.raises(NotFoundError, match="or igin/none does not exist"):
        await origin.read_document("none", limit_bytes=4)
    with pytest.raises(NotFoundError):
        await origin.read_document("n/below", limit_bytes=4)


async def test_a_prefix_is_text_and_unfinished_files_are_hidden(
    origin: Origin, tmp_path: Path
) -> None:
    for key in ("m-7b/x", "m-7b-hf/x", "m", "n/m-7b"):
        await origin.put_document(key, b"1")
    (tmp_path / "or igin" / "m-7b" / ".ab.unfinished").write_bytes(b"left over")
    assert [info.key async for info in origin.list_objects("m-7b")] == ["m-7b-hf/x", "m-7b/x"]
    assert [info.key async for info in origin.list_objects("m-7b/")] == ["m-7b/x"]
    assert [info.key async for info in origin.list_objects("none/")] == []
    assert len([info.key async for info in origin.list_objects("")]) == 4


@pytest.mark.parametrize("key", ["../x", "/etc/passwd", "a/../../x", "a//b", "", "a/./b", "a\0"])
async def test_a_key_cannot_lead_out(origin: Origin, key: str) -> None:
    with pytest.raises(OriginError, match="not a key"):
        await origin.read_document(key, limit_bytes=10)
    with pytest.raises(OriginError, match="not a key"):
        await origin.put_document(key, b"x")


async def test_a_refused_path_is_a_permission_error() -> None:
    """Nobody, root included, creates files in the kernel's own tree."""
    with pytest.raises(PermissionDeniedError, match="/sys/kernel/x"):
        await open_origin("file:///sys/kernel").put_document("x", b"1")


@pytest.mark.parametrize(
    "url", ["file://host/dir", "file:relative", "ftp://x/y", "/just/a/path", "s3://", "s3:///x"]
)
def test_what_is_no_origin_is_refused_without_secrets(url: str) -> None:
    with pytest.raises(UsageError):
        open_origin(url)
    with pytest.raises(UsageError) as caught:
        open_origin("gopher://user:canary@host/path?X-Amz-Signature=canary")
    assert "canary" not in caught.value.message
