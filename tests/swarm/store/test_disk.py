"""The disk store as a whole: names, pulled directories, locks, space, many files."""

from __future__ import annotations

import os
import random
import resource
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from swarm.errors import (
    ConflictError,
    LockedError,
    NoSpaceError,
    PermissionDeniedError,
    StoreError,
    UsageError,
)
from swarm.protocol.ids import ChunkDigest
from swarm.protocol.manifest import (
    CHUNK_BYTES_MAX,
    FileEntry,
    cut_count,
    decode_manifest,
    encode_manifest,
)
from swarm.store.disk import DiskStore
from swarm.store.faults import free_bytes
from swarm.store.readiness import is_ready
from swarm.store.verify import verify_directory
from tests.support.caches import open_cache, open_made, part, rot
from tests.support.invariants import first_hole, named_files
from tests.support.versions import MadeVersion, chunk_list, fill, make_version, small_version

# Names and layout


def test_no_file_has_its_name_before_it_is_whole(cache: Path, made: MadeVersion) -> None:
    with open_cache(cache) as store:
        version = open_made(store, made)
        directory = Path(version.directory)
        for chunk in made.chunks:
            fill(version, made, [chunk])
            for path in named_files(directory):
                assert (directory / path).read_bytes() == made.contents[path]
            assert not is_ready(version.directory)
        assert named_files(directory) == sorted(made.contents)
        version.publish_ready()
        assert is_ready(version.directory)


def test_a_polling_reader_sees_only_whole_files(cache: Path, made: MadeVersion) -> None:
    """With a reader in a thread of its own, racing the renames."""
    is_over = threading.Event()
    wrong: list[str] = []

    def poll(directory: Path) -> None:
        while not is_over.is_set():
            wrong.extend(
                path
                for path in named_files(directory)
                if (directory / path).read_bytes() != made.contents[path]
            )

    with open_cache(cache) as store:
        version = open_made(store, made)
        reader = threading.Thread(target=poll, args=(Path(version.directory),))
        reader.start()
        fill(version, made)
        version.publish_ready()
        is_over.set()
        reader.join(10)
    assert wrong == []


def test_a_ready_directory_holds_the_files_and_no_hole(cache: Path, made: MadeVersion) -> None:
    with open_cache(cache) as store:
        version = open_made(store, made)
        fill(version, made)
        version.publish_ready()
        directory = Path(version.directory)
        for path, content in made.contents.items():
            assert first_hole(directory / path) == len(content)
        assert sorted(os.listdir(directory / ".swarm")) == ["READY", "manifest", "state"]
        assert {path.name for path in directory.rglob("*.safetensors")} == {
            "model-1.safetensors",
            "model-2.safetensors",
        }


def test_the_rename_keeps_the_inode(cache: Path, made: MadeVersion) -> None:
    path = "model-1.safetensors"
    index = [entry.path for entry in made.manifest.files].index(path)
    with open_cache(cache) as store:
        version = open_made(store, made)
        reader = version.open_file(index)
        inode = os.fstat(reader).st_ino
        assert part(version.directory, path).stat().st_ino == inode
        fill(version, made)
        assert Path(version.directory, path).stat().st_ino == inode
        assert os.pread(reader, 1 << 20, 0) == made.contents[path]
        os.close(reader)


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    made = make_version({"bin/run.sh": b"#!", "w.bin": b"w"}, executable=frozenset({"bin/run.sh"}))
    before = os.umask(0o077)
    try:
        with open_cache(tmp_path / "deep" / "cache") as store:
            version = open_made(store, made)
            fill(version, made)
            version.publish_ready()
            directory = Path(version.directory)
            modes = {
                str(path.relative_to(directory)): stat.S_IMODE(path.stat().st_mode)
                for path in directory.rglob("*")
                if ".swarm" not in path.parts
            }
            assert modes == {"bin": 0o755, "bin/run.sh": 0o755, "w.bin": 0o644}
            for parent in (directory, directory.parent, tmp_path / "deep" / "cache"):
                assert stat.S_IMODE(parent.stat().st_mode) == 0o755
            for mark in ("manifest", "state", "READY"):
                assert stat.S_IMODE((directory / ".swarm" / mark).stat().st_mode) == 0o644
    finally:
        os.umask(before)


