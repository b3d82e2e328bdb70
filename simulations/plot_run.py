"""One run as a picture: who was ready when, by how much over the bound, and what the links did.

The bound and plain reads of the origin are drawn beside the completion curve, as far as they fit:
an hour of plain reads would leave the swarm's minute a line at the edge, so it is told in words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simulations.figure import BOUND_COLOR, COLORS, draw_line, label, legend, new_figure, save
from simulations.measure import Outcome
from simulations.report import direct_s
from simulations.scenario import Scenario
from simulations.series import Series
from swarm.units import format_duration, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIRECT_FITS_FACTOR = 3.0
"""Plain reads are drawn if they take at most so many times as long."""


def plot_run(path: Path, name: str, scenario: Scenario, outcome: Outcome, series: Series) -> None:
    """Raises UsageError."""
    size = format_size(scenario.version.total_bytes)
    title = f"{name}: {scenario.node_count} nodes, {size}"
    figure, (completion, ratio, egress, busy) = new_figure(title, 2, 2)
    _completion(completion, scenario, series)
    _ratio(ratio, outcome)
    _egress(egress, scenario, series)
    _busy(busy, series)
    for panel in (completion, egress, busy):
        panel.set_xlim(left=0)
    save(figure, path)


def _completion(panel: Axes, scenario: Scenario, series: Series) -> None:
    count = len(series.done_at_s)
    curves = [(series.done_at_s, "ready")]
    if len(set(series.started_at_s)) > 1:
        curves.append((series.started_at_s, "started"))
    for place, (times, words) in enumerate(curves):
        # A node more at each time; the curve begins at nothing.
        xs = [0.0, *times]
        ys = [100 * number / max(count, 1) for number in range(count + 1)]
        style = "-" if words == "ready" else "--"
        panel.step(xs, ys, style, where="post", color=COLORS[place], label=words, linewidth=1.5)
    first_s = series.started_at_s[0] if series.started_at_s else 0.0
    bound_s = first_s + scenario.slowest_bound_s
    panel.axvline(bound_s, color=BOUND_COLOR, linestyle=":", label="bound T*", linewidth=1.5)
    plain_s = direct_s(scenario)
    title = "Nodes ready"
    if plain_s is not None:
        title += f" (reading the origin themselves: {format_duration(plain_s)})"
        if series.done_at_s and plain_s <= DIRECT_FITS_FACTOR * series.done_at_s[-1]:
            words = "each reads the origin: last"
            panel.axvline(plain_s, color=COLORS[1], linestyle="-.", label=words, linewidth=1.5)
    panel.set_ylim(0, 102)
    label(panel, title, "time since the first start [s]", "share of the nodes [%]")
    legend(panel)


def _ratio(panel: Axes, outcome: Outcome) -> None:
    for place, group in enumerate(outcome.groups):
        count = len(group.ratios)
        xs = [100 * (number + 1) / count for number in range(count)]
        words = f"{group.name} (T* = {format_duration(group.bound_s)})"
        panel.plot(xs, group.ratios, color=COLORS[place % len(COLORS)], label=words, linewidth=1.5)
    panel.axhline(1.0, color=BOUND_COLOR, linestyle=":", linewidth=1)
    panel.set_xlim(0, 101)
    label(panel, "Time over the bound T*", "nodes, fastest first [%]", "node's time / T* [1]")
    legend(panel)


def _egress(panel: Axes, scenario: Scenario, series: Series) -> None:
    total = scenario.version.total_bytes
    xs = [sample.at_s for sample in series.samples]
    copies = [sample.origin_bytes / total for sample in series.samples]
    draw_line(panel, xs, copies, "origin", 0)
    panel.axhline(1.0, color=BOUND_COLOR, linestyle=":", linewidth=1)
    panel.set_ylim(bottom=0)
    title = f"Origin egress (one copy is {format_size(total)})"
    label(panel, title, "time since the first start [s]", "bytes sent so far [copies]")


def _busy(panel: Axes, series: Series) -> None:
    samples = series.samples
    at_s = [sample.at_s for sample in samples]
    lines = (
        ("uplinks of all nodes", [(one.up_bytes, one.up_possible_bytes) for one in samples]),
        (
            "downlinks of nodes that fetch",
            [(one.down_bytes, one.down_possible_bytes) for one in samples],
        ),
        ("origin", [(one.origin_bytes, one.origin_possible_bytes) for one in samples]),
    )
    for place, (words, both) in enumerate(lines):
        xs, ys = _shares(at_s, both)
        if not all(math.isnan(share) for share in ys):
            draw_line(panel, xs, ys, words, place)
    panel.set_ylim(0, 102)
    label(panel, "Utilisation", "time since the first start [s]", "of what is possible [%]")
    legend(panel)


def _shares(
    at_s: Sequence[float], both: Sequence[tuple[float, float]]
) -> tuple[list[float], list[float]]:
    """Between one sample and the next: middle, and per cent of what was possible."""
    xs: list[float] = []
    ys: list[float] = []
    for place in range(1, len(both)):
        passed = both[place][0] - both[place - 1][0]
        possible = both[place][1] - both[place - 1][1]
        xs.append((at_s[place] + at_s[place - 1]) / 2)
        # A gap where nothing was possible: nobody fetches, or there is no origin.
        ys.append(min(100 * passed / possible, 100.0) if possible > 0 else math.nan)
    return xs, ys
