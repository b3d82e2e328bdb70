"""What is found in a directory, and what is refused."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm.errors import InputError, PermissionDeniedError
from swarm.publish.scan import NAMED_MAX, Scan, scan
from swarm.publish.skip_rules import SkipRules
from tests.support.models import hub_snapshot, write_model

M1_NAMES = [
    "config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
]


def look(directory: Path, *excludes: str, includes_hidden: bool = False) -> Scan:
    return scan(str(directory), SkipRules(excludes, includes_hidden), lambda: None)


def names(found: Scan) -> list[str]:
    return [file.path for file in found.files]


def fill(directory: Path, *paths: str) -> None:
    for path in paths:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(path.encode())


def test_a_hub_snapshot_is_read_through_its_links(tmp_path: Path) -> None:
    snapshot = hub_snapshot(tmp_path, {"config.json": b"{}", "sub/a.bin": b"x", "b.bin": b"x"})
    found = look(snapshot)
    assert names(found) == ["b.bin", "config.json", "sub/a.bin"]
    assert [file.size for file in found.files] == [1, 2, 1]


def test_a_link_within_the_directory_is_followed(tmp_path: Path) -> None:
    fill(tmp_path, "real/a.bin")
    (tmp_path / "also.bin").symlink_to("real/a.bin")
    (tmp_path / "other").symlink_to("real")
    assert names(look(tmp_path)) == ["also.bin", "other/a.bin", "real/a.bin"]


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "/dev/null", "../outside-2/x"])
def test_a_link_that_leads_out_is_refused(tmp_path: Path, target: str) -> None:
    directory = tmp_path / "outside-"
    fill(directory, "config.json")
    fill(tmp_path, "outside", "outside-2/x")
    (directory / "leak.bin").symlink_to(target)
    with pytest.raises(InputError, match=r"'leak.bin' is a link to .*, outside the directory"):
        look(directory)


def test_a_snapshot_may_not_reach_another_repository(tmp_path: Path) -> None:
    snapshot = hub_snapshot(tmp_path, {"config.json": b"{}"})
    fill(tmp_path, "models--acme--tiny-2/blobs/x")
    (snapshot / "x").symlink_to(tmp_path / "models--acme--tiny-2/blobs/x")
    with pytest.raises(InputError, match="outside the directory"):
        look(snapshot)


def test_a_link_to_nothing_and_a_circle_are_refused_together(tmp_path: Path) -> None:
    (tmp_path / "gone.bin").symlink_to("blobs/none")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "circle").symlink_to("..")
    (tmp_path / "self").symlink_to("self")
    with pytest.raises(InputError) as caught:
        look(tmp_path)
    assert "'gone.bin' is a link to" in caught.value.message
    assert "'deep/circle' is a link to a directory above it" in caught.value.message
    assert "'self' is a link to" in caught.value.message


def test_left_overs_are_skipped_and_counted_by_rule(tmp_path: Path) -> None:
    write_model(tmp_path)
    fill(tmp_path, *(f".git/objects/{i:03}" for i in range(200)))
    fill(tmp_path, ".cache/huggingface/download/a.lock", ".DS_Store", "x.aria2", "sub/y.lock")
    fill(tmp_path, "model-00001-of-00002.safetensors.incomplete", ".swarm/state")
    found = look(tmp_path)
    assert names(found) == M1_NAMES
    counts = {skipped.rule: skipped.files for skipped in found.skipped}
    assert counts == {
        ".git/": 200, ".cache/huggingface/": 1, ".DS_Store": 1, "*.aria2": 1, "*.lock": 1,
        "*.incomplete": 1, ".swarm/": 1,
    }  # fmt: skip
    git = next(skipped for skipped in found.skipped if skipped.rule == ".git/")
    assert str(git) == f"skipped 200 files, {200 * len('.git/objects/000')} bytes: .git/"


def test_include_hidden_restores_all_but_our_own(tmp_path: Path) -> None:
    fill(tmp_path, ".git/HEAD", "sub/.git/HEAD", ".DS_Store", "a.lock", ".swarm/x", "sub/.Swarm/x")
    found = look(tmp_path, includes_hidden=True)
    assert names(found) == [".DS_Store", ".git/HEAD", "a.lock", "sub/.git/HEAD"]
    assert [skipped.rule for skipped in found.skipped] == [".swarm/"]


def test_nothing_else_is_skipped(tmp_path: Path) -> None:
    kept = [".gitattributes", ".cache/other/x", "git/HEAD", "x.lock.json", ".env", "README.md~"]
    fill(tmp_path, *kept)
    assert names(look(tmp_path)) == sorted(kept)


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("original/*", ["a.bin", "b/c.bin", "original.txt"]),
        ("original", ["a.bin", "b/c.bin", "original.txt"]),
        ("original/", ["a.bin", "b/c.bin", "original.txt"]),
        ("*.bin", ["original.txt", "original/x.pth"]),
        ("a.bin", ["b/c.bin", "original.txt", "original/x.pth"]),
        ("none/*", ["a.bin", "b/c.bin", "original.txt", "original/x.pth"]),
    ],
)
def test_an_exclude_drops_exactly_what_it_names(
    tmp_path: Path, pattern: str, left: list[str]
) -> None:
    fill(tmp_path, "a.bin", "b/c.bin", "original/x.pth", "original.txt")
    assert names(look(tmp_path, pattern)) == left


def test_nested_and_alike_names_keep_their_paths(tmp_path: Path) -> None:
    paths = ["model/model/model.ckpt", "model2.txt", "unet/config.json", "vae/config.json"]
    fill(tmp_path, *paths)
    (tmp_path / "empty" / "inside").mkdir(parents=True)
    assert names(look(tmp_path)) == paths


def test_executable_bit_and_empty_files_are_seen(tmp_path: Path) -> None:
    fill(tmp_path, "run.sh")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / ".keep").touch()
    keep, run = sorted(look(tmp_path).files, key=lambda file: file.size)
    assert (keep.path, keep.size, keep.is_executable) == ("sub/.keep", 0, False)
    assert run.is_executable


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """A socket's path may have 107 bytes, and an ordinary user must be able to come here."""
    directory = Path(tempfile.mkdtemp(prefix="scan-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def test_special_files_are_refused_without_waiting_for_them(short_directory: Path) -> None:
    fill(short_directory, "config.json")
    os.mkfifo(short_directory / "pipe.safetensors")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_directory / "agent.sock"))
        with pytest.raises(InputError) as caught:
            look(short_directory)
    assert "'pipe.safetensors' is a named pipe" in caught.value.message
    assert "'agent.sock' is a socket" in caught.value.message