def test_a_version_of_empty_files_is_ready_at_once(cache: Path) -> None:
    made = make_version({"a": b"", "sub/.keep": b""})
    with open_cache(cache) as store:
        version = open_made(store, made)
        version.publish_ready()
        assert named_files(Path(version.directory)) == ["a", "sub/.keep"]


def test_no_link_leads_out_of_the_version(cache: Path, made: MadeVersion, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    with open_cache(cache) as store:
        version = open_made(store, made)
        Path(version.directory, "sub").symlink_to(outside)
        with pytest.raises(StoreError):
            fill(version, made)
        Path(version.directory, "sub").unlink()
        for writer_chunk in made.chunks:
            if writer_chunk not in version.have:
                fill(version, made, [writer_chunk])
        version.publish_ready()
    assert list(outside.iterdir()) == []


# A single directory (pull)


def test_a_pulled_directory_holds_the_files_and_dot_swarm(
    tmp_path: Path, made: MadeVersion
) -> None:
    directory = tmp_path / "model"
    with DiskStore.open_directory(str(directory)) as store:
        version = open_made(store, made)
        fill(version, made)
        version.publish_ready()
        assert store.versions() == (made.manifest.version,)
        with pytest.raises(LockedError):
            DiskStore.open_directory(str(directory))
        with pytest.raises(UsageError):
            store.evict(made.manifest.version)
    assert sorted(os.listdir(directory)) == sorted(
        {path.split("/")[0] for path in made.contents} | {".swarm"}
    )
    assert os.listdir(tmp_path) == ["model"]


def test_a_directory_with_another_version_is_refused(tmp_path: Path, made: MadeVersion) -> None:
    with DiskStore.open_directory(str(tmp_path)) as store:
        fill(open_made(store, made), made)
    other = small_version(1)
    with (
        DiskStore.open_directory(str(tmp_path)) as store,
        pytest.raises(ConflictError, match=made.manifest.version.hex()),
    ):
        open_made(store, other)
    assert verify_directory(str(tmp_path), made.manifest) == ()


def test_foreign_files_are_taken_over_if_right_and_never_replaced(
    tmp_path: Path, made: MadeVersion
) -> None:
    (tmp_path / "config.json").write_bytes(made.contents["config.json"])
    (tmp_path / "model-1.safetensors").write_bytes(b"mine")
    with DiskStore.open_directory(str(tmp_path)) as store:
        with pytest.raises(ConflictError, match=r"model-1\.safetensors"):
            open_made(store, made)
        assert (tmp_path / "model-1.safetensors").read_bytes() == b"mine"
        (tmp_path / "model-1.safetensors").unlink()
        version = open_made(store, made)
        assert len(version.have) == 1
        fill(version, made)
        version.publish_ready()


# Permissions, locks and space


def test_an_unwritable_place_names_path_and_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # Root may write everywhere.
    try:
        with pytest.raises(PermissionDeniedError, match=rf"{tmp_path}/cache: .*\(uid \d+\)"):
            open_cache(tmp_path / "cache")
    finally:
        if user == 0:
            os.seteuid(0)


def test_a_second_agent_is_told_who_holds_the_cache(cache: Path, made: MadeVersion) -> None:
    with open_cache(cache) as store:
        with pytest.raises(LockedError, match=f"pid {os.getpid()} "):
            open_cache(cache)
        open_made(store, made)
    open_cache(cache).close()


def test_space_is_checked_before_the_first_chunk(tmp_path: Path, made: MadeVersion) -> None:
    """A version larger than the disk, by the length of a sparse file that nobody wrote."""
    huge = make_huge_version(free_bytes(str(tmp_path)) + (1 << 30))
    with open_cache(tmp_path / "a" / "b" / "cache") as store:
        with pytest.raises(NoSpaceError, match=r"needs \d+ bytes, free \d+ at /"):
            open_made(store, huge)
        fill(open_made(store, made), made)


def test_the_second_fetch_sees_the_firsts_reservation(tmp_path: Path) -> None:
    half = free_bytes(str(tmp_path)) * 2 // 3
    with open_cache(tmp_path / "cache") as store:
        first = open_made(store, make_huge_version(half))
        with pytest.raises(NoSpaceError, match="reserved"):
            open_made(store, make_huge_version(half + 1))
        first.close()
        open_made(store, make_huge_version(half + 1)).close()


def make_huge_version(size: int) -> MadeVersion:
    """A manifest over `size` bytes that exist nowhere."""
    count = cut_count(size, 0, CHUNK_BYTES_MAX)
    digests = tuple(ChunkDigest(index.to_bytes(32, "big")) for index in range(count))
    entry = FileEntry("huge.bin", size, is_executable=False, data_start=0, digests=digests)
    raw = encode_manifest([entry], CHUNK_BYTES_MAX)
    return MadeVersion(decode_manifest(raw), raw, {})


@pytest.mark.root
def test_a_full_disk_is_named_and_the_download_resumes(tmp_path: Path) -> None:
    """On a tmpfs of 1 MiB with ballast; needs the right to mount."""
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], check=True, timeout=10
    )
    try:
        made = make_version({"w.bin": random.Random(1).randbytes(700_000)})
        with open_cache(mount / "cache") as store:
            version = open_made(store, made)
            fill(version, made, made.chunks[:6])
            ballast = mount / "ballast"
            with ballast.open("wb") as file, pytest.raises(OSError, match="No space"):
                file.write(bytes(1 << 20))
            with pytest.raises(NoSpaceError, match=r"needs \d+ bytes, free 0 at .*/small"):
                fill(version, made)
            assert len(version.have) == 6
            ballast.unlink()
            # The same handle goes on.
            fill(version, made)
            version.publish_ready()
            assert verify_directory(version.directory, made.manifest) == ()
    finally:
        subprocess.run(["umount", str(mount)], check=True, timeout=10)


