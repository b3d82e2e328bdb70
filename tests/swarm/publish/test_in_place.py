"""Objects that are published where they lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.errors import ChangedError, InputError
from swarm.origin.origin import Origin, open_origin
from swarm.protocol.locations import LOCATIONS_BYTES_MAX, decode_locations, locations_key
from swarm.protocol.manifest import KIB, decode_manifest
from swarm.publish.publish import publish
from swarm.publish.record import Phase, PublishOptions, PublishProgress
from tests.support.models import write_model

CB = 64 * KIB
OPTIONS = PublishOptions(chunk_bytes=CB, is_in_place=True)
SHARD = "model-00001-of-00002.safetensors"


def ignore(_: PublishProgress) -> None:
    pass


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    write_model(tmp_path / "bucket" / "m-7b")
    write_model(tmp_path / "bucket" / "m-7b-hf", seed=1)
    return tmp_path / "bucket"


def all_files(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def origin(bucket: Path) -> Origin:
    return open_origin(f"file://{bucket}")


@pytest.mark.parametrize("prefix", ["m-7b", "m-7b/", "/m-7b", "./m-7b/"])
async def test_only_documents_are_written(bucket: Path, origin: Origin, prefix: str) -> None:
    before = all_files(bucket)
    result = await publish(prefix, origin, OPTIONS, ignore)
    written = all_files(bucket) - before
    assert {path.name for path in written} == {"manifest", "locations"}
    assert result.uploaded_bytes == sum(path.stat().st_size for path in written)
    plain = await publish(
        str(bucket / "m-7b"), open_origin(f"file://{bucket.parent}/other"),
        PublishOptions(chunk_bytes=CB), ignore,
    )  # fmt: skip
    assert plain.version == result.version


async def test_a_chunk_lies_in_the_object_that_was_there(bucket: Path, origin: Origin) -> None:
    result = await publish("m-7b", origin, OPTIONS, ignore)
    key = locations_key(result.version)
    raw = await origin.read_document(key, limit_bytes=LOCATIONS_BYTES_MAX)
    manifest = decode_manifest(result.manifest_bytes)
    shard = next(i for i, file in enumerate(manifest.files) if file.path == SHARD)
    place = decode_locations(raw).place(manifest, manifest.file_chunks[shard][0])
    assert (place.key, place.offset) == (f"m-7b/{SHARD}", 0)


async def test_a_second_publication_writes_nothing(bucket: Path, origin: Origin) -> None:
    await publish("m-7b", origin, OPTIONS, ignore)
    again = await publish("m-7b", origin, OPTIONS, ignore)
    assert again.uploaded_bytes == 0


async def test_a_copy_of_a_version_published_in_place_is_not_sent(
    bucket: Path, origin: Origin
) -> None:
    await publish("m-7b", origin, OPTIONS, ignore)
    plain = PublishOptions(chunk_bytes=CB)
    again = await publish(str(bucket / "m-7b"), origin, plain, ignore)
    assert again.uploaded_bytes == 0


@pytest.mark.parametrize("phase", [Phase.HASH, Phase.UPLOAD])
async def test_an_object_replaced_on_the_way_is_named(
    bucket: Path, origin: Origin, phase: Phase
) -> None:
    def interfere(progress: PublishProgress) -> None:
        if progress.phase is phase:
            (bucket / "m-7b" / SHARD).write_bytes(b"other")

    with pytest.raises(ChangedError, match=f"{SHARD} changed"):
        await publish("m-7b", origin, OPTIONS, interfere)
    assert not (bucket / "versions").exists()


async def test_broken_objects_are_refused(bucket: Path, origin: Origin) -> None:
    (bucket / "m-7b" / SHARD).write_bytes(b"\x08\0\0")
    with pytest.raises(InputError, match="too short"):
        await publish("m-7b", origin, OPTIONS, ignore)


async def test_left_overs_and_own_objects_are_not_part_of_it(bucket: Path, origin: Origin) -> None:
    for name in (".git/HEAD", "sub/.cache/huggingface/x", "a.lock", "sub/empty.txt"):
        path = bucket / "m-7b" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    result = await publish("m-7b", origin, OPTIONS, ignore)
    assert result.files == 6
    assert [line.rule for line in result.skipped] == ["*.lock", ".cache/huggingface/", ".git/"]
    whole = await publish(".", origin, OPTIONS, ignore)
    paths = [file.path for file in decode_manifest(whole.manifest_bytes).files]
    assert not any(path.startswith(("files/", "versions/")) for path in paths)
    assert f"m-7b-hf/{SHARD}" in paths


@pytest.mark.parametrize("prefix", ["none", "m-7", "m-7b/config.json"])
async def test_a_prefix_that_holds_nothing_is_refused(origin: Origin, prefix: str) -> None:
    with pytest.raises(InputError, match="holds no objects"):
        await publish(prefix, origin, OPTIONS, ignore)


async def test_keys_that_no_manifest_may_hold_are_refused(bucket: Path, origin: Origin) -> None:
    (bucket / "m-7b" / "line\nbreak").touch()
    with pytest.raises(InputError, match="control character"):
        await publish("m-7b", origin, OPTIONS, ignore)
