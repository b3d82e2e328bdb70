"""A plan as a picture: the day of the recommended policy, and every signal's price and misses."""

from __future__ import annotations

from pathlib import Path

from simulations.figure import COLORS, draw_line, label, legend, new_figure, plain_log, save
from simulations.fleet.planning import Plan
from simulations.fleet.scaling import Signal
from simulations.fleet.slo import Metric

MISS_SHARE_MIN = 1e-4
"""What a logarithmic axis shows of a run in which nobody missed."""


def plot_fleet(path: Path, name: str, plan: Plan) -> None:
    """Raises UsageError."""
    figure, panels = new_figure(f"{name}: {plan.case.slo}", 2, 2)
    traffic, replicas, tail, price = panels
    if plan.best is not None:
        moments = plan.best.outcome.moments
        hours = [moment.at_s / 3600 for moment in moments]
        interval_s = plan.best.policy.interval_s
        rates = [moment.arrivals / interval_s for moment in moments]
        draw_line(traffic, hours, rates, "requests/s", 0)
        draw_line(traffic, hours, [float(moment.waiting) for moment in moments], "waiting", 1)
        ready = [float(moment.ready) for moment in moments]
        draw_line(replicas, hours, ready, "serving", 0)
        draw_line(replicas, hours, [float(m.starting) for m in moments], "on their way", 1)
        draw_line(replicas, hours, [float(m.warm) for m in moments], "warm", 2)
    for place, signal in enumerate(Signal):
        rows = [row for row in plan.rows if row.policy.signal is signal]
        if not rows:
            continue
        best = min(rows, key=lambda row: row.rank).outcome.times[Metric.TTFT]
        shares = [(rank + 1) / len(best) for rank in range(len(best))]
        picked = range(0, len(best), max(len(best) // 400, 1))
        left = [max(1 - shares[rank], MISS_SHARE_MIN) for rank in picked]
        draw_line(tail, [best[rank] for rank in picked], left, signal.value, place)
        costs = [row.outcome.cost for row in rows]
        misses = [max(row.outcome.miss_share, MISS_SHARE_MIN) for row in rows]
        price.scatter(costs, misses, s=18, color=COLORS[place], label=signal.value)
    if plan.case.slo.misses is not None:
        price.axhline(plan.case.slo.misses, color="#777777", linewidth=1, linestyle=":")
    plain_log(tail, "x")
    plain_log(tail, "y")
    plain_log(price, "x")
    plain_log(price, "y")
    label(traffic, "the trace", "hours", "requests/s; requests that wait")
    label(replicas, "nodes of the recommendation", "hours", "nodes")
    label(tail, "each signal's best", "seconds to the first token", "share of requests beyond")
    label(price, "all that was tried", "cost of the trace", "share of requests that miss")
    for panel in panels:
        legend(panel)
    save(figure, path)