def test_all_unreadable_files_are_named(short_directory: Path) -> None:
    fill(short_directory, "a.safetensors", "b.safetensors", "closed/c.bin")
    (short_directory / "b.safetensors").chmod(0)
    (short_directory / "closed").chmod(0)
    own = os.geteuid()
    if own == 0:
        os.seteuid(65534)  # Root reads everything.
    try:
        with pytest.raises(PermissionDeniedError) as caught:
            look(short_directory)
    finally:
        if own == 0:
            os.seteuid(own)
        (short_directory / "closed").chmod(0o755)
    assert caught.value.message == "permission denied: b.safetensors; closed"


def test_names_that_no_manifest_may_hold_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, "config.json", "line\nbreak", ".swarm")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/latin-\xe9")).touch()
    with pytest.raises(InputError) as caught:
        look(tmp_path)
    assert "'line\\nbreak' holds a control character" in caught.value.message
    assert "'latin-\\udce9' is not UTF-8" in caught.value.message
    assert "'.swarm' lies in .swarm" in caught.value.message
    assert caught.value.message.isascii()


def test_a_thousand_faults_make_one_short_message(tmp_path: Path) -> None:
    for index in range(NAMED_MAX + 950):
        (tmp_path / f"{index:04}").symlink_to("nowhere")
    with pytest.raises(InputError, match="and 950 more"):
        look(tmp_path)


@pytest.mark.parametrize("name", ["", "none", "file"])
def test_a_directory_with_nothing_to_publish_is_refused(tmp_path: Path, name: str) -> None:
    if name == "file":
        (tmp_path / name).touch()
    with pytest.raises(InputError):
        look(tmp_path / name)
