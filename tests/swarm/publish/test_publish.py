"""From a directory to a version at a `file://` origin."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from blake3 import blake3

from swarm.errors import ChangedError, InputError, IntegrityError, UsageError
from swarm.origin.origin import MemorySink, ObjectInfo, Origin, PartSource, RangeSink, open_origin
from swarm.protocol.ids import ChunkIndex, VersionId
from swarm.protocol.locations import (
    LOCATIONS_BYTES_MAX,
    Locations,
    decode_locations,
    locations_key,
    manifest_key,
)
from swarm.protocol.manifest import KIB, MANIFEST_BYTES_MAX, MIB, Manifest, decode_manifest
from swarm.publish.publish import pick_chunk_bytes, publish
from swarm.publish.record import Phase, PublishOptions, PublishProgress, PublishResult
from swarm.publish.skip_rules import SkipRules
from swarm.publish.validate import ValidationRules
from tests.support.models import SAFETENSORS, hub_snapshot, write_model

CB = 64 * KIB
OPTIONS = PublishOptions(name="acme/tiny", tag="r1", chunk_bytes=CB, published_by="ci@host")


def ignore(_: PublishProgress) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Store:
    """An origin in a directory."""

    directory: Path
    origin: Origin

    def stored(self) -> set[str]:
        return {
            os.fspath(path.relative_to(self.directory))
            for path in self.directory.rglob("*")
            if path.is_file()
        }

    async def manifest(self, version: VersionId) -> Manifest:
        key = manifest_key(version)
        raw = await self.origin.read_document(key, limit_bytes=MANIFEST_BYTES_MAX)
        return decode_manifest(raw, version)

    async def locations(self, version: VersionId) -> Locations:
        key = locations_key(version)
        raw = await self.origin.read_document(key, limit_bytes=LOCATIONS_BYTES_MAX)
        return decode_locations(raw)

    async def fetch(self, version: VersionId) -> dict[str, bytes]:
        """Every file, put together from chunks that are checked."""
        manifest = await self.manifest(version)
        locations = await self.locations(version)
        files = {}
        for entry, chunks in zip(manifest.files, manifest.file_chunks, strict=True):
            files[entry.path] = b"".join(
                [await self._chunk(manifest, locations, chunk) for chunk in chunks]
            )
        return files

    async def _chunk(self, manifest: Manifest, locations: Locations, chunk: ChunkIndex) -> bytes:
        place = locations.place(manifest, chunk)
        sink = MemorySink(place.length)
        await self.origin.read_range(
            place.key, place.offset, place.length, etag=place.etag, sink=sink
        )
        assert blake3(sink.payload).digest() == manifest.chunks[chunk].digest
        return bytes(sink.payload)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    directory = tmp_path / "origin"
    directory.mkdir()
    origin = open_origin(f"file://{directory}")
    yield Store(directory, origin)
    await origin.aclose()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m")


def contents(directory: Path) -> dict[str, bytes]:
    return {
        os.fspath(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


async def test_what_is_published_is_what_was_there(store: Store, model: Path) -> None:
    result = await publish(str(model), store.origin, OPTIONS, ignore)
    assert await store.fetch(result.version) == contents(model)
    assert result.files == 5
    assert result.total_bytes == sum(len(content) for content in contents(model).values())
    stored = sum((store.directory / key).stat().st_size for key in store.stored())
    assert result.uploaded_bytes == stored
    manifest = await store.manifest(result.version)
    assert (result.chunks, result.chunk_bytes) == (len(manifest.chunks), CB)
    shard = next(entry for entry in manifest.files if entry.path.endswith("1-of-00002.safetensors"))
    assert shard.data_start % 8 == 0
    assert len(shard.digests) == 1 + 512 * KIB // CB


async def test_the_record_lies_beside_the_version(store: Store, model: Path) -> None:
    (model / "modeling_x.py").write_text("x = 1")
    (model / "x.bin").write_bytes(b"\x80\x04" + bytes(9))
    result = await publish(str(model), store.origin, OPTIONS, ignore)
    record = (await store.locations(result.version)).record
    assert record == result.record
    assert (record.name, record.tag, record.published_by) == ("acme/tiny", "r1", "ci@host")
    assert (record.version, record.origin) == (result.version, store.origin.url)
    assert (record.is_validated, record.contains_code) == (True, True)
    assert {warning_id for warning_id, _ in record.warnings} == {"pickle", "duplicate-format"}


async def test_phases_come_in_order_and_count_to_the_end(store: Store, model: Path) -> None:
    seen: list[PublishProgress] = []
    await publish(str(model), store.origin, OPTIONS, seen.append)
    phases = list(dict.fromkeys(progress.phase for progress in seen))
    assert phases == list(Phase)
    assert all(progress.done_bytes <= progress.total_bytes for progress in seen)


def copy_otherwise(source: Path, target: Path) -> Path:
    """The same files with other times and modes, made in another order."""
    target.mkdir(mode=0o700)
    for path in sorted(source.iterdir(), reverse=True):
        copy = target / path.name
        shutil.copyfile(path, copy)
        copy.chmod(0o600)
        os.utime(copy, ns=(1, 1))
    return target


async def test_a_second_publication_uploads_nothing(
    store: Store, model: Path, tmp_path: Path
) -> None:
    first = await publish(str(model), store.origin, OPTIONS, ignore)
    before = contents(store.directory)
    copy = copy_otherwise(model, tmp_path / "copy")
    again = PublishOptions(name="other", tag="r2", chunk_bytes=CB)
    second = await publish(str(copy), store.origin, again, ignore)
    assert second.version == first.version
    assert second.uploaded_bytes == 0
    assert contents(store.directory) == before
    # The tracker is told the new name nevertheless.
    assert (second.record.name, second.record.tag) == ("other", "r2")


async def test_a_version_that_shares_files_uploads_the_others(store: Store, model: Path) -> None:
    await publish(str(model), store.origin, OPTIONS, ignore)
    (model / "tokenizer.json").write_text('{"version": "2.0"}')
    second = await publish(str(model), store.origin, OPTIONS, ignore)
    assert 0 < second.uploaded_bytes < 4 * KIB
    assert await store.fetch(second.version) == contents(model)


async def test_a_hub_snapshot_becomes_regular_files(store: Store, tmp_path: Path) -> None:
    weights = SAFETENSORS["ok"]
    files = {"config.json": b"{}", "model.safetensors": weights, "copy.safetensors": weights}
    snapshot = hub_snapshot(tmp_path, files)
    result = await publish(str(snapshot), store.origin, OPTIONS, ignore)
    assert await store.fetch(result.version) == files
    objects = [key for key in store.stored() if key.startswith("files/")]
    assert len(objects) == 2
    assert sum((store.directory / key).stat().st_size for key in objects) == 2 + len(weights)


@pytest.mark.parametrize("names", [["special_tokens_map.json", "sub/.keep"], []])
async def test_empty_files_have_no_object(store: Store, tmp_path: Path, names: list[str]) -> None:
    directory = tmp_path / "m"
    if names:
        write_model(directory)
    for name in names or ["only", "empty/files"]:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()
    result = await publish(str(directory), store.origin, OPTIONS, ignore)
    assert await store.fetch(result.version) == contents(directory)
    assert all((store.directory / key).stat().st_size for key in store.stored())


async def test_nothing_is_uploaded_of_a_directory_that_is_refused(
    store: Store, model: Path
) -> None:
    shard = model / "model-00001-of-00002.safetensors"
    os.truncate(shard, shard.stat().st_size - 1)
    with pytest.raises(InputError, match="shorter than its header says"):
        await publish(str(model), store.origin, OPTIONS, ignore)
    assert store.stored() == set()
    rules = ValidationRules(is_enabled=False)
    options = PublishOptions(chunk_bytes=CB, validation=rules)
    result = await publish(str(model), store.origin, options, ignore)
    assert not result.record.is_validated
    assert await store.fetch(result.version) == contents(model)


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"y" * 4096)


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(random.Random(5).randbytes(path.stat().st_size))
    other.replace(path)


def truncate(path: Path) -> None:
    os.truncate(path, 10)


@pytest.mark.parametrize("phase", [Phase.HASH, Phase.UPLOAD])
@pytest.mark.parametrize("change", [append, overwrite, replace, truncate])
async def test_a_file_that_changes_is_named_and_nothing_exists(
    store: Store, model: Path, phase: Phase, change: Callable[[Path], None]
) -> None:
    path = model / "model-00002-of-00002.safetensors"
    done = False

    def interfere(progress: PublishProgress) -> None:
        nonlocal done
        if progress.phase is phase and not done:
            done = True
            change(path)

    with pytest.raises(ChangedError, match="model-00002-of-00002"):
        await publish(str(model), store.origin, OPTIONS, interfere)
    assert not any(key.endswith("manifest") for key in store.stored())
    shutil.rmtree(model)
    write_model(model)
    result = await publish(str(model), store.origin, OPTIONS, ignore)
    assert await store.fetch(result.version) == contents(model)


async def test_a_stored_file_that_changed_is_noticed_though_it_is_not_sent(
    store: Store, model: Path
) -> None:
    await publish(str(model), store.origin, OPTIONS, ignore)
    (model / "new.txt").write_text("new")

    def interfere(progress: PublishProgress) -> None:
        if progress.phase is Phase.UPLOAD and progress.done_bytes == 0:
            os.utime(model / "config.json", ns=(1, 1))

    with pytest.raises(ChangedError, match=r"config\.json"):
        await publish(str(model), store.origin, OPTIONS, interfere)


async def test_lost_objects_are_sent_again_by_a_repeat(store: Store, model: Path) -> None:
    result = await publish(str(model), store.origin, OPTIONS, ignore)
    lost = sorted(key for key in store.stored() if key.startswith("files/"))[0]
    (store.directory / lost).unlink()
    (store.directory / locations_key(result.version)).write_bytes(b"damaged")
    again = await publish(str(model), store.origin, OPTIONS, ignore)
    assert again.uploaded_bytes > 0
    assert await store.fetch(result.version) == contents(model)
    (store.directory / locations_key(result.version)).unlink()
    third = await publish(str(model), store.origin, OPTIONS, ignore)
    assert 0 < third.uploaded_bytes < 2 * KIB
    assert await store.fetch(result.version) == contents(model)


async def test_two_publishers_of_the_same_files_both_succeed(store: Store, model: Path) -> None:
    results: list[PublishResult] = []

    async def run() -> None:
        results.append(await publish(str(model), store.origin, OPTIONS, ignore))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        nursery.start_soon(run)
    assert results[0].version == results[1].version
    assert await store.fetch(results[0].version) == contents(model)


class AlteringOrigin:
    """A store that keeps a line of its own with every object, as a proxy that does not understand
    chunked uploads does; everything else is the real origin's."""

    is_writable = True

    def __init__(self, store: Store) -> None:
        self._store = store
        self.url = store.origin.url

    async def upload(
        self,
        key: str,
        source: PartSource,
        *,
        progress: Callable[[int], None],
        resumed: Callable[[int], None] | None = None,
    ) -> ObjectInfo:
        info = await self._store.origin.upload(key, source, progress=progress, resumed=resumed)
        append(self._store.directory / key)
        return info

    async def read_document(self, key: str, *, limit_bytes: int) -> bytes:
        return await self._store.origin.read_document(key, limit_bytes=limit_bytes)

    async def read_range(
        self, key: str, offset: int, length: int, *, etag: str | None, sink: RangeSink
    ) -> str:
        return await self._store.origin.read_range(key, offset, length, etag=etag, sink=sink)

    async def head(self, key: str) -> ObjectInfo | None:
        return await self._store.origin.head(key)

    def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self._store.origin.list_objects(prefix)

    async def put_document(self, key: str, payload: bytes, *, is_create_only: bool = False) -> None:
        await self._store.origin.put_document(key, payload, is_create_only=is_create_only)

    async def prepare(self) -> None:
        await self._store.origin.prepare()

    async def aclose(self) -> None:
        await self._store.origin.aclose()


