"""Read a whole version directory and compare it with its manifest; what `swarm verify` prints.

It believes nothing: no state byte, no READY. It changes nothing either.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import count

from swarm.protocol.ids import ChunkIndex
from swarm.protocol.manifest import Manifest
from swarm.store.byte_ranges import range_digest
from swarm.store.descriptors import Descriptors
from swarm.store.faults import faults_of
from swarm.store.hash_pool import map_parallel
from swarm.store.tree import Tree


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong."""

    path: str
    # None if it is the file as such: missing, or of another size.
    chunk: ChunkIndex | None
    offset: int
    problem: str


def verify_directory(directory: str, manifest: Manifest) -> tuple[Damage, ...]:
    """Everything wrong in `directory`, in the order of the manifest; empty if all is right.
    Raises StoreError if the directory cannot be read."""
    with faults_of(directory):
        tree = Tree(directory)
        try:
            return verify_files(tree, manifest, range(len(manifest.files)))
        finally:
            tree.close()


def verify_files(tree: Tree, manifest: Manifest, files: range | list[int]) -> tuple[Damage, ...]:
    """Check some files of a version by index; raises OSError."""
    wrong_size = {
        index: problem for index in files if (problem := _size_problem(tree, manifest, index))
    }
    descriptors = Descriptors()
    owner = next(_owners)

    def check(place: tuple[int, ChunkIndex, int]) -> Damage | None:
        index, chunk, offset = place
        path = manifest.files[index].path
        descriptor = descriptors.acquire((owner, index), lambda: tree.open(path, os.O_RDONLY))
        try:
            entry = manifest.chunks[chunk]
            digest = range_digest(descriptor.fd, offset, entry.length)
        finally:
            descriptors.release(descriptor)
        if digest == entry.digest:
            return None
        return Damage(path, chunk, offset, f"{entry.length} bytes have another digest")

    places = [
        place for index in files if index not in wrong_size for place in _cut(manifest, index)
    ]
    try:
        found = [damage for damage in map_parallel(check, places) if damage is not None]
    finally:
        descriptors.forget_owner(owner)
    sizes = [Damage(manifest.files[i].path, None, 0, text) for i, text in wrong_size.items()]
    return tuple(sorted([*sizes, *found], key=lambda damage: (damage.path, damage.offset)))


_owners = count()


def _size_problem(tree: Tree, manifest: Manifest, index: int) -> str:
    entry = manifest.files[index]
    size = tree.regular_size(entry.path)
    if size is None:
        return "is not there"
    return "" if size == entry.size else f"has {size} bytes, not {entry.size}"


def _cut(manifest: Manifest, index: int) -> list[tuple[int, ChunkIndex, int]]:
    """(file index, chunk, offset) of each chunk of a file."""
    places = []
    offset = 0
    for chunk in manifest.file_chunks[index]:
        places.append((index, chunk, offset))
        offset += manifest.lengths[chunk]
    return places
