"""A plan as one JSON object, or as tables for people."""

from __future__ import annotations

from simulations.alternatives import Estimate
from simulations.cost import cost_document, money
from simulations.plan import BreakEven, Plan, SwarmPoint
from simulations.report import AS_FAST_FACTOR
from simulations.sensitivity import Effect, Sensitivity
from simulations.text_table import table_lines
from swarm.units import format_duration, format_size

FIRST_COUNT = 3
"""So many assumptions are named as those to find out first."""


def plan_document(plan: Plan) -> dict[str, object]:
    scenario = plan.scenario
    return {
        "seed": plan.seed,
        "nodes": scenario.node_count,
        "bytes": scenario.version.total_bytes,
        "chunks": scenario.version.chunk_count,
        "bound_s": scenario.slowest_bound_s,
        "bottleneck": scenario.slowest_bottleneck,
        "direct_is_as_fast": direct_is_as_fast(plan),
        "swarm": _point(plan.swarm),
        "curve": [_point(point) for point in plan.ladder],
        "alternatives": [_alternative(*pair) for pair in plan.alternatives],
        "break_even_looked_up_to": plan.looked_up_to,
        "sensitivity": _sensitivity(plan.sensitivity) if plan.sensitivity else None,
    }


def direct_is_as_fast(plan: Plan) -> bool:
    """Plain reads of the origin end as early as the swarm."""
    return any(
        estimate.name == "plain S3" and estimate.last_s <= AS_FAST_FACTOR * plan.swarm.last_s
        for estimate, _ in plan.alternatives
    )


def _point(point: SwarmPoint) -> dict[str, object]:
    return {
        "nodes": point.node_count,
        "p50_s": point.p50_s,
        "p99_s": point.p99_s,
        "last_s": point.last_s,
        "egress_bytes": point.cost.usage.origin_bytes,
        "cross_zone_bytes": point.cost.usage.cross_zone_bytes,
        "per_load": point.cost.total,
        "cost": cost_document(point.cost),
    }


def _alternative(estimate: Estimate, pays: BreakEven) -> dict[str, object]:
    return {
        "name": estimate.name,
        "p50_s": estimate.seconds(0.5),
        "p99_s": estimate.seconds(0.99),
        "last_s": estimate.last_s,
        "limited_by": estimate.limited_by,
        "egress_bytes": estimate.usage.origin_bytes,
        "per_load": estimate.per_load,
        "per_month": estimate.per_month,
        "swarm_faster_from_nodes": pays.time,
        "swarm_cheaper_from_nodes": pays.cost,
    }


def _sensitivity(found: Sensitivity) -> dict[str, object]:
    return {
        "nodes": found.node_count,
        "noise": found.noise,
        "effects": [
            {
                "assumption": effect.name,
                "now": effect.now,
                "changes": [
                    {"label": one.label, "p50_s": one.p50, "last_s": one.last, "cost": one.cost}
                    for one in effect.changes
                ],
            }
            for effect in found.effects
        ],
    }


def plan_lines(plan: Plan) -> list[str]:
    scenario, prices = plan.scenario, plan.swarm.cost.prices
    size = format_size(scenario.version.total_bytes)
    told = [
        f"{scenario.node_count:,} nodes, {size} (GB = 10^9 bytes), prices in {prices.currency} "
        f"({prices.dated})",
        f"bound {format_duration(scenario.slowest_bound_s)}, "
        f"bottleneck: {scenario.slowest_bottleneck}",
        "",
        *table_lines(
            ["", "p50", "p99", "last", "origin egress", "a load", "a month", "limited by"],
            [_swarm_row(plan), *(_row(estimate) for estimate, _ in plan.alternatives)],
        ),
        "",
        *(_pays(estimate, pays, plan) for estimate, pays in plan.alternatives),
    ]
    if direct_is_as_fast(plan):
        told.append("direct is as fast: the swarm does not pay in time here")
    if plan.sensitivity is not None:
        told += ["", *_sensitivity_lines(plan.sensitivity)]
    return told


def _swarm_row(plan: Plan) -> list[str]:
    swarm, scenario = plan.swarm, plan.scenario
    ratio = swarm.last_s / scenario.slowest_bound_s
    times = [format_duration(one) for one in (swarm.p50_s, swarm.p99_s, swarm.last_s)]
    egress = format_size(swarm.cost.usage.origin_bytes)
    return ["swarm", *times, egress, money(swarm.cost.total), "-", f"{ratio:.3f} of the bound"]


def _row(estimate: Estimate) -> list[str]:
    times = [format_duration(estimate.seconds(share)) for share in (0.5, 0.99, 1.0)]
    per_month = money(estimate.per_month) if estimate.per_month else "-"
    egress = format_size(estimate.usage.origin_bytes)
    cost = money(estimate.per_load)
    return [estimate.name, *times, egress, cost, per_month, estimate.limited_by]


def _pays(estimate: Estimate, pays: BreakEven, plan: Plan) -> str:
    def since(count: int | None) -> str:
        if count is None:
            return f"not up to {plan.looked_up_to:,} nodes"
        return f"from {count:,} node{'s' if count > 1 else ''} on"

    return (
        f"against {estimate.name}: the swarm is faster {since(pays.time)}, "
        f"cheaper {since(pays.cost)}"
    )


def _sensitivity_lines(found: Sensitivity) -> list[str]:
    heads = ["what moves the answer most", "now", "if", "half", "last node", "a load"]
    rows = [row for effect in found.effects for row in _effect_rows(effect)]
    named = [effect.name for effect in found.effects if effect.last > found.noise]
    lines = table_lines(heads, rows)
    lines.append(
        f"({found.node_count} nodes; less than {100 * found.noise:.1f} % of the last node is noise)"
    )
    if named:
        lines.append(f"find out first: {', '.join(named[:FIRST_COUNT])}")
    return lines


def _effect_rows(effect: Effect) -> list[list[str]]:
    """One for each change; the name stands in the first."""
    rows: list[list[str]] = []
    for change in effect.changes:
        names = [effect.name, effect.now] if not rows else ["", ""]
        values = [_percent(one) for one in (change.p50, change.last, change.cost)]
        rows.append([*names, change.label, *values])
    return rows


def _percent(share: float | None) -> str:
    """With its sign; nothing is nothing."""
    if share is None:
        return "fails"
    return f"{100 * share:+.1f} %" if abs(share) >= 0.0005 else "0"