async def test_a_store_that_alters_bytes_is_caught_before_the_version_exists(
    store: Store, model: Path
) -> None:
    with pytest.raises(IntegrityError, match="the store keeps"):
        await publish(str(model), AlteringOrigin(store), OPTIONS, ignore)
    assert all(key.startswith("files/") for key in store.stored())


async def test_more_files_than_are_asked_for_one_by_one(store: Store, tmp_path: Path) -> None:
    directory = tmp_path / "many"
    directory.mkdir()
    for index in range(510):
        (directory / f"{index:03}.txt").write_text(str(index))
    result = await publish(str(directory), store.origin, OPTIONS, ignore)
    assert result.files == 510
    assert await store.fetch(result.version) == contents(directory)
    again = await publish(str(directory), store.origin, OPTIONS, ignore)
    assert again.uploaded_bytes == 0


async def test_a_large_file_goes_in_parts(store: Store, tmp_path: Path) -> None:
    directory = tmp_path / "large"
    directory.mkdir()
    (directory / "x.weights").write_bytes(random.Random(3).randbytes(40 * MIB + 5))
    result = await publish(str(directory), store.origin, PublishOptions(), ignore)
    assert result.chunk_bytes == 256 * KIB
    assert await store.fetch(result.version) == contents(directory)


async def test_skipped_files_are_told(store: Store, model: Path) -> None:
    (model / ".DS_Store").write_bytes(b"12345")
    options = PublishOptions(chunk_bytes=CB, skip=SkipRules(excludes=("tokenizer*",)))
    result = await publish(str(model), store.origin, options, ignore)
    assert result.files == 4
    assert [str(line) for line in result.skipped] == [
        "skipped 1 files, 31 bytes: --exclude tokenizer*",
        "skipped 1 files, 5 bytes: .DS_Store",
    ]


