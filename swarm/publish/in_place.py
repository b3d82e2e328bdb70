"""Publishes objects that already lie in the bucket, where they lie.

Their keys below a prefix are the paths of the version. They are read once, through the network, to
be hashed, and nothing is copied: manifest and locations are all that is written. The objects belong
to somebody else, so each is bound to its ETag where the store has them: every read, now and by any
agent later, is conditional, and an object that was replaced fails instead of mixing two versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import trio
from blake3 import blake3

from swarm.errors import InputError, OriginError
from swarm.origin.origin import ObjectInfo, Origin
from swarm.protocol.ids import ChunkDigest, FileDigest
from swarm.protocol.locations import Location
from swarm.protocol.manifest import FileEntry, Manifest, cut
from swarm.protocol.paths import path_problem
from swarm.publish.crew import work_through
from swarm.publish.scan import NAMED_MAX
from swarm.publish.skip_rules import Skipped, SkipRules, SkipTally
from swarm.publish.source_reader import OriginReader, SourceReader, changed
from swarm.publish.upload import Uploaded, is_stored, stored_objects

CONNECTIONS = 8
"""Chunks read at the same time. A connection to S3 gives about 90 MB/s, so eight fill 5 Gbit/s;
each holds one read, not one chunk, in memory."""
HASH_BYTES = 1 << 20  # One visit to a thread; it costs 0.1 ms, hashing this 0.2 ms.
_OWN_PREFIXES = ("files/", "versions/")


class BucketFiles:
    """The objects below a prefix, as files of a version."""

    def __init__(
        self,
        origin: Origin,
        start: str,
        objects: Mapping[str, ObjectInfo],
        skipped: tuple[Skipped, ...],
    ) -> None:
        # By path, sorted.
        self.objects = objects
        self.sizes: Mapping[str, int] = {path: info.size for path, info in objects.items()}
        self.skipped = skipped
        self._origin = origin
        self._start = start

    @contextmanager
    def open(self, path: str) -> Iterator[SourceReader]:
        """For validation, in a worker thread."""
        yield OriginReader(path, self._origin, self.objects[path])

    async def hash(
        self,
        data_starts: Mapping[str, int],
        chunk_bytes: int,
        progress: Callable[[int], None],
    ) -> list[FileEntry]:
        """The manifest's entries. Raises ChangedError if an object was replaced, OriginError."""
        digests: dict[str, list[ChunkDigest]] = {}
        jobs: list[tuple[str, int, int, int]] = []
        for path, info in self.objects.items():
            spans = cut(info.size, data_starts[path], chunk_bytes)
            digests[path] = [ChunkDigest(b"")] * len(spans)
            jobs += [(path, number, *span) for number, span in enumerate(spans)]

        async def hash_one(job: tuple[str, int, int, int]) -> None:
            path, number, offset, length = job
            digests[path][number] = await self._hash_span(path, offset, length)
            progress(length)

        await work_through(jobs, hash_one, at_once=CONNECTIONS)
        return [
            FileEntry(path, info.size, False, data_starts[path], tuple(digests[path]))
            for path, info in self.objects.items()
        ]

    async def store(
        self,
        manifest: Manifest,
        known: Mapping[FileDigest, Location],
        progress: Callable[[int], None],
    ) -> Uploaded:
        """Nothing is sent. Locations of an earlier publication stay if their objects do."""
        stored = await stored_objects(self._origin, {place.key for place in known.values()})
        if known and all(is_stored(place, stored.get(place.key)) for place in known.values()):
            return Uploaded(known, 0, manifest.total_bytes)
        found: dict[FileDigest, Location] = {}
        for digest, entry in zip(manifest.file_digests, manifest.files, strict=True):
            info = self.objects[entry.path]
            if entry.size:
                # The first of equal files.
                found.setdefault(digest, Location(info.key, info.size, info.etag or None))
        progress(manifest.total_bytes)
        return Uploaded(found, 0, manifest.total_bytes)

    async def check_unchanged(self) -> None:
        """List again: a store without ETags (a directory) tells a replaced object only here, and
        only by its size; whatever else changed fails by its digest when it is read."""
        now = {info.key: info async for info in self._origin.list_objects(self._start)}
        for path, info in self.objects.items():
            if now.get(info.key) != info:
                raise changed(path, "the object was replaced or removed")

    async def _hash_span(self, path: str, offset: int, length: int) -> ChunkDigest:
        sink = HashSink()
        info = self.objects[path]
        try:
            await self._origin.read_range(
                info.key, offset, length, etag=info.etag or None, sink=sink
            )
        except OriginError as error:
            now = await self._origin.head(info.key)
            if now is None or (now.size, now.etag) != (info.size, info.etag):
                raise changed(path, "the object was replaced") from error
            raise
        return ChunkDigest(sink.digest())


class HashSink:
    """A `RangeSink` that keeps only the digest."""

    def __init__(self) -> None:
        self._hasher = blake3()
        self._buffer = memoryview(bytearray(HASH_BYTES))
        self._filled = 0

    def room(self) -> memoryview | None:
        return self._buffer[self._filled :] if self._filled < HASH_BYTES else None

    async def wait(self) -> None:
        await trio.to_thread.run_sync(self._hasher.update, self._buffer)
        self._filled = 0

    def filled(self, count: int) -> None:
        self._filled += count

    def digest(self) -> bytes:
        self._hasher.update(self._buffer[: self._filled])
        return self._hasher.digest()


async def list_bucket(origin: Origin, prefix: str, rules: SkipRules) -> BucketFiles:
    """The objects below `prefix`, relative to the origin's URL; raises InputError, OriginError."""
    # The slash keeps a sibling out: "m-7b" is also the start of "m-7b-hf".
    folder = prefix.strip("/").removeprefix("./").removeprefix(".")
    start = f"{folder}/" if folder else ""
    tally = SkipTally()
    objects: dict[str, ObjectInfo] = {}
    async for info in origin.list_objects(start):
        path = info.key.removeprefix(start)
        is_own = not start and path.startswith(_OWN_PREFIXES)
        is_marker = path.endswith("/") and not info.size  # Consoles make these for folders.
        if is_own or is_marker or not path:
            continue
        rule = _rule_for(path, rules)
        if rule:
            tally.add(rule, files=1, size=info.size)
        else:
            objects[path] = info
    _check_paths(origin, start, list(objects))
    return BucketFiles(origin, start, dict(sorted(objects.items())), tally.lines())


def _rule_for(path: str, rules: SkipRules) -> str | None:
    """The rule that skips the path or a directory above it."""
    components = path.split("/")
    for depth in range(1, len(components)):
        rule = rules.rule_for("/".join(components[:depth]), is_directory=True)
        if rule:
            return rule
    return rules.rule_for(path, is_directory=False)


def _check_paths(origin: Origin, start: str, paths: Sequence[str]) -> None:
    if not paths:
        raise InputError(
            f"{origin.url}/{start} holds no objects to publish",
            object_name=start,
            hint="with --in-place DIR is a prefix below the origin's URL",
        )
    problems = [f"{path!a} {problem}" for path in paths if (problem := path_problem(path))]
    if problems:
        raise InputError("; ".join(problems[:NAMED_MAX]), object_name=start)
