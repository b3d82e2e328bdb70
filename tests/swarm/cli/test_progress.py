"""Progress as numbers and lines, for people, logs and programs."""

from __future__ import annotations

import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.cli.progress import ProgressTrack, TransferProgress, as_json, format_line
from swarm.cli.progress_printer import open_printer

GB = 10**9


def fetching(done: int, total: int = 100 * GB, waiting: str = "") -> TransferProgress:
    return TransferProgress(
        "fetching",
        done_bytes=done,
        total_bytes=total,
        bytes_by_source={"origin": done // 4, "peer_same_zone": done - done // 4, "local": 0},
        peers=7,
        waiting=waiting,
    )


def test_a_line_says_all_there_is_to_know() -> None:
    track = ProgressTrack()
    track.observe(fetching(0), now=100.0)
    line = format_line(track.observe(fetching(20 * GB), now=110.0))
    assert line == (
        "fetching 20% | 20.0 GB of 100 GB | 2.00 GB/s | from origin 5.00 GB, peers 15.0 GB | "
        "7 peers | eta 40s"
    )


def test_whoever_stands_still_says_why() -> None:
    track = ProgressTrack()
    track.observe(fetching(33 * GB, waiting="5 chunks on their way from 10.0.0.7"), now=0.0)
    snapshot = track.observe(fetching(33 * GB, waiting="2 chunks wait for a lease"), now=30.0)
    line = format_line(snapshot)
    assert line.endswith("eta unknown | no progress for 30s: 2 chunks wait for a lease")
    assert as_json(snapshot)["silent_s"] == 30.0


@pytest.mark.parametrize("phase", ["fetching", "hashing", "uploading"])
def test_an_eta_is_told_once_it_means_something(phase: str) -> None:
    """The first moments of a phase are bursts; each phase begins anew."""
    track = ProgressTrack()
    for total, began in ((10 * GB, 0.0), (20 * GB, 100.0)):
        phase += "+"
        for done, at in ((0, 0.0), (1, 0.1), (2 * GB, 1.0), (3 * GB, 1.9)):
            look = TransferProgress(phase, done_bytes=done, total_bytes=total)
            snapshot = track.observe(look, now=began + at)
            assert snapshot.eta_s is None
            assert as_json(snapshot)["eta_s"] is None
            assert "eta" not in format_line(snapshot)
        look = TransferProgress(phase, done_bytes=4 * GB, total_bytes=total)
        snapshot = track.observe(look, now=began + 2.0)
        assert snapshot.eta_s == pytest.approx((total - 4 * GB) / (2 * GB), rel=0.01)
        assert "eta" in format_line(snapshot)


def test_a_resumed_pull_starts_where_it_was() -> None:
    assert ProgressTrack().observe(fetching(60 * GB), now=5.0).percent == 60.0


def test_a_rate_forgets_what_is_older_than_ten_seconds() -> None:
    track = ProgressTrack()
    for second in range(60):
        snapshot = track.observe(fetching(second * GB), now=float(second))
    assert snapshot.bytes_per_s == pytest.approx(GB, rel=0.01)
    for second in range(60, 75):
        snapshot = track.observe(fetching(59 * GB), now=float(second))
    assert snapshot.bytes_per_s == 0
    assert snapshot.eta_s is None


@given(st.lists(st.integers(min_value=0, max_value=150), min_size=1, max_size=40))
def test_a_percentage_is_within_bounds_and_never_falls(looks: list[int]) -> None:
    """Held chunks may turn out damaged, and a count may be off: neither shows."""
    track, before = ProgressTrack(), 0.0
    for now, done in enumerate(looks):
        snapshot = track.observe(fetching(done, total=100), now=float(now))
        assert before <= snapshot.percent <= 100
        assert snapshot.bytes_per_s >= 0
        before = snapshot.percent


def test_an_empty_version_is_no_division_by_zero() -> None:
    snapshot = ProgressTrack().observe(TransferProgress("ready"), now=0.0)
    assert format_line(snapshot) == "ready"


def test_off_a_terminal_there_are_whole_lines_only() -> None:
    stream = io.StringIO()
    with open_printer("auto", stream) as printer:
        for done in range(5):
            printer.show(fetching(done * GB, waiting="a\nreason\x1b[1m"))
        printer.show(TransferProgress("ready", done_bytes=1, total_bytes=1))
    lines = stream.getvalue().splitlines()
    # The first and the last of a phase: the interval of 10 s has not passed.
    assert [line.split()[:2] for line in lines] == [
        ["fetching", "0%"],
        ["fetching", "4%"],
        ["ready", "100%"],
    ]
    assert not re.search(r"[\r\x1b]", stream.getvalue())


def test_the_last_look_is_printed_at_the_end() -> None:
    stream = io.StringIO()
    with open_printer("lines", stream) as printer:
        printer.show(fetching(1 * GB))
        printer.show(fetching(90 * GB))
    assert "90%" in stream.getvalue().splitlines()[-1]


def test_json_is_one_object_a_line() -> None:
    stream = io.StringIO()
    with open_printer("json", stream) as printer:
        printer.show(fetching(50 * GB))
    (document,) = map(json.loads, stream.getvalue().splitlines())
    assert document["percent"] == 50
    assert document["bytes_by_source"]["peer_same_zone"] == 37.5 * GB


def test_none_is_silent() -> None:
    stream = io.StringIO()
    with open_printer("none", stream) as printer:
        printer.show(fetching(1))
    assert stream.getvalue() == ""


def test_a_terminal_gets_a_bar() -> None:
    stream = Terminal()
    with open_printer("auto", stream) as printer:
        printer.show(fetching(50 * GB, waiting="a lease"))
        printer.show(fetching(100 * GB))
    text = stream.getvalue()
    assert "100%" in text
    assert "\x1b[" in text
    assert "waiting: a lease" in text


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True
