"""A file system that takes writes at a chosen rate, for nodes whose disk is slower than their NIC.

An ext4 image in a loop device. Pacing the device alone would only move the wait: writes land in the
page cache, and a file smaller than the cache never feels the disk. So the device's share of dirty
memory is held to a few megabytes (`strict_limit`, `max_bytes` of its backing device, Linux 6.2),
and the writer waits as soon as that is full, as with a file larger than memory. The rate itself is
`blkio.throttle.write_bps_device` of the root control group (cgroup v1), which sees write-back that
no process issued. Under cgroup v2 alone the root group has no limits; there this module says so.

Measured 2026-11-30, 2 cores, Linux 6.18: 100 MiB with a limit of 20 MiB/s took 4.8 s.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.lab import LabError

MIB = 1024 * 1024
THROTTLE_FILE = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")
BACKING_DEVICES = Path("/sys/class/bdi")
# What may wait in memory: enough for one write-back pass, little against any file of a race.
DIRTY_BYTES_MAX = 4 * MIB
COMMAND_TIMEOUT_S = 60.0


class SlowDisk:
    """Mounts `directory` on an image of `size_mib`; enter to mount, leave to unmount and delete."""

    def __init__(self, directory: Path, *, size_mib: int, write_mib_per_s: float) -> None:
        self.directory = directory
        self._image = directory.with_name(f"{directory.name}.ext4")
        self._size_mib = size_mib
        self._bytes_per_s = round(write_mib_per_s * MIB)
        self._device = ""

    def __enter__(self) -> Self:
        if not THROTTLE_FILE.exists():
            raise LabError(f"no disk limit here: {THROTTLE_FILE} is missing (cgroup v1 blkio)")
        self.directory.mkdir(parents=True, exist_ok=True)
        with self._image.open("wb") as image:
            image.truncate(self._size_mib * MIB)
        _call("mkfs.ext4", "-q", "-m", "0", str(self._image))
        _call("mount", "-o", "loop,noatime", str(self._image), str(self.directory))
        try:
            self._limit()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._remove()

    def _limit(self) -> None:
        self._device = _call("mountpoint", "-d", str(self.directory)).strip()
        backing = BACKING_DEVICES / self._device
        (backing / "strict_limit").write_text("1")
        (backing / "max_bytes").write_text(str(DIRTY_BYTES_MAX))
        THROTTLE_FILE.write_text(f"{self._device} {self._bytes_per_s}")

    def _remove(self) -> None:
        if self._device:
            THROTTLE_FILE.write_text(f"{self._device} 0")  # 0 takes the limit away.
        _call("umount", str(self.directory))
        self._image.unlink()


def _call(*argv: str) -> str:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True
        )
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        detail = getattr(error, "stderr", None) or error
        raise LabError(f"{' '.join(argv)} failed: {str(detail).strip()}") from error
    return done.stdout
