"""Shows progress on stderr: a live bar on a terminal, whole lines or JSON elsewhere.

Off a terminal a line ends in a newline and holds no control character, because what reads it is a
log: one at the start and one at the end of each phase, and one every ten seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from swarm.cli.progress import (
    ProgressTrack,
    Snapshot,
    TransferProgress,
    as_json,
    format_line,
    format_reason,
    format_sources,
)
from swarm.units import format_duration, format_rate, format_size

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

LINE_INTERVAL_S = 10.0
JSON_INTERVAL_S = 1.0
BAR_INTERVAL_S = 0.1
"""A person sees no more than ten pictures a second, and each costs about a millisecond."""


class Printer(Protocol):
    """Where looks at a transfer go."""

    def show(self, progress: TransferProgress) -> None:
        """Call at least every few seconds, also when nothing moved."""


@contextmanager
def open_printer(mode: str, stream: TextIO | None = None) -> Iterator[Printer]:
    """The printer of ``--progress MODE``; the last look is shown at the end if it was not yet."""
    stream = stream or sys.stderr
    if mode == "auto":
        mode = "bar" if stream.isatty() else "lines"
    if mode == "bar":
        with _open_bar(stream) as bar:
            yield bar
        return
    if mode == "none":
        yield SilentPrinter()
        return
    lines = LinePrinter(stream, is_json=mode == "json")
    yield lines
    lines.finish()


class SilentPrinter:
    """``--progress none``."""

    def show(self, progress: TransferProgress) -> None:
        """Say nothing."""


class LinePrinter:
    """A line when the phase changes and at intervals."""

    def __init__(self, stream: TextIO, *, is_json: bool) -> None:
        self._stream = stream
        self._is_json = is_json
        self._interval_s = JSON_INTERVAL_S if is_json else LINE_INTERVAL_S
        self._track = ProgressTrack()
        self._printed_at = 0.0
        self._phase = ""
        self._unprinted: Snapshot | None = None

    def show(self, progress: TransferProgress) -> None:
        now = time.monotonic()
        if progress.phase != self._phase:
            self.finish()
        snapshot = self._track.observe(progress, now=now)
        if progress.phase == self._phase and now - self._printed_at < self._interval_s:
            self._unprinted = snapshot
            return
        self._phase, self._printed_at = progress.phase, now
        self._print(snapshot)

    def finish(self) -> None:
        """Print the last look of a phase, if it was not yet."""
        if self._unprinted is not None:
            self._print(self._unprinted)

    def _print(self, snapshot: Snapshot) -> None:
        self._unprinted = None
        text = json.dumps(as_json(snapshot)) if self._is_json else format_line(snapshot)
        self._stream.write(text + "\n")
        self._stream.flush()


class BarPrinter:
    """A bar with its numbers, redrawn in place."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._track = ProgressTrack()
        self._drawn_at = 0.0

    def show(self, progress: TransferProgress) -> None:
        now = time.monotonic()
        snapshot = self._track.observe(progress, now=now)
        is_whole = snapshot.percent >= 100
        if now - self._drawn_at >= BAR_INTERVAL_S or is_whole:
            self._drawn_at = now
            self._live.update(bar_picture(snapshot), refresh=True)


@contextmanager
def _open_bar(stream: TextIO) -> Iterator[BarPrinter]:
    from rich.console import Console  # 60 ms of import that only a terminal pays.
    from rich.live import Live

    with Live(console=Console(file=stream), auto_refresh=False, redirect_stdout=False) as live:
        yield BarPrinter(live)


def bar_picture(snapshot: Snapshot) -> Table:
    """Two lines: bar, bytes, rate, ETA; then sources, peers and the reason for waiting."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    progress = snapshot.progress
    total = progress.total_bytes
    numbers = f"{format_size(progress.done_bytes)}"
    if total:
        numbers = f"{snapshot.percent:3.0f}%  {format_size(progress.done_bytes)} of "
        numbers += f"{format_size(total)}  {format_rate(snapshot.bytes_per_s)}"
        if snapshot.eta_s is not None and snapshot.percent < 100:
            numbers += f"  eta {format_duration(snapshot.eta_s)}"
    first = Table.grid(padding=(0, 1))
    # A bar without a total pulses; it is drawn from the time, so each refresh moves it.
    bar = ProgressBar(total=100 if total else None, completed=snapshot.percent, width=30)
    first.add_row(Text(progress.phase, style="bold"), bar, Text(numbers))
    details = [format_sources(progress.bytes_by_source)]
    details.append(f"{progress.peers} peers" if progress.peers is not None else "")
    details.append(format_reason(snapshot))
    second = Text("  ".join(filter(None, details)), style="dim", no_wrap=True, overflow="ellipsis")
    picture = Table.grid()
    picture.add_row(first)
    picture.add_row(second)
    return picture
