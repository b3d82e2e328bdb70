"""Where the files of a version lie before it is published: a local directory, or the origin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from swarm.protocol.ids import FileDigest
from swarm.protocol.locations import Location
from swarm.protocol.manifest import FileEntry, Manifest
from swarm.publish.skip_rules import Skipped
from swarm.publish.source_reader import SourceReader
from swarm.publish.upload import Uploaded


class Source(Protocol):
    """A directory (`DirectoryFiles`) or a prefix of the origin (`BucketFiles`)."""

    # Bytes by path, sorted by path.
    sizes: Mapping[str, int]
    skipped: tuple[Skipped, ...]

    def open(self, path: str) -> AbstractContextManager[SourceReader]:
        """For validation, in a worker thread."""

    async def hash(
        self,
        data_starts: Mapping[str, int],
        chunk_bytes: int,
        progress: Callable[[int], None],
    ) -> list[FileEntry]:
        """Read and hash everything."""

    async def store(
        self,
        manifest: Manifest,
        known: Mapping[FileDigest, Location],
        progress: Callable[[int], None],
    ) -> Uploaded:
        """Make sure that every file is at the origin; `known` says where an earlier run put it."""

    async def check_unchanged(self) -> None:
        """Raises ChangedError if a file is no longer what was hashed."""
