"""`publish`, through the door that users use: what it prints, and how each refusal ends."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from pathlib import Path

import pytest

from tests.support.command_line import SWARM, call, environment, error_class, failure
from tests.support.models import M1, write_model

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    f"oid sha256:{'ab' * 32}\nsize 4976698672\n"
)  # fmt: skip
KEYS = ["version", "name", "tag", "files", "bytes", "chunks", "chunk_bytes", "uploaded_bytes"]
KEYS += ["seconds", "warnings"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    write_model(directory, M1)
    return directory


def publish(model: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    origin = ("--origin", f"file://{model.parent}/origin")
    return call("publish", str(model), *origin, "--chunk-size", "64KiB", *flags)


def test_a_version_is_printed_and_published_again_for_nothing(model: Path) -> None:
    first = publish(model)
    assert first.returncode == 0, first.stderr
    version = first.stdout.strip()
    assert (model.parent / "origin" / "versions" / version / "manifest").is_file()

    second = publish(model, "--json")
    document = json.loads(second.stdout)
    assert list(document) == KEYS
    assert (document["version"], document["uploaded_bytes"]) == (version, 0)
    assert document["chunk_bytes"] == 65536


def test_off_a_terminal_progress_is_lines(model: Path) -> None:
    result = publish(model)
    assert "hashing" in result.stderr
    assert not set("\r\x1b") & set(result.stderr)


def test_progress_json_keeps_stdout_for_the_result(model: Path) -> None:
    result = publish(model, "--progress", "json", "--json")
    assert json.loads(result.stdout)["files"]
    lines = [json.loads(line) for line in result.stderr.splitlines() if line.startswith("{")]
    assert {"scanning", "hashing", "uploading"} <= {line["phase"] for line in lines}
    assert all(0 <= line["percent"] <= 100 for line in lines)


def test_left_overs_are_named(model: Path) -> None:
    (model / ".git").mkdir()
    (model / ".git" / "HEAD").write_text("ref")
    result = publish(model)
    assert "skipped 1 files, 3 bytes: .git/" in result.stderr
    version = publish(model, "--include-hidden", "--json")
    assert json.loads(version.stdout)["version"] != result.stdout.strip()


def test_every_pointer_is_named_and_nothing_is_uploaded(model: Path) -> None:
    shards = sorted(model.glob("*.safetensors"))
    for shard in shards:
        shard.write_text(POINTER)
    result = publish(model, "--json")
    assert (result.returncode, error_class(result)) == (10, "E_INPUT")
    message = failure(result)["message"]
    assert "LFS pointer" in message
    assert all(shard.name in message for shard in shards)
    assert not list((model.parent / "origin").glob("files/*"))


def test_warnings_are_no_errors_until_strict(model: Path) -> None:
    (model / "pytorch_model.bin").write_bytes(pickle.dumps({"w": 1}))
    result = publish(model, "--json")
    assert result.returncode == 0
    warnings = json.loads(result.stdout)["warnings"]
    assert "pickle" in {warning["id"] for warning in warnings}
    assert "warning: pickle: " in result.stderr
    assert error_class(publish(model, "--strict")) == "E_INPUT"
    assert error_class(publish(model, "--forbid-pickle")) == "E_INPUT"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--chunk-size", "10G"), "E_USAGE"),
        (("--chunk-size", "1KiB"), "E_USAGE"),
        (("--chunk-size", "0"), "E_USAGE"),
        (("--name", "m"), "E_USAGE"),
        (("--tag", "m"), "E_USAGE"),
        (("--origin", "ftp://x/y"), "E_USAGE"),
        (("--origin", "http://127.0.0.1:1/y"), "E_USAGE"),
        (("--cluster-key-file", "/nonexistent/key", "--tracker", "http://127.0.0.1:1"), "E_AUTH"),
    ],
)
def test_refusals(model: Path, flags: tuple[str, ...], expected: str) -> None:
    assert error_class(publish(model, *flags)) == expected


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = publish(tmp_path / "gone")
    assert error_class(result) == "E_INPUT"
    assert str(tmp_path / "gone") in result.stderr


def test_a_fifo_does_not_block(model: Path) -> None:
    os.mkfifo(model / "pipe")
    assert error_class(publish(model)) == "E_INPUT"


def test_an_origin_may_come_from_the_environment(model: Path) -> None:
    result = subprocess.run(
        [*SWARM, "publish", str(model)],
        env=environment(SWARM_ORIGIN=f"file://{model.parent}/elsewhere"),
        capture_output=True,
        timeout=20,
    )
    assert result.returncode == 0
    assert (model.parent / "elsewhere" / "versions").is_dir()
