"""Open one version directory: find out what it holds, reuse what is near, and hand out a
`StoredVersion` whose state bytes, names and marks agree with each other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from blake3 import blake3

from swarm.errors import ConflictError
from swarm.protocol.ids import ChunkIndex
from swarm.protocol.manifest import MANIFEST_BYTES_MAX, Manifest
from swarm.store.descriptors import Descriptors
from swarm.store.disk_files import DiskFiles
from swarm.store.readiness import boot_id, device_of, is_ready, ready_at_ns
from swarm.store.recovery import Recovered, Recovery
from swarm.store.reuse import ReadyVersion, link_equal_files
from swarm.store.state_file import (
    HELD,
    MISSING,
    SavedState,
    StateHeader,
    StateTable,
    read_state,
)
from swarm.store.stored_version import StoredVersion
from swarm.store.tree import FILE_MODE, Tree
from swarm.store.verify import verify_files
from swarm.store.visibility import DiskVisibility

MANIFEST = ".swarm/manifest"
STATE = ".swarm/state"


@dataclass(frozen=True, slots=True)
class OpeningContext:
    """What a version takes from its store."""

    descriptors: Descriptors
    # What READY records as its writer.
    owner: str
    # The version lost its READY: channel links to it must go.
    on_withdrawn: Callable[[], None]
    # Ready versions to take equal files from.
    sources: Sequence[ReadyVersion]


def read_manifest(tree: Tree) -> bytes | None:
    """The manifest stored in a version directory; raises OSError."""
    return tree.read_file(MANIFEST, MANIFEST_BYTES_MAX)


def open_stored_version(
    directory: str, manifest: Manifest, manifest_bytes: bytes, context: OpeningContext
) -> StoredVersion:
    """Raises OSError, and ConflictError if the directory belongs to something else."""
    tree = Tree(directory)
    try:
        _store_manifest(tree, manifest, manifest_bytes)
        files = DiskFiles(tree, manifest, context.descriptors)
    except BaseException:
        tree.close()
        raise
    try:
        return _open(tree, files, manifest, context)
    except BaseException:
        files.close()
        raise


def _store_manifest(tree: Tree, manifest: Manifest, manifest_bytes: bytes) -> None:
    stored = read_manifest(tree)
    if stored == manifest_bytes:
        return
    if stored is not None and tree.regular_size(STATE) is not None:
        other = blake3(stored).hexdigest()
        raise ConflictError(
            f"{tree.path} holds version {other}",
            object_name=tree.path,
            hint="choose another directory; a published file is never overwritten",
        )
    _refuse_foreign_files(tree, manifest)
    tree.write_file(MANIFEST, manifest_bytes)


def _refuse_foreign_files(tree: Tree, manifest: Manifest) -> None:
    """Files that were here before us are taken over if they are right, and never replaced."""
    present = [
        index
        for index, entry in enumerate(manifest.files)
        if tree.regular_size(entry.path) is not None
    ]
    damage = verify_files(tree, manifest, present)
    if damage:
        raise ConflictError(
            f"{tree.path}/{damage[0].path} is another file than the version's"
            f" ({len({one.path for one in damage})} such files)",
            object_name=damage[0].path,
            hint="choose an empty directory",
        )


def _open(
    tree: Tree, files: DiskFiles, manifest: Manifest, context: OpeningContext
) -> StoredVersion:
    was_ready = is_ready(tree.path)
    linked = frozenset() if was_ready else link_equal_files(manifest, files, context.sources)
    fd = tree.create(STATE, FILE_MODE)
    trusted_at_ns = ready_at_ns(tree) if was_ready else os.fstat(fd).st_mtime_ns
    saved = read_state(fd, manifest.version, len(manifest.chunks))
    trusted = _trusted(tree, manifest, saved, was_ready=was_ready)
    header = _next_header(tree, manifest, saved, was_ready=was_ready)
    # Readers of an earlier state see at once that nothing else is sure any more.
    states = StateTable(header, trusted, fd)
    try:
        recovered = Recovery(
            manifest,
            files,
            trusted=trusted,
            trusted_at_ns=trusted_at_ns,
            linked=linked,
            keeps_inode=saved is not None and not header.is_published,
        ).run()
        _write_states(states, trusted, recovered)
        is_whole = len(recovered.held) == len(manifest.chunks)
        visibility = DiskVisibility(
            tree,
            manifest.version,
            context.owner,
            is_ready=was_ready and is_whole,
            on_withdrawn=context.on_withdrawn,
        )
        if was_ready and not is_whole:
            visibility.withdraw()
        return StoredVersion(manifest, tree.path, files, states, visibility, recovered.held)
    except BaseException:
        states.close(is_clean=False)
        raise


def _trusted(
    tree: Tree, manifest: Manifest, saved: SavedState | None, *, was_ready: bool
) -> frozenset[ChunkIndex]:
    if was_ready:
        return frozenset(ChunkIndex(chunk) for chunk in range(len(manifest.chunks)))
    if (
        saved is None
        or not saved.header.is_clean
        or saved.header.boot_id != boot_id()
        or saved.header.device != device_of(tree.fd)
    ):
        return frozenset()
    return frozenset(saved.held)


def _next_header(
    tree: Tree, manifest: Manifest, saved: SavedState | None, *, was_ready: bool
) -> StateHeader:
    """A new generation, unless the last run closed in order."""
    generation = 1
    is_published = was_ready
    if saved is not None:
        generation = saved.header.generation + (not saved.header.is_clean)
        is_published |= saved.header.is_published
    return StateHeader(
        boot_id=boot_id(),
        version=manifest.version,
        generation=generation,
        device=device_of(tree.fd),
        chunk_count=len(manifest.chunks),
        is_clean=False,
        is_published=is_published,
    )


def _write_states(states: StateTable, trusted: Iterable[ChunkIndex], recovered: Recovered) -> None:
    before = set(trusted)
    if recovered.has_moved:
        states.next_generation()
    for chunk in before - recovered.held:
        states.set_state(chunk, MISSING)
    for chunk in recovered.held - before:
        states.set_state(chunk, HELD)
