"""Watching the nodes of a demonstration: a table that moves on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from swarm.cli.progress import TransferProgress, format_sources
from swarm.cli.progress_printer import Printer, open_printer
from swarm.units import format_duration, format_size

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from swarm.cli.agent_api import VersionDocument


@dataclass(frozen=True, slots=True)
class NodeLook:
    """One node as last seen."""

    name: str
    # None before its agent has the manifest.
    version: VersionDocument | None
    # What the agent waits for.
    waiting: str
    # From the start to READY; None before.
    ready_s: float | None


class View(Protocol):
    """Where looks at all nodes go."""

    def show(self, looks: Sequence[NodeLook], size: int) -> None:
        """Draw them; `size` is the unique bytes of the version."""


@contextmanager
def open_view(mode: str) -> Iterator[View]:
    """A live table where `--progress MODE` means a bar, else what it says."""
    if mode == "bar" or (mode == "auto" and sys.stderr.isatty()):
        from rich.console import Console
        from rich.live import Live

        console = Console(file=sys.stderr)
        with Live(console=console, auto_refresh=False, redirect_stdout=False) as live:
            yield TableView(live)
        return
    with open_printer("lines" if mode == "auto" else mode) as printer:
        yield LineView(printer)


class LineView:
    """All nodes as one transfer."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer

    def show(self, looks: Sequence[NodeLook], size: int) -> None:
        self._printer.show(total_progress(looks, size))


class TableView:
    """A row with a bar for each node."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, looks: Sequence[NodeLook], size: int) -> None:
        self._live.update(node_table(looks, size), refresh=True)


def total_progress(looks: Sequence[NodeLook], size: int) -> TransferProgress:
    """The sum over all nodes."""
    versions = [look.version for look in looks if look.version is not None]
    sources: dict[str, int] = {}
    for version in versions:
        for source, count in version["bytes_by_source"].items():
            sources[source] = sources.get(source, 0) + count
    ready = sum(look.ready_s is not None for look in looks)
    waiting = [f"{look.name}: {look.waiting}" for look in looks if look.waiting]
    return TransferProgress(
        phase="fetching",
        done_bytes=sum(sources.values()),
        total_bytes=size * len(looks),
        bytes_by_source=sources,
        wasted_bytes=sum(version["wasted_bytes"] for version in versions),
        waiting=f"{ready} of {len(looks)} ready; {waiting[0]}" if waiting else "",
    )


def node_table(looks: Sequence[NodeLook], size: int) -> Table:
    """The picture of one moment."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    picture = Table(box=None, padding=(0, 1), header_style="bold")
    for title in ("node", "", "bytes", "from", ""):
        picture.add_column(title, no_wrap=True)
    for look in looks:
        held = look.version["bytes_held"] if look.version is not None else 0
        sources = look.version["bytes_by_source"] if look.version is not None else {}
        state = f"ready after {format_duration(look.ready_s)}" if look.ready_s is not None else ""
        picture.add_row(
            look.name,
            ProgressBar(total=max(size, 1), completed=min(held, size), width=30),
            format_size(held),
            Text(format_sources(sources)),
            state,
        )
    return picture
