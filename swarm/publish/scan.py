"""Finds the files of a directory and remembers what each looked like.

A symbolic link is followed and published as the file it names, if that file lies inside the
directory or inside the hub cache (``models--…``) that the directory is a snapshot of: there every
file is a link to a blob. A link that leads elsewhere is refused, because following it would publish
what nobody put there. Pipes, sockets and devices are refused without being opened for data; each
file is opened once, so that an unreadable one is named before anything is hashed. Empty directories
are not part of a version.

All faults are collected and named in one error: a publisher fixes a directory once.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass

from swarm.errors import InputError, PermissionDeniedError, StoreError
from swarm.protocol.paths import path_problem
from swarm.publish.skip_rules import Skipped, SkipRules, SkipTally

HUB_CACHE_PREFIX = "models--"
"""A hub client keeps a repository's blobs and snapshots in one directory of this name."""
NAMED_MAX = 50
"""Entries named in one error."""


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What changes when a file is written, replaced or truncated."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileStamp:
        return cls(
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_ino,
            status.st_dev,
        )


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to publish."""

    # Relative, as it will stand in the manifest.
    path: str
    # Where to open it.
    source: str
    stamp: FileStamp
    is_executable: bool

    @property
    def size(self) -> int:
        return self.stamp.size


@dataclass(frozen=True, slots=True)
class Scan:
    """What a directory holds, sorted by path."""

    files: tuple[SourceFile, ...]
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True, slots=True)
class _Directory:
    """One directory still to be read; `ancestors` are the inodes of those that led to it."""

    source: str
    path: str
    ancestors: frozenset[tuple[int, int]]


def scan(directory: str, rules: SkipRules, pulse: Callable[[], None]) -> Scan:
    """Read the whole tree; `pulse` is called for each directory and may raise to stop. Raises
    InputError, PermissionDeniedError, StoreError."""
    if not os.path.isdir(directory):
        raise InputError(
            f"{directory} is not a directory",
            object_name=directory,
            hint="name the directory that holds config.json and the weights",
        )
    scanner = _Scanner(directory, rules)
    scanner.run(pulse)
    return scanner.result()


class _Scanner:
    """One walk; keeps what it found and what is wrong with it."""

    def __init__(self, directory: str, rules: SkipRules) -> None:
        self._directory = directory
        self._rules = rules
        self._roots = _allowed_roots(os.path.realpath(directory))
        self._tally = SkipTally()
        self._files: list[SourceFile] = []
        self._problems: list[str] = []
        self._denied: list[str] = []

    def run(self, pulse: Callable[[], None]) -> None:
        pending = [_Directory(self._directory, "", frozenset())]
        while pending:
            pulse()
            pending.extend(self._visit_directory(pending.pop()))

    def result(self) -> Scan:
        if self._denied:
            raise PermissionDeniedError(
                f"permission denied: {_listed(self._denied)}",
                object_name=self._denied[0],
                hint="make them readable for the user that publishes",
            )
        if not self._files and not self._problems:
            self._problems.append(f"{self._directory} holds no files to publish")
        if self._problems:
            raise InputError(
                _listed(self._problems),
                object_name=self._directory,
                hint="remove or --exclude them, or publish a clean copy",
            )
        self._files.sort(key=lambda file: file.path)
        return Scan(tuple(self._files), self._tally.lines())

    def _visit_directory(self, directory: _Directory) -> list[_Directory]:
        """Take in a directory's files; return the directories below it."""
        try:
            own = _identity(os.stat(directory.source))
            with os.scandir(directory.source) as entries:
                names = sorted(entry.name for entry in entries)
        except OSError as error:
            self._note(directory.path or self._directory, error)
            return []
        if own in directory.ancestors:
            self._problems.append(f"{directory.path!r} is a link to a directory above it")
            return []
        ancestors = directory.ancestors | {own}
        below = []
        for name in names:
            path = f"{directory.path}/{name}" if directory.path else name
            source = os.path.join(directory.source, name)
            if self._visit(path, source):
                below.append(_Directory(source, path, ancestors))
        return below

    def _visit(self, path: str, source: str) -> bool:
        """Take in one entry; True if it is a directory to go into."""
        try:
            status = os.lstat(source)
            is_link = stat.S_ISLNK(status.st_mode)
            is_directory = os.path.isdir(source) if is_link else stat.S_ISDIR(status.st_mode)
            rule = self._rules.rule_for(path, is_directory=is_directory)
            if rule:
                files, size = _measure(source, status)
                self._tally.add(rule, files=files, size=size)
                return False
            followed = self._follow(path, source) if is_link else status
            if followed and is_directory:
                return True
            if followed:
                self._take(path, source, followed)
        except OSError as error:
            self._note(path, error)
        return False

    def _follow(self, path: str, source: str) -> os.stat_result | None:
        """What a link names, if it may be published; if not, note why."""
        target = os.path.realpath(source)
        if not any(_is_below(target, root) for root in self._roots):
            self._problems.append(f"{path!r} is a link to {target!r}, outside the directory")
            return None
        try:
            return os.stat(source)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise
            self._problems.append(f"{path!r} is a link to {target!r}, which does not exist")
            return None

    def _take(self, path: str, source: str, status: os.stat_result) -> None:
        problem = path_problem(path)
        if problem:
            self._problems.append(f"{path!a} {problem}")
        elif not stat.S_ISREG(status.st_mode):
            self._problems.append(f"{path!r} is a {_kind(status.st_mode)}, not a file")
        else:
            fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.close(fd)
            is_executable = bool(status.st_mode & stat.S_IXUSR)
            self._files.append(SourceFile(path, source, FileStamp.of(status), is_executable))

    def _note(self, path: str, error: OSError) -> None:
        if isinstance(error, PermissionError):
            self._denied.append(path)
        elif isinstance(error, FileNotFoundError):
            self._problems.append(f"{path!r} vanished while the directory was read")
        else:
            raise StoreError(f"cannot read {path!r}: {error.strerror}", object_name=path) from error


def _allowed_roots(real: str) -> tuple[str, ...]:
    """Where links may lead: the directory, and the hub cache repository around it."""
    parent = real
    while (above := os.path.dirname(parent)) != parent:
        if os.path.basename(parent).startswith(HUB_CACHE_PREFIX):
            return (real, parent)
        parent = above
    return (real,)


def _is_below(target: str, root: str) -> bool:
    return target == root or target.startswith(root.rstrip("/") + "/")


def _measure(source: str, status: os.stat_result) -> tuple[int, int]:
    """Files and bytes of an entry that is skipped; links are counted, not followed."""
    if not stat.S_ISDIR(status.st_mode):
        return 1, status.st_size
    files = size = 0
    for directory, _, names in os.walk(source):
        for name in names:
            files += 1
            size += os.lstat(os.path.join(directory, name)).st_size
    return files, size


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "named pipe"
    if stat.S_ISSOCK(mode):
        return "socket"
    return "device"


def _listed(items: list[str]) -> str:
    more = f"; and {len(items) - NAMED_MAX} more" if len(items) > NAMED_MAX else ""
    return "; ".join(items[:NAMED_MAX]) + more
