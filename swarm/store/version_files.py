"""Where the file bytes of one version lie: on disk or in memory."""

from __future__ import annotations

from typing import Protocol

from swarm.store.descriptors import Descriptor


class VersionFiles(Protocol):
    """The files of one version, wherever their bytes lie. All methods raise OSError."""

    # For messages.
    path: str

    def acquire(self, file_index: int) -> Descriptor:
        """The open file, made at full size if it is not there; `release` must follow. Writable
        while the file is not whole."""

    def release(self, descriptor: Descriptor) -> None: ...

    def open_read_only(self, file_index: int) -> int:
        """A descriptor of its own for a reader, who closes it."""

    def open_scratch(self) -> int:
        """A new unnamed file."""

    def is_whole(self, file_index: int) -> bool:
        """The file has its final name."""

    def is_gone(self, file_index: int) -> bool:
        """Somebody removed the file, so no chunk of it is held any more. Means nothing for a file
        that was never written."""

    def complete(self, file_index: int) -> None:
        """All chunks are verified: give the file its final name, same inode."""

    def reopen(self, file_index: int, *, keeps_inode: bool) -> bool:
        """Take the final name away, to write a chunk anew. True if the bytes moved to another
        inode, because somebody may have mapped the old one."""

    def clear_parts(self) -> None:
        """The version is whole: remove what was only needed to fill it."""

    def sync(self) -> None:
        """Flush every file and the directories that name them."""

    def close(self) -> None: ...
