"""Whole commands against S3: what is measured of a command, and what is made of it."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.command_meter import Cost, measure_command, status_bytes
from benchmarks.s3_single import FILE_COUNT, aws_program, check_copy, summarize, write_model

MIB = 1 << 20


def test_a_line_has_medians_per_gigabyte() -> None:
    costs = [Cost(seconds, 3.0, 40 * MIB, 30 * MIB) for seconds in (9.0, 2.0, 4.0)]
    assert asdict(summarize("swarm", 2 * 10**9, costs)) == {
        "system": "swarm",
        "seconds": 4.0,
        "gb_per_s": 0.5,
        "core_s_per_gb": 1.5,
        "max_rss_mib": 40.0,
        "max_anonymous_mib": 30.0,
    }


def test_the_files_have_the_size_together_and_a_copy_is_compared_by_bytes(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    write_model(source, 4099)
    files = sorted(source.iterdir())
    assert (len(files), sum(file.stat().st_size for file in files)) == (FILE_COUNT, 4099)
    target.mkdir()
    for file in files:
        (target / file.name).write_bytes(file.read_bytes())
    check_copy(source, target)
    (target / files[2].name).write_bytes(bytes(files[2].stat().st_size))
    (target / files[0].name).unlink()
    with pytest.raises(RuntimeError, match=rf"{files[0].name}.*{files[2].name}"):
        check_copy(source, target)


def test_time_cpu_and_memory_of_a_command_are_its_own(tmp_path: Path) -> None:
    """It holds 64 MiB for a while, of which no other command here would have half."""
    script = "import time; held = bytearray(64 << 20); held[::4096] = b'x' * 16384; time.sleep(0.3)"
    argv = [sys.executable, "-S", "-c", script]
    cost = measure_command(argv, {}, tmp_path / "log", timeout_s=30)
    assert 0.3 <= cost.seconds < 30
    assert 0 < cost.cpu_s < cost.seconds * 2
    assert 64 * MIB <= cost.anonymous_bytes_max <= cost.rss_bytes_max < 128 * MIB


def test_a_command_that_fails_is_quoted(tmp_path: Path) -> None:
    argv = [sys.executable, "-S", "-c", "raise SystemExit('no such bucket')"]
    with pytest.raises(RuntimeError, match="no such bucket"):
        measure_command(argv, {}, tmp_path / "log", timeout_s=30)


def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    argv = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    with pytest.raises(TimeoutError):
        measure_command(argv, {}, tmp_path / "log", timeout_s=0.2)


def test_a_process_that_is_ending_has_no_memory() -> None:
    assert status_bytes("Name:\tx\nVmHWM:\t  12 kB\n", "VmHWM") == 12 * 1024
    assert status_bytes("Name:\tx\nState:\tZ (zombie)\n", "VmHWM") == 0


def test_awscli_that_cannot_be_installed_is_left_out_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert aws_program(blocked) is None
    assert "without aws: " in capsys.readouterr().err
