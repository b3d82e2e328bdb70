"""What must hold after every test that touches a cache, whatever happened in it.

Visible means whole (INV-VIS): no version is ready unless each byte of each file hashes to its
manifest and no file has a hole. Nothing outside (INV-SAFE): no path beside the cache was made,
changed or removed. Only resumable state (INV-NOPARTIAL): in a version that is not ready, whatever
has a final name is whole, and the rest lies under `.swarm`. No secrets (INV-SECRET): no key, token
or signature in anything written or printed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from swarm.protocol.manifest import Manifest, decode_manifest
from swarm.store.readiness import is_ready
from swarm.store.verify import verify_directory

# Path → (mode, size, mtime, link target): what a write, a chmod or a replacement changes.
Snapshot = Mapping[str, tuple[int, int, int, str]]
CACHE_NAMES = {"versions", "channels", "lock", "node"}
"""All that an agent keeps in its cache directory."""


def assert_visible_is_whole(cache: Path) -> None:
    """INV-VIS over every version of a cache, and every channel link."""
    for directory in version_directories(cache):
        if is_ready(str(directory)):
            manifest = stored_manifest(directory)
            assert manifest is not None, f"{directory} is ready and has no manifest"
            assert verify_directory(str(directory), manifest) == ()
            for entry in manifest.files:
                assert first_hole(directory / entry.path) == entry.size, entry.path
    for link in _channel_links(cache):
        assert is_ready(str(link.resolve())), f"{link} leads to a version that is not ready"


def assert_only_resumable(cache: Path) -> None:
    """INV-NOPARTIAL: what is visible by name is whole, the rest is under `.swarm`."""
    for directory in version_directories(cache):
        manifest = stored_manifest(directory)
        expected = {entry.path for entry in manifest.files} if manifest else set()
        present = set(named_files(directory))
        assert present <= expected, f"{directory}: {sorted(present - expected)}"
        if manifest is not None:
            damaged = {damage.path for damage in verify_directory(str(directory), manifest)}
            assert not damaged & present, f"{directory}: {sorted(damaged & present)}"


def snapshot_outside(root: Path, cache: Path) -> Snapshot:
    """Everything below `root` but the cache, links not followed."""
    found = {}
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if Path(directory, name) != cache]
        for name in (*names, *files):
            path = os.path.join(directory, name)
            status = os.lstat(path)
            target = os.readlink(path) if os.path.islink(path) else ""
            # A directory's size and time change when the cache itself appears in it.
            is_directory = os.path.isdir(path) and not target
            changed = 0 if is_directory else status.st_mtime_ns
            size = 0 if is_directory else status.st_size
            found[path] = (status.st_mode, size, changed, target)
    return found


def assert_nothing_outside(before: Snapshot, root: Path, cache: Path) -> None:
    """INV-SAFE against a snapshot taken before."""
    after = snapshot_outside(root, cache)
    made_on_the_way = {str(parent) for parent in cache.parents}
    differing = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    assert not differing - made_on_the_way, sorted(differing)


def assert_no_secret(secrets: Iterable[str], *places: str | bytes | Path) -> None:
    """INV-SECRET: none of `secrets` in these texts, files, or files below these directories."""
    for place in places:
        for name, content in _contents(place):
            for secret in secrets:
                assert secret, "an empty secret is everywhere"
                assert secret.encode() not in content, f"a secret is in {name}"


@contextmanager
def invariants(cache: Path) -> Iterator[None]:
    """All invariants of one cache around a test that ends in order."""
    root = cache.parent
    before = snapshot_outside(root, cache)
    yield
    assert_nothing_outside(before, root, cache)
    assert_visible_is_whole(cache)
    assert_only_resumable(cache)


def version_directories(cache: Path) -> list[Path]:
    """The versions of a cache, or the directory itself where one version was pulled into it."""
    versions = cache / "versions"
    if versions.is_dir():
        return sorted(path for path in versions.iterdir() if path.is_dir())
    return [cache] if (cache / ".swarm").is_dir() else []


def stored_manifest(directory: Path) -> Manifest | None:
    path = directory / ".swarm" / "manifest"
    return decode_manifest(path.read_bytes()) if path.exists() else None


def named_files(directory: Path) -> list[str]:
    """Relative paths of all files that a loader can see."""
    found = []
    for parent, names, files in os.walk(directory):
        if Path(parent) == directory and ".swarm" in names:
            names.remove(".swarm")
        found += [os.path.relpath(os.path.join(parent, name), directory) for name in files]
    return sorted(found)


def first_hole(path: Path) -> int:
    """Where the first hole is; the size where there is none."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return os.lseek(file.fileno(), 0, os.SEEK_HOLE) if size else 0


def _channel_links(cache: Path) -> list[Path]:
    channels = cache / "channels"
    return [path for path in channels.iterdir() if path.is_symlink()] if channels.is_dir() else []


def _contents(place: str | bytes | Path) -> Iterator[tuple[str, bytes]]:
    if isinstance(place, str):
        yield "a text", place.encode()
    elif isinstance(place, bytes):
        yield "a text", place
    elif place.is_file():
        yield str(place), place.read_bytes()
    else:
        for path in sorted(place.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield str(path), path.read_bytes()


def assert_case_invariants(root: Path, secrets: Iterable[str], *texts: str) -> None:
    """All of the above over everything below `root` after a case that used any number of caches,
    whether their agents ended in order or were killed. `texts` are outputs that no file has."""
    caches = find_caches(root)
    for cache in caches:
        assert_visible_is_whole(cache)
        assert_only_resumable(cache)
        strangers = {path.name for path in cache.iterdir()} - CACHE_NAMES
        assert (cache / ".swarm").is_dir() or not strangers, strangers
    # Each cache lies alone in what is there for caches.
    for parent in {cache.parent for cache in caches} - {root}:
        assert set(parent.iterdir()) <= {*caches}, sorted(parent.iterdir())
    files = [path for path in root.rglob("*") if path.is_file() and path.suffix != ".key"]
    assert_no_secret(secrets, *files, *texts)


def find_caches(root: Path) -> list[Path]:
    """Every cache and every pulled directory below `root`."""
    found = []
    for directory, names, _ in os.walk(root):
        locks = (Path(directory, "lock"), Path(directory, ".swarm", "lock"))
        if any(lock.exists() for lock in locks):
            found.append(Path(directory))
            names.clear()
    return sorted(found)
