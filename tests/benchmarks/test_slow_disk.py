"""Writers wait for the slow disk, not only the disk for the writers."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from benchmarks.slow_disk import DIRTY_BYTES_MAX, MIB, THROTTLE_FILE, SlowDisk

pytestmark = [
    pytest.mark.root,
    pytest.mark.command("mkfs.ext4"),
    pytest.mark.command("losetup"),
]


def test_a_write_takes_as_long_as_the_disk_needs(tmp_path: Path) -> None:
    """Without the dirty limit 24 MiB go to the page cache in milliseconds."""
    size, rate = 24 * MIB, 16 * MIB
    directory = tmp_path / "disk"
    with SlowDisk(directory, size_mib=64, write_mib_per_s=rate / MIB):
        fd = os.open(directory / "file", os.O_CREAT | os.O_WRONLY)
        begun = time.monotonic()
        for _ in range(size // MIB):
            os.write(fd, bytes(MIB))
        seconds = time.monotonic() - begun
        os.close(fd)
    assert seconds >= (size - 2 * DIRTY_BYTES_MAX) / rate * 0.8
    assert not directory.is_mount()
    assert list(directory.iterdir()) == []
    assert not (tmp_path / "disk.ext4").exists()
    assert "16777216" not in THROTTLE_FILE.read_text()
