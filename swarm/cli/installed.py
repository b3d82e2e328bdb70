"""Versions as they lie on this node's disk, read without an agent and without its lock."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from swarm.errors import NotFoundError
from swarm.protocol.ids import VersionId
from swarm.protocol.manifest import Manifest, decode_manifest
from swarm.store.channels import ChannelLinks
from swarm.store.faults import faults_of
from swarm.store.opening import read_manifest
from swarm.store.readiness import is_ready
from swarm.store.tree import Tree


@dataclass(frozen=True, slots=True)
class Installed:
    """One version directory of a cache."""

    # 64 hex digits.
    version: str
    directory: str
    is_ready: bool
    # Bytes of its files, 0 while its manifest is missing; bytes that it takes on the disk.
    bytes: int
    disk_bytes: int
    # Channels whose link leads here.
    channels: tuple[str, ...]


def installed_manifest(directory: str) -> Manifest:
    """The manifest in a version's directory; raises NotFoundError, ManifestError."""
    with faults_of(directory):
        try:
            tree = Tree(directory)
        except (FileNotFoundError, NotADirectoryError):
            raw = None
        else:
            try:
                raw = read_manifest(tree)
            finally:
                tree.close()
    if raw is None:
        raise NotFoundError(
            f"{directory} holds no version: .swarm/manifest is not there",
            object_name=directory,
            hint="name the DIR of `swarm pull`, or CACHE/versions/<id>",
        )
    return decode_manifest(raw)


def installed_versions(cache: Path) -> list[Installed]:
    """Every version in a cache, by id; raises NotFoundError if there is no cache."""
    try:
        names = sorted(name for name in os.listdir(cache / "versions") if len(name) == 64)
    except OSError as error:
        raise NotFoundError(
            f"{cache} is no cache: {error.strerror}", object_name=str(cache), hint="see --cache"
        ) from error
    targets = _channel_targets(str(cache))
    found = []
    for name in names:
        directory = str(cache / "versions" / name)
        channels = tuple(
            channel
            for channel, target in targets.items()
            if target is not None and target.hex() == name
        )
        found.append(
            Installed(
                name,
                directory,
                is_ready(directory),
                _total_bytes(directory),
                _disk_bytes(directory),
                channels,
            )
        )
    return found


def _channel_targets(cache: str) -> dict[str, VersionId | None]:
    with faults_of(cache):
        tree = Tree(cache)
        try:
            links = ChannelLinks(tree)
            return {name: links.target(name) for name in links.names()}
        finally:
            tree.close()


def _total_bytes(directory: str) -> int:
    try:
        return installed_manifest(directory).total_bytes
    except NotFoundError:
        return 0


def _disk_bytes(directory: str) -> int:
    """What the directory takes; files shared with another version count in both."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except FileNotFoundError:
                continue  # An agent may be at work here.
    return total