async def test_a_chunk_size_out_of_bounds_is_refused(store: Store, model: Path) -> None:
    with pytest.raises(UsageError, match="chunk size"):
        await publish(str(model), store.origin, PublishOptions(chunk_bytes=CB - 1), ignore)


async def test_a_read_only_origin_is_refused(tmp_path: Path) -> None:
    origin = open_origin("https://models.example/w")
    with pytest.raises(UsageError, match="can only be read"):
        await publish(str(tmp_path), origin, OPTIONS, ignore)
    await origin.aclose()


@pytest.mark.parametrize(
    ("total_bytes", "previous", "chosen"),
    [
        (16_000_000_000, None, 4 * MIB),
        (16_000_000_000, MIB, MIB),
        (16_000_000_000, 256 * KIB, 4 * MIB),
        (16_000_000_000, 64 * MIB, 4 * MIB),
        (500 * MIB, MIB, MIB),
        (499 * MIB, MIB, MIB),
        (20_000 * MIB, MIB, MIB),
        (20_001 * MIB, MIB, 8 * MIB),
    ],
)
def test_an_earlier_chunk_size_is_kept_while_it_suits(
    total_bytes: int, previous: int | None, chosen: int
) -> None:
    assert pick_chunk_bytes(total_bytes, PublishOptions(previous_chunk_bytes=previous)) == chosen
    forced = PublishOptions(previous_chunk_bytes=previous, chunk_bytes=CB)
    assert pick_chunk_bytes(total_bytes, forced) == CB
