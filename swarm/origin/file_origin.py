"""An origin that is a directory: a mounted file system, a laptop, a test.

Objects are files below the directory. A new object is written beside its place under a name that
no listing shows, flushed, and then renamed (or linked, where it must not exist yet), so that it
appears whole or not at all. There are no ETags: a directory is often a copy of a bucket or of
another directory, whose ETags would not fit, and a replaced file shows by its digests. All file IO
runs in worker threads.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import trio

from swarm.errors import (
    ConflictError,
    NoSpaceError,
    NotFoundError,
    OriginError,
    PermissionDeniedError,
    SwarmError,
    UsageError,
)
from swarm.origin.origin import ObjectInfo, PartSource, RangeSink, checked_key

UNFINISHED_SUFFIX = ".unfinished"
"""Ends the name of a file that is still being written; such files are in no listing."""

LIST_PAGE = 1000  # Objects per visit to a worker thread; as many as S3 gives in one answer.
NO_LINK_ERRORS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


def open_file_origin(rest: str) -> FileOrigin:
    """The origin behind `file://` + `rest`; raises UsageError."""
    host, slash, path = rest.partition("/")
    if host.lower() not in ("", "localhost") or not slash:
        raise UsageError(
            f"not a directory: {'file://' + rest!r}",
            hint="write file:///absolute/path, with three slashes",
        )
    return FileOrigin(Path("/" + unquote(path)))


class FileOrigin:
    """Objects as files below `directory`; see the module."""

    is_writable = True

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.url = "file://" + os.fspath(directory)

    async def read_document(self, key: str, *, limit_bytes: int) -> bytes:
        return await trio.to_thread.run_sync(self._read_document, key, limit_bytes)

    async def read_range(
        self, key: str, offset: int, length: int, *, etag: str | None, sink: RangeSink
    ) -> str:
        fd = await trio.to_thread.run_sync(self._open, key)
        try:
            done = 0
            while done < length:
                room = sink.room()
                if room is None:
                    await sink.wait()
                    continue
                room = room[: length - done]
                count = await trio.to_thread.run_sync(self._read_some, key, fd, offset + done, room)
                sink.filled(count)
                done += count
        finally:
            os.close(fd)
        return ""

    async def head(self, key: str) -> ObjectInfo | None:
        try:
            return await trio.to_thread.run_sync(self._stat, key)
        except NotFoundError:
            return None

    async def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        keys = await trio.to_thread.run_sync(self._keys, prefix)
        for start in range(0, len(keys), LIST_PAGE):
            page = keys[start : start + LIST_PAGE]
            for info in await trio.to_thread.run_sync(self._stat_page, page):
                yield info

    async def put_document(self, key: str, payload: bytes, *, is_create_only: bool = False) -> None:
        await trio.to_thread.run_sync(self._put, key, payload, is_create_only)

    async def upload(
        self,
        key: str,
        source: PartSource,
        *,
        progress: Callable[[int], None],
        resumed: Callable[[int], None] | None = None,
    ) -> ObjectInfo:
        unfinished = await trio.to_thread.run_sync(self._unfinished_path, key)
        try:
            for index in range(-(-source.size // source.part_bytes)):
                part = await source.read_part(index)
                offset = index * source.part_bytes
                await trio.to_thread.run_sync(self._write_part, key, unfinished, offset, part)
                progress(len(part))
            await trio.to_thread.run_sync(self._finish, key, unfinished, source.size)
        finally:
            unfinished.unlink(missing_ok=True)
        return await trio.to_thread.run_sync(self._stat, key)

    async def prepare(self) -> None:
        return

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    # In worker threads.

    def _path(self, key: str) -> Path:
        return self._directory / checked_key(key)

    def _read_document(self, key: str, limit_bytes: int) -> bytes:
        with self._translated(key), self._path(key).open("rb") as file:
            payload = file.read(limit_bytes + 1)
        if len(payload) > limit_bytes:
            raise OriginError(
                f"{self.url}/{key} is larger than {limit_bytes} bytes, which it should never be",
                object_name=key,
                is_retryable=False,
            )
        return payload

    def _open(self, key: str) -> int:
        with self._translated(key):
            return os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)

    def _read_some(self, key: str, fd: int, offset: int, room: memoryview) -> int:
        with self._translated(key):
            count = os.preadv(fd, (room,), offset)
        if not count:
            raise OriginError(
                f"{self.url}/{key} ends at byte {offset}, before the range does",
                object_name=key,
                is_retryable=False,
            )
        return count

    def _stat(self, key: str) -> ObjectInfo:
        with self._translated(key):
            status = self._path(key).stat()
        return ObjectInfo(key=key, size=status.st_size, etag="")

    def _stat_page(self, keys: list[str]) -> list[ObjectInfo]:
        """Those of `keys` that still exist."""
        infos: list[ObjectInfo] = []
        for key in keys:
            with contextlib.suppress(NotFoundError):
                infos.append(self._stat(key))
        return infos

    def _keys(self, prefix: str) -> list[str]:
        """Keys that start with `prefix`, sorted. `prefix` is text: it may end within a name."""
        start = self._directory / prefix.rpartition("/")[0]
        found: list[str] = []
        with self._translated(prefix), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for directory, _, names in os.walk(start, onerror=_raise, followlinks=True):
                base = os.path.relpath(directory, self._directory)
                for name in names:
                    key = name if base == "." else f"{base}/{name}"
                    if key.startswith(prefix) and not name.endswith(UNFINISHED_SUFFIX):
                        found.append(key)
        return sorted(found)

    def _unfinished_path(self, key: str) -> Path:
        path = self._path(key)
        with self._translated(key):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path.with_name(f".{secrets.token_hex(8)}{UNFINISHED_SUFFIX}")

    def _write_part(self, key: str, path: Path, offset: int, part: bytes) -> None:
        with self._translated(key), _open_for_writing(path) as fd:
            _write_all(fd, part, offset)

    def _finish(self, key: str, unfinished: Path, size: int) -> None:
        with self._translated(key):
            with _open_for_writing(unfinished) as fd:
                os.ftruncate(fd, size)
                os.fsync(fd)
            target = self._path(key)
            unfinished.replace(target)
            _flush_directory(target.parent)

    def _put(self, key: str, payload: bytes, is_create_only: bool) -> None:
        unfinished = self._unfinished_path(key)
        try:
            self._write_part(key, unfinished, 0, payload)
            if not is_create_only:
                self._finish(key, unfinished, len(payload))
            elif not self._link_new(key, unfinished, payload):
                self._check_equal(key, payload)
        finally:
            unfinished.unlink(missing_ok=True)

    def _link_new(self, key: str, unfinished: Path, payload: bytes) -> bool:
        """Give the written file its name unless something has it: False."""
        target = self._path(key)
        with self._translated(key):
            try:
                with _open_for_writing(unfinished) as fd:
                    os.fsync(fd)
                os.link(unfinished, target)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in NO_LINK_ERRORS:
                    raise
                return _create_exclusively(target, payload)
            _flush_directory(target.parent)
        return True

    def _check_equal(self, key: str, payload: bytes) -> None:
        if self._read_document(key, len(payload) + 1) != payload:
            raise ConflictError(f"{self.url}/{key} exists with other bytes", object_name=key)

    @contextlib.contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._translate(key, error) from error

    def _translate(self, key: str, error: OSError) -> SwarmError:
        where = f"{self.url}/{key}"
        if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
            return NotFoundError(f"{where} does not exist", object_name=key)
        if isinstance(error, PermissionError):
            return PermissionDeniedError(
                f"the operating system refuses access to {where}",
                object_name=key,
                hint="fix its owner or mode",
            )
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return NoSpaceError(f"no space left for {where}", object_name=key)
        return OriginError(
            f"{where}: {error.strerror or error}", object_name=key, is_retryable=True
        )


def _raise(error: OSError) -> None:
    """Keep `os.walk` from hiding what it cannot read."""
    raise error


@contextlib.contextmanager
def _open_for_writing(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def _write_all(fd: int, payload: bytes, offset: int) -> None:
    view = memoryview(payload)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def _create_exclusively(target: Path, payload: bytes) -> bool:
    """For file systems without hard links: a crash may leave a short document, never two writers'
    bytes."""
    try:
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return False
    try:
        _write_all(fd, payload, 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    return True


def _flush_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
