"""The same plan in every spelling, and what must be refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import UsageError
from swarm.units import (
    format_duration,
    format_rate,
    format_size,
    parse_duration,
    parse_percent,
    parse_rate,
    parse_size,
)


@pytest.mark.parametrize("text", ["10Gbit", "10Gb/s", "1.25GB/s", "1.164GiB/s", "10gbit/s"])
def test_one_rate_in_every_spelling(text: str) -> None:
    assert parse_rate(text) == pytest.approx(1_250_000_000, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("400Mbit/s", 50_000_000),
        ("400mbit", 50_000_000),
        ("8bit/s", 1),
        ("1Kibit/s", 128),
        ("1 MB/s", 1_000_000),
        ("2Mbps", 250_000),
        ("1.5kB/s", 1500),
    ],
)
def test_rates(text: str, bytes_per_s: int) -> None:
    assert parse_rate(text) == bytes_per_s


NOT_RATES = ["", "10G", "10g", "10Gi", "1e9", "1000", "0", "0Gbit/s", "-1", "-1Gbit/s", "fast"]
NOT_RATES += ["100mb/s", "10Gbit/h", "1.GB/s", "nanGB/s", "infbit/s", "1GB/s/s", "1bit"]
NOT_RATES += ["9" * 30 + "GB/s"]


@pytest.mark.parametrize("text", NOT_RATES)
def test_refused_rates(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rate(text)
    assert "GB/s" in caught.value.hint


@pytest.mark.parametrize("text", ["10G", "10g", "1000", "10Gi"])
def test_a_bare_prefix_is_told_that_bits_and_bytes_differ(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rate(text)
    assert "bit or byte" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("256KiB", 262_144),
        ("1GB", 10**9),
        ("1GiB", 2**30),
        ("96 MiB", 96 * 2**20),
        ("65536", 65_536),
        ("100B", 100),
        ("1kB", 1000),
        ("1KB", 1000),
        ("0.5MiB", 524_288),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize(
    "text",
    ["10G", "256K", "256Ki", "1Gbit", "1Gb", "1GB/s", "0", "0MiB", "-5MB", "1e9", "", "0x10"],
)
def test_refused_sizes(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30.0), ("500ms", 0.5), ("5m", 300.0), ("2h", 7200.0), ("0", 0.0), ("1.5s", 1.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["-1", "5 weeks", "inf", "nan", "1e400", "", "99999999h"])
def test_refused_durations(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration(text)


def test_percentages() -> None:
    assert parse_percent("5%") == 0.05
    for text in ("5", "101%", "-1%", "%"):
        with pytest.raises(UsageError):
            parse_percent(text)


def test_output_is_decimal() -> None:
    assert format_size(0) == "0 B"
    assert format_size(999) == "999 B"
    assert format_size(1_250_000_000) == "1.25 GB"
    assert format_size(999_999_999) == "1.00 GB"
    assert format_size(99_960_000) == "100 MB"
    assert format_rate(50_000_000) == "50.0 MB/s"


def test_durations_are_readable() -> None:
    shown = [format_duration(seconds) for seconds in (4.24, 42, 200, 7500, 90_000, 400_000)]
    assert shown == ["4.2s", "42s", "3m 20s", "2h 05m", "25h 00m", "4d 15h"]


@given(st.integers(min_value=1, max_value=2**62))
def test_what_is_printed_reads_back_within_half_a_per_cent(count: int) -> None:
    assert parse_size(format_size(count)) == pytest.approx(count, rel=5e-3)
    assert parse_rate(format_rate(count)) == pytest.approx(count, rel=5e-3)
