"""Publishing to a real S3 server, and at the limits of a small machine."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio

from benchmarks.arena import place_for
from swarm.errors import ChangedError, OriginError
from swarm.origin.origin import MemorySink, Origin, open_origin
from swarm.protocol.locations import LOCATIONS_BYTES_MAX, decode_locations, locations_key
from swarm.protocol.manifest import KIB, MIB, decode_manifest
from swarm.publish.publish import publish
from swarm.publish.record import Phase, PublishOptions, PublishProgress
from tests.support.fault_proxy import Fault, FaultProxy, fault_proxy_in_thread
from tests.support.models import hub_snapshot, write_model
from tests.support.seaweed import SeaweedServer

pytestmark = pytest.mark.cluster

CB = 64 * KIB
PROCESS_TIMEOUT_S = 180
SHARD = "model-00001-of-00002.safetensors"


def ignore(_: PublishProgress) -> None:
    pass


@pytest.fixture
def proxy(seaweed: SeaweedServer) -> Iterator[FaultProxy]:
    with fault_proxy_in_thread(seaweed.endpoint) as running:
        yield running


@pytest.fixture
def url(bucket: str) -> str:
    return f"s3://{bucket}/w"


@pytest.fixture
async def origin(url: str) -> AsyncIterator[Origin]:
    opened = open_origin(url)
    yield opened
    await opened.aclose()


def run(directory: Path, url: str, *more: str, open_files: int | None = None) -> tuple[int, str]:
    """Publish in a process; (exit status, standard output)."""

    def limit() -> None:
        if open_files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

    command = [sys.executable, "-m", "tests.support.publish_process", str(directory), url, *more]
    finished = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        timeout=PROCESS_TIMEOUT_S,
        preexec_fn=limit,
        check=False,
        text=True,
    )
    return finished.returncode, finished.stdout


def put_bytes(proxy: FaultProxy) -> int:
    """Bytes of all bodies that were sent to the store."""
    return sum(
        int(request.headers.get("content-length", "0"))
        for request in proxy.requests
        if request.method == "PUT"
    )


async def keys(origin: Origin) -> list[str]:
    return [info.key async for info in origin.list_objects("")]


async def test_a_version_lies_whole_at_the_store_and_twice_sends_nothing(
    origin: Origin, tmp_path: Path
) -> None:
    blob = random.Random(1).randbytes(MIB)
    files = {"config.json": b"{}", "a.bin": blob, "b.bin": blob, "empty": b""}
    snapshot = hub_snapshot(tmp_path, files)
    result = await publish(str(snapshot), origin, PublishOptions(chunk_bytes=CB), ignore)
    assert len(await keys(origin)) == 4
    again = await publish(str(snapshot), origin, PublishOptions(chunk_bytes=CB), ignore)
    assert (again.version, again.uploaded_bytes) == (result.version, 0)
    assert again.reused_bytes == MIB + 2


async def test_a_killed_publication_goes_on_where_it_was(
    url: str, origin: Origin, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
    # The answer to a part takes a while, as over a network: the process dies amid parts.
    proxy.faults.append(Fault(method="PUT", target_part="partNumber", delay=0.2))
    directory = write_model(tmp_path / "m")
    (directory / "large.weights").write_bytes(random.Random(2).randbytes(160 * MIB))
    status, _ = await trio.to_thread.run_sync(run, directory, url, "0.6")
    assert status == -signal.SIGKILL
    first = put_bytes(proxy)
    assert not [key for key in await keys(origin) if "manifest" in key]
    proxy.requests.clear()
    status, out = await trio.to_thread.run_sync(run, directory, url)
    assert status == 0
    second = put_bytes(proxy)
    # 60 % of 162 MiB are stored, but for the parts in flight.
    assert first >= 96 * MIB
    assert second <= 162 * MIB - 96 * MIB + 4 * 16 * MIB
    outcome = json.loads(out)
    assert outcome["uploaded_bytes"] == second
    assert outcome["reused_bytes"] >= 96 * MIB - 4 * 16 * MIB
    names = await keys(origin)
    assert f"versions/{outcome['version']}/manifest" in names
    assert len([name for name in names if name.startswith("files/")]) == 6


async def test_reads_of_objects_published_in_place_are_conditional(
    origin: Origin, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "m")
    for path in model.iterdir():
        await origin.put_document(f"m-7b/{path.name}", path.read_bytes())
        await origin.put_document(f"m-7b-hf/{path.name}", b"a sibling's")
    options = PublishOptions(chunk_bytes=CB, is_in_place=True)
    result = await publish("m-7b", origin, options, ignore)
    plain = await publish(str(model), origin, PublishOptions(chunk_bytes=CB), ignore)
    assert (plain.version, plain.uploaded_bytes) == (result.version, 0)

    manifest = decode_manifest(result.manifest_bytes)
    raw = await origin.read_document(locations_key(result.version), limit_bytes=LOCATIONS_BYTES_MAX)
    shard = next(i for i, file in enumerate(manifest.files) if file.path == SHARD)
    place = decode_locations(raw).place(manifest, manifest.file_chunks[shard][0])
    assert place.etag
    await origin.put_document(place.key, (model / SHARD).read_bytes()[::-1])

    sink = MemorySink(place.length)
    with pytest.raises(OriginError):
        await origin.read_range(place.key, 0, place.length, etag=place.etag, sink=sink)
    assert sink.payload == bytes(place.length), "bytes of another object"
    # The replaced object is no safetensors file any more; the version is mended from elsewhere.
    mended = await publish(str(model), origin, PublishOptions(chunk_bytes=CB), ignore)
    assert mended.uploaded_bytes > manifest.files[shard].size


@pytest.mark.parametrize("phase", [Phase.HASH, Phase.UPLOAD])
async def test_an_object_replaced_while_it_is_published_in_place_is_named(
    origin: Origin, url: str, tmp_path: Path, phase: Phase
) -> None:
    model = write_model(tmp_path / "m")
    for path in model.iterdir():
        await origin.put_document(f"m/{path.name}", path.read_bytes())
    other = (model / SHARD).read_bytes()[::-1]

    async def replace() -> None:
        apart = open_origin(url)
        await apart.put_document(f"m/{SHARD}", other)
        await apart.aclose()

    def interfere(progress: PublishProgress) -> None:
        if progress.phase is phase and progress.done_bytes == 0:
            # In a loop of its own, so that it is done before publishing goes on.
            thread = threading.Thread(target=trio.run, args=(replace,))
            thread.start()
            thread.join(30)

    options = PublishOptions(chunk_bytes=CB, is_in_place=True)
    with pytest.raises(ChangedError, match=SHARD):
        await publish("m", origin, options, interfere)
    assert not [key for key in await keys(origin) if key.startswith("versions/")]


def test_twenty_thousand_small_files_with_few_descriptors() -> None:
    """In memory where that has room, for a disk takes as long as all the rest."""
    with tempfile.TemporaryDirectory(dir=place_for(512 * MIB)) as work:
        directory, origin = Path(work, "m"), Path(work, "origin")
        rng = random.Random(3)
        for index in range(20_000):
            path = directory / f"{index % 300:03}" / f"{index:05}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(rng.randbytes(rng.randint(10, 200)))
        url = f"file://{origin}"
        status, out = run(directory, url, open_files=256)
        assert status == 0
        outcome = json.loads(out)
        assert outcome["files"] == 20_000
        assert outcome["rss_bytes"] < 400 * MIB
        assert outcome["open_files"] < 200
        objects = sum(len(names) for _, _, names in os.walk(origin / "files"))
        assert objects == 20_000
