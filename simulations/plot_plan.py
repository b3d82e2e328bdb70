"""A plan as a picture: seconds and money against the number of nodes, with and without a swarm."""

from __future__ import annotations

from pathlib import Path

from simulations.figure import BOUND_COLOR, draw_line, label, legend, new_figure, plain_log, save
from simulations.plan import Plan, Planner
from swarm.units import format_size

STEPS = 120
"""Numbers of nodes at which the lines are worked out, evenly over their logarithm."""


def plot_plan(path: Path, name: str, planner: Planner, plan: Plan) -> None:
    """Raises UsageError."""
    prices = plan.swarm.cost.prices
    size = format_size(plan.scenario.version.total_bytes)
    figure, (time, cost) = new_figure(f"{name}: {size}", 1, 2)
    counts = _counts(plan.looked_up_to)
    curve = plan.curve
    draw_line(time, counts, [curve.last_s(count) for count in counts], "swarm", 0)
    draw_line(cost, counts, [curve.cost(count).total for count in counts], "swarm", 0)
    for place, make in enumerate(planner.makers(), 1):
        estimates = [estimate for count in counts if (estimate := make(count)) is not None]
        if estimates:
            words = estimates[0].name
            draw_line(time, counts, [one.last_s for one in estimates], words, place, "--")
            draw_line(cost, counts, [one.per_load for one in estimates], words, place, "--")
    simulated = [*plan.ladder, plan.swarm]
    nodes = [point.node_count for point in simulated]
    time.plot(nodes, [point.last_s for point in simulated], "o", color="#0072B2", markersize=3.5)
    cost.plot(
        nodes, [point.cost.total for point in simulated], "o", color="#0072B2", markersize=3.5
    )
    for panel in (time, cost):
        plain_log(panel, "x")
        plain_log(panel, "y")
        panel.axvline(plan.swarm.node_count, color=BOUND_COLOR, linestyle=":", linewidth=1)
    label(time, "Last node ready (dots: simulated)", "nodes", "seconds since its start [s]")
    label(cost, "Cost of a load", "nodes", f"requests, bytes, idle GPUs [{prices.currency}]")
    legend(time)
    legend(cost)
    save(figure, path)


def _counts(most: int) -> list[int]:
    """From 1 to `most`, ascending, each once."""
    return sorted({round(most ** (step / STEPS)) for step in range(STEPS + 1)})
