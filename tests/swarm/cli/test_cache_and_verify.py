"""`cache` and `verify`: what lies on this node, without an agent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swarm.store.disk import DiskStore
from swarm.store.lock import ReaderLock
from tests.support.command_line import call, error_class, failure
from tests.support.versions import MadeVersion, fill, small_version


@pytest.fixture
def version() -> MadeVersion:
    return small_version(seed=1)


@pytest.fixture
def cache(tmp_path: Path, version: MadeVersion) -> Path:
    """One ready version and one that has half of its chunks."""
    partial = small_version(seed=2)
    with DiskStore.open_cache(str(tmp_path)) as store:
        for made, chunks in ((version, version.chunks), (partial, partial.chunks[:3])):
            opened = store.open_version(made.manifest, made.manifest_bytes)
            fill(opened, made, chunks)
            if len(chunks) == len(made.chunks):
                opened.publish_ready()
                opened.make_durable()
            opened.close()
    return tmp_path


def directory_of(cache: Path, version: MadeVersion) -> Path:
    return cache / "versions" / version.manifest.version.hex()


def test_list_tells_ready_from_partial(cache: Path, version: MadeVersion) -> None:
    result = call("cache", "list", "--cache", str(cache), "--json")
    found = {v["version"]: v for v in json.loads(result.stdout)["versions"]}
    assert len(found) == 2
    ready = found.pop(version.manifest.version.hex())
    assert ready["ready"] is True
    assert ready["bytes"] == version.manifest.total_bytes
    assert ready["disk_bytes"] >= version.manifest.unique_bytes
    (partial,) = found.values()
    assert partial["ready"] is False
    table = call("cache", "list", "--cache", str(cache)).stdout.splitlines()
    assert table[0].split()[:2] == ["VERSION", "STATE"]
    assert len(table) == 3


def test_evict_removes_one_version_and_no_other(cache: Path, version: MadeVersion) -> None:
    prefix = version.manifest.version.hex()[:12]
    result = call("cache", "evict", prefix, "--cache", str(cache), "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["freed_bytes"] > 0
    assert not directory_of(cache, version).exists()
    assert len(list((cache / "versions").iterdir())) == 1
    assert error_class(call("cache", "evict", prefix, "--cache", str(cache))) == "E_NOTFOUND"


def test_a_cache_with_an_agent_is_left_alone(cache: Path, version: MadeVersion) -> None:
    with DiskStore.open_cache(str(cache)):
        name = version.manifest.version.hex()
        assert error_class(call("cache", "evict", name, "--cache", str(cache))) == "E_LOCKED"
        assert call("cache", "list", "--cache", str(cache)).returncode == 0
    assert directory_of(cache, version).exists()


def test_what_a_process_reads_stays(cache: Path, version: MadeVersion) -> None:
    lock = ReaderLock(str(directory_of(cache, version)))
    name = version.manifest.version.hex()
    assert error_class(call("cache", "evict", name, "--cache", str(cache))) == "E_LOCKED"
    lock.release()


def test_what_a_channel_serves_stays(cache: Path, version: MadeVersion) -> None:
    with DiskStore.open_cache(str(cache)) as store:
        store.channels.point("prod", version.manifest.version)
    name = version.manifest.version.hex()
    result = call("cache", "evict", name, "--cache", str(cache))
    assert error_class(result) == "E_CONFLICT"
    assert "prod" in result.stderr
    assert "prod" in call("cache", "list", "--cache", str(cache)).stdout


def test_a_directory_that_is_no_cache_is_not_made_one(tmp_path: Path) -> None:
    for command in (("list",), ("evict", "ab" * 32)):
        result = call("cache", *command, "--cache", str(tmp_path / "typo"))
        assert error_class(result) == "E_NOTFOUND"
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize("way", ["directory", "reference", "channel"])
def test_a_right_version_is_right(cache: Path, version: MadeVersion, way: str) -> None:
    with DiskStore.open_cache(str(cache)) as store:
        store.channels.point("prod", version.manifest.version)
    targets = {
        "directory": (str(directory_of(cache, version)),),
        "reference": (version.manifest.version.hex()[:16], "--cache", str(cache)),
        "channel": ("channel:prod", "--cache", str(cache)),
    }
    result = call("verify", *targets[way], "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["ok"] is True
    assert document["version"] == version.manifest.version.hex()
    assert document["files"] == len(version.manifest.files)


def test_one_bit_is_found_and_named(cache: Path, version: MadeVersion) -> None:
    path = directory_of(cache, version) / "model-1.safetensors"
    content = bytearray(path.read_bytes())
    content[100_000] ^= 1
    path.write_bytes(content)
    (directory_of(cache, version) / "config.json").unlink()
    result = call("verify", str(directory_of(cache, version)), "--json")
    assert error_class(result) == "E_INTEGRITY"
    message = failure(result)["message"]
    assert "model-1.safetensors at 65536" in message
    assert "config.json is not there" in message


def test_a_directory_without_a_version_is_e_notfound(tmp_path: Path) -> None:
    assert error_class(call("verify", str(tmp_path))) == "E_NOTFOUND"
    assert error_class(call("verify", "ab" * 32, "--cache", str(tmp_path))) == "E_NOTFOUND"
    assert error_class(call("verify", "ab" * 32)) == "E_USAGE"


def test_a_damaged_manifest_is_e_manifest(cache: Path, version: MadeVersion) -> None:
    (directory_of(cache, version) / ".swarm" / "manifest").write_bytes(b"\xc1nonsense")
    result = call("verify", str(directory_of(cache, version)))
    assert error_class(result) == "E_MANIFEST"