# Many files


@pytest.mark.parametrize(
    "count", [2_000, pytest.param(20_000, marks=pytest.mark.cluster, id="20000")]
)
def test_many_files_and_few_descriptors(count: int) -> None:
    """With `ulimit -n 256`, in a process of its own so that the limit ends with it; in memory
    where the machine has /dev/shm, for making the files is most of the time."""
    program = """
import os, sys
from swarm.store.disk import DiskStore
from swarm.store.verify import verify_directory
from tests.support.versions import fill, make_version
made = make_version({f"dir{n % 300:03}/file{n:05}.txt": b"%d" % n for n in range(int(sys.argv[2]))})
for attempt in range(2):
    with DiskStore.open_cache(sys.argv[1]) as store:
        version = store.open_version(made.manifest, made.manifest_bytes)
        fill(version, made, made.chunks[::2] if attempt == 0 else None)
        if attempt == 1:
            version.publish_ready()
        assert len(os.listdir("/proc/self/fd")) < 100
assert verify_directory(version.directory, made.manifest) == ()
"""
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=place) as directory:
        done = subprocess.run(
            [sys.executable, "-c", program, f"{directory}/cache", str(count)],
            cwd=Path(__file__).parents[3],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)),
            timeout=120,
            capture_output=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()


def test_with_a_removed_file_all_its_chunks_are_lost_at_once(cache: Path) -> None:
    """Nothing of a new file under the old name may pass for what was held in the old one."""
    made = small_version()
    with open_cache(cache) as store:
        version = open_made(store, made)
        fill(version, made)
        version.publish_ready()
        Path(version.directory, "model-1.safetensors").unlink()
        index = [entry.path for entry in made.manifest.files].index("model-1.safetensors")
        inside = [
            chunk
            for chunk in chunk_list(made)
            if any(p.file_index == index for p in made.manifest.chunks[chunk].positions)
        ]
        assert not version.verify_chunk(inside[0])
        assert not version.is_ready
        assert not set(inside) & set(version.have)
        assert len(version.have) == len(made.chunks) - len(inside)
        fill(version, made)
        version.publish_ready()
        assert verify_directory(version.directory, made.manifest) == ()
        version.close()


def test_a_repair_during_a_flush_is_not_called_durable(
    cache: Path, made: MadeVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was flushed before a chunk was written anew does not speak for that chunk."""
    with open_cache(cache) as store:
        version = open_made(store, made)
        fill(version, made)
        version.publish_ready()
        sync = version._files.sync

        def repaired_after_sync() -> None:
            sync()
            rot(Path(version.directory, "model-1.safetensors"), 70_000)
            lost = [chunk for chunk in list(version.have) if not version.verify_chunk(chunk)]
            assert lost
            fill(version, made)
            version.publish_ready()

        with monkeypatch.context() as patched:
            patched.setattr(version._files, "sync", repaired_after_sync)
            version.make_durable()
        durable = Path(version.directory, ".swarm", "DURABLE")
        assert version.is_ready
        assert not durable.exists()
        version.make_durable()
        assert durable.exists()
        version.close()
