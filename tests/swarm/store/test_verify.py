"""`verify_directory` names everything that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.errors import StoreError
from swarm.store.verify import verify_directory
from tests.support.caches import tamper
from tests.support.versions import MadeVersion

CHUNK = 64 << 10


@pytest.fixture
def directory(tmp_path: Path, made: MadeVersion) -> Path:
    for path, content in made.contents.items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return tmp_path


def test_a_whole_directory_passes(directory: Path, made: MadeVersion) -> None:
    (directory / "extra.txt").write_text("not ours to judge")
    assert verify_directory(str(directory), made.manifest) == ()


def test_every_damage_is_named(directory: Path, made: MadeVersion) -> None:
    tamper(directory / "model-1.safetensors", 3 * CHUNK + 7)
    tamper(directory / "model-1.safetensors", 5 * CHUNK)
    tamper(directory / "model-2.safetensors", 0)
    (directory / "config.json").unlink()
    (directory / "empty.txt").write_text("x")
    (directory / "sub" / "dir" / "notes.txt").unlink()
    (directory / "sub" / "dir" / "notes.txt").symlink_to("/etc/passwd")
    found = verify_directory(str(directory), made.manifest)
    assert [(one.path, one.offset, one.chunk is None) for one in found] == [
        ("config.json", 0, True),
        ("empty.txt", 0, True),
        ("model-1.safetensors", 3 * CHUNK, False),
        ("model-1.safetensors", 5 * CHUNK, False),
        ("model-2.safetensors", 0, False),
        ("sub/dir/notes.txt", 0, True),
    ]
    assert found[0].problem == "is not there"
    assert found[1].problem == "has 1 bytes, not 0"


def test_no_directory_is_an_error(tmp_path: Path, made: MadeVersion) -> None:
    with pytest.raises(StoreError, match="No such file"):
        verify_directory(str(tmp_path / "nowhere"), made.manifest)
