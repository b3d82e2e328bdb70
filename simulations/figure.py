"""Plots as files: what all of them share.

Matplotlib is an optional extra, loaded where a plot is asked for and nowhere else; it draws without
a screen (Agg, SVG), and the same numbers give the same bytes. Axes have names with units; the one
ornament is a light grid.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from swarm.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INSTALL = "pip install 'weightswarm[plot]'"
LOG_FROM_FACTOR = 20
"""An axis that spans more is logarithmic."""
DECADES_WITH_STEPS = 2.5
LABELS_MAX = 30
ENDINGS = (".png", ".svg")
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Of Okabe and Ito: told apart by colour-blind readers, and in print."""
BOUND_COLOR = "#777777"
PANEL_INCHES = (4.6, 3.3)


def check_plot(path: Path) -> None:
    """Before a long run: can this file be drawn? Raises UsageError."""
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(
            f"--plot {path}: ends with {path.suffix or 'nothing'}",
            object_name=str(path),
            hint=f"a plot is {' or '.join(ENDINGS)}",
        )
    folder = path.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"--plot {path}: cannot write into {folder}", object_name=str(path))
    try:
        import_module("matplotlib")
    except ImportError as error:
        hint = INSTALL
        raise UsageError("--plot needs matplotlib, which is not installed", hint=hint) from error


def new_figure(title: str, rows: int, columns: int) -> tuple[Figure, list[Axes]]:
    """Panels in reading order."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Text stays text in an SVG, and ids come from the content instead of from chance.
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "weightswarm"
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * columns, height * rows + 0.5), layout="constrained")
    figure.suptitle(title, fontsize=11)
    panels = [figure.add_subplot(rows, columns, place + 1) for place in range(rows * columns)]
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(visible=True, color="#dddddd", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.tick_params(labelsize=8)
    return figure, panels


def label(panel: Axes, title: str, x: str, y: str) -> None:
    panel.set_title(title, fontsize=9, loc="left")
    panel.set_xlabel(x, fontsize=8)
    panel.set_ylabel(y, fontsize=8)


def legend(panel: Axes) -> None:
    """Where there is more than one line to tell apart."""
    if len(panel.get_legend_handles_labels()[1]) > 1:
        panel.legend(fontsize=8, frameon=False)


def plain_log(panel: Axes, side: Literal["x", "y"]) -> None:
    """A logarithmic axis with 0.1, 1, 10, 100 written out, and 2 and 5 between them where there is
    room. Call it when everything is drawn."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if side == "x":
        panel.set_xscale("log")
    else:
        panel.set_yscale("log")
    axis = panel.xaxis if side == "x" else panel.yaxis
    low, high = panel.get_xlim() if side == "x" else panel.get_ylim()
    decades = math.log10(high / low) if low > 0 else 1.0
    subs = (1.0, 2.0, 5.0) if decades <= DECADES_WITH_STEPS else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=LABELS_MAX))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def span_factor(values: Sequence[float]) -> float:
    """Largest over smallest; 1 where a logarithm has no place."""
    return max(values) / min(values) if values and min(values) > 0 else 1.0


def draw_line(
    panel: Axes, xs: Sequence[float], ys: Sequence[float], name: str, place: int, style: str = "-"
) -> None:
    """Points are marked where there are few."""
    marker = "o" if len(xs) <= 40 and style == "-" else ""
    color = COLORS[place % len(COLORS)]
    panel.plot(xs, ys, style, marker=marker, markersize=3.5, color=color, label=name, linewidth=1.5)


def save(figure: Figure, path: Path) -> None:
    """Raises UsageError."""
    kind = path.suffix.lower().removeprefix(".")
    # No date and no version: the same numbers are the same file.
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    try:
        figure.savefig(path, format=kind, dpi=110, metadata=metadata)
    except OSError as error:
        raise UsageError(f"--plot: cannot write {path}: {error}", object_name=str(path)) from error
