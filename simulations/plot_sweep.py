"""A sweep as a picture: ratio, time and egress against the first key that is varied.

Other keys become lines. Numbers with one unit (``10Gbit/s, 25Gbit/s``) stand at their place on the
axis, on a logarithmic one if they span a factor of twenty; anything else stands in a row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simulations.figure import (
    BOUND_COLOR,
    COLORS,
    LOG_FROM_FACTOR,
    draw_line,
    label,
    legend,
    new_figure,
    plain_log,
    save,
    span_factor,
)
from simulations.sweep import Grid, PointResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINES_MAX = 7
"""As many as there are colours; more cannot be told apart."""
_NUMBER = re.compile(r'"?([0-9.]+)\s*([A-Za-z/%]*)"?')


@dataclass(frozen=True, slots=True)
class _Line:
    """Points that differ in the first key alone."""

    name: str
    places: tuple[float, ...]
    points: tuple[PointResult, ...]

    def means(self, metric: str) -> tuple[list[float], list[float]]:
        """Where the metric is known."""
        known = [
            (place, point.spreads[metric].mean)
            for place, point in zip(self.places, self.points, strict=True)
            if metric in point.spreads
        ]
        return [place for place, _ in known], [value for _, value in known]


def plot_sweep(path: Path, name: str, grid: Grid, points: Sequence[PointResult]) -> None:
    """Raises UsageError."""
    axis = grid.axes[0]
    places, unit = _places(axis.values)
    lines = _lines(grid, points, places)
    figure, (ratio, time, egress) = new_figure(f"{name}: {axis.key}", 1, 3)
    x = f"{axis.key} [{unit}]" if unit else axis.key
    if len(lines) == 1:
        _draw(ratio, lines[0], "last_ratio", "the last node", 1)
        if lines[0].means("p99_ratio") != lines[0].means("last_ratio"):
            _draw(ratio, lines[0], "p99_ratio", "99 % of the nodes", 2)
        _draw(ratio, lines[0], "p50_ratio", "half of the nodes", 0)
    else:
        for place, line in enumerate(lines):
            _draw(ratio, line, "last_ratio", line.name, place)
    ratio.axhline(1.0, color=BOUND_COLOR, linewidth=1, linestyle=":")
    label(ratio, "Time over the bound T*", x, "node's time / T* [1]")
    legend(ratio)
    for place, line in enumerate(lines):
        _draw(time, line, "last_s", line.name or "swarm", place)
        xs, ys = line.means("direct_s")
        if xs and (place == 0 or len({point.spreads["direct_s"].mean for point in points}) > 1):
            words = "each node reads the origin" if place == 0 else "_"
            draw_line(time, xs, ys, words, place, "--")
        _draw(egress, line, "origin_copies", line.name or "swarm", place)
    times = [
        point.spreads[metric].mean
        for point in points
        for metric in ("last_s", "direct_s")
        if metric in point.spreads
    ]
    if span_factor(times) >= LOG_FROM_FACTOR:
        plain_log(time, "y")
    else:
        time.set_ylim(bottom=0)
    label(time, "Last node ready", x, "seconds since its start [s]")
    legend(time)
    egress.set_ylim(bottom=0)
    label(egress, "Origin egress", x, "bytes sent / size of the version [copies]")
    legend(egress)
    for panel in (ratio, time, egress):
        if unit is None:
            panel.set_xticks(places, axis.values, rotation=20)
        elif span_factor(places) >= LOG_FROM_FACTOR:
            plain_log(panel, "x")
    save(figure, path)


def _draw(panel: Axes, line: _Line, metric: str, words: str, place: int) -> None:
    xs, ys = line.means(metric)
    draw_line(panel, xs, ys, words, place)
    spreads = [point.spreads[metric] for point in line.points if metric in point.spreads]
    if any(spread.most > spread.least for spread in spreads):
        lows, highs = [one.least for one in spreads], [one.most for one in spreads]
        panel.fill_between(xs, lows, highs, color=COLORS[place], alpha=0.15, linewidth=0)


def _lines(grid: Grid, points: Sequence[PointResult], places: Sequence[float]) -> list[_Line]:
    place_of = dict(zip(grid.axes[0].values, places, strict=True))
    grouped: dict[tuple[str, ...], list[PointResult]] = {}
    for point in points:
        grouped.setdefault(point.values[1:], []).append(point)
    lines: list[_Line] = []
    for others, members in list(grouped.items())[:LINES_MAX]:
        names = [f"{axis.key}={one}" for axis, one in zip(grid.axes[1:], others, strict=True)]
        ordered = sorted(members, key=lambda point: place_of[point.values[0]])
        where = tuple(place_of[point.values[0]] for point in ordered)
        lines.append(_Line(", ".join(names), where, tuple(ordered)))
    return lines


def _places(values: Sequence[str]) -> tuple[list[float], str | None]:
    """Numbers and their unit ("" for none), or 0, 1, 2… and None."""
    matches = [_NUMBER.fullmatch(value) for value in values]
    units = {match[2] for match in matches if match is not None}
    if None in matches or len(units) != 1:
        return [float(place) for place in range(len(values))], None
    return [float(match[1]) for match in matches if match is not None], units.pop()
