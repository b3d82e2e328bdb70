"""The files of a local directory, as a source to publish from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import trio

from swarm.origin.origin import Origin
from swarm.protocol.ids import FileDigest
from swarm.protocol.locations import Location
from swarm.protocol.manifest import FileEntry, Manifest
from swarm.publish.hashing import check_unchanged, hash_files
from swarm.publish.scan import SourceFile, scan
from swarm.publish.skip_rules import Skipped, SkipRules
from swarm.publish.source_reader import SourceReader, open_source
from swarm.publish.upload import Uploaded, upload_files


class DirectoryFiles:
    """What a scan found; a `Source`."""

    def __init__(
        self, origin: Origin, files: Mapping[str, SourceFile], skipped: tuple[Skipped, ...]
    ) -> None:
        self.sizes: Mapping[str, int] = {path: file.size for path, file in files.items()}
        self.skipped = skipped
        self._origin = origin
        self._files = files

    def open(self, path: str) -> AbstractContextManager[SourceReader]:
        return open_source(self._files[path])

    async def hash(
        self,
        data_starts: Mapping[str, int],
        chunk_bytes: int,
        progress: Callable[[int], None],
    ) -> list[FileEntry]:
        return await hash_files(list(self._files.values()), data_starts, chunk_bytes, progress)

    async def store(
        self,
        manifest: Manifest,
        known: Mapping[FileDigest, Location],
        progress: Callable[[int], None],
    ) -> Uploaded:
        return await upload_files(self._origin, manifest, self._files, known, progress)

    async def check_unchanged(self) -> None:
        await trio.to_thread.run_sync(check_unchanged, list(self._files.values()))


async def scan_directory(origin: Origin, directory: str, rules: SkipRules) -> DirectoryFiles:
    """Raises InputError, PermissionDeniedError, StoreError."""
    found = await trio.to_thread.run_sync(scan, directory, rules, trio.from_thread.check_cancelled)
    return DirectoryFiles(origin, {file.path: file for file in found.files}, found.skipped)
