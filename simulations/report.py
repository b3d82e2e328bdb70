"""What a run is told as: one JSON object, or lines for people.

G is 10^9 everywhere, B is a byte and b a bit. Beside the swarm's time stand the bound and what
plain reads would take: every node its own copy, N·F/o, none faster than its NIC.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from simulations.measure import GroupOutcome, Outcome, percentile
from simulations.scenario import Scenario
from swarm.units import format_duration, format_size

AS_FAST_FACTOR = 1.1
"""Plain reads that take no longer than this are as fast."""

Json = Mapping[str, object]


def document(scenario: Scenario, seed: int, outcome: Outcome) -> dict[str, object]:
    """Everything that depends on scenario, seed and code alone."""
    ratios, seconds = outcome.ratios, outcome.seconds
    told: dict[str, object] = {
        "seed": seed,
        "nodes": scenario.node_count,
        "bytes": scenario.version.total_bytes,
        "chunks": scenario.version.chunk_count,
        "chunk_bytes": scenario.version.chunk_bytes,
        "bound_s": scenario.slowest_bound_s,
        "bottleneck": scenario.slowest_bottleneck,
        "direct_s": direct_s(scenario),
        "p50_ratio": percentile(ratios, 0.5),
        "p99_ratio": percentile(ratios, 0.99),
        "last_ratio": outcome.last_ratio,
        "p50_s": percentile(seconds, 0.5),
        "p99_s": percentile(seconds, 0.99),
        "last_s": percentile(seconds, 1.0),
        "node_s": sum(seconds),
        "groups": [_group(group) for group in outcome.groups],
        "newcomers": len(outcome.newcomer_ratios),
        "newcomer_p99_ratio": percentile(outcome.newcomer_ratios, 0.99)
        if outcome.newcomer_ratios
        else None,
        "ended_s": outcome.ended_s,
        "finished": len(ratios),
        "unfinished": outcome.unfinished_count,
        "origin_copies": outcome.origin_copies,
        "origin_requests": outcome.origin_requests,
        "origin_throttled": outcome.origin_throttled,
        "origin_hung": outcome.origin_hung,
        "cross_zone_copies": outcome.cross_zone_copies,
        "cross_rack_copies": outcome.cross_rack_copies,
        "transfers": outcome.transfers,
        "wasted_copies": outcome.wasted_copies,
        "messages": outcome.messages,
        "refusals": outcome.refusals,
        "tracker_calls": outcome.tracker_calls,
    }
    # Of whom nobody finished.
    return {
        key: finite(value) if isinstance(value, float) else value for key, value in told.items()
    }


def finite(value: float) -> float | None:
    """JSON has neither infinity nor "not a number"."""
    return value if math.isfinite(value) else None


def direct_s(scenario: Scenario) -> float | None:
    """Seconds until all have their copy straight from the origin; None without one."""
    if scenario.origin is None:
        return None
    total = scenario.version.total_bytes
    copies = sum(group.count * (1 - group.held_share) for group in scenario.groups)
    slowest = max((1 - g.held_share) / g.intake_bytes_per_s for g in scenario.groups)
    return max(copies * total / scenario.origin.bytes_per_s, total * slowest)


def _group(group: GroupOutcome) -> dict[str, object]:
    ratios = group.ratios
    return {
        "name": group.name,
        "bound_s": group.bound_s,
        "finished": len(ratios),
        "p50_ratio": percentile(ratios, 0.5) if ratios else None,
        "p99_ratio": percentile(ratios, 0.99) if ratios else None,
        "last_ratio": ratios[-1] if ratios else None,
    }


def lines(scenario: Scenario, outcome: Outcome) -> list[str]:
    """For people."""
    total = scenario.version.total_bytes
    ratios, seconds = outcome.ratios, outcome.seconds
    told = [
        f"{scenario.node_count} nodes, {scenario.version.chunk_count} chunks, "
        f"{format_size(total)} (GB = 10^9 bytes)",
        f"bound      {format_duration(scenario.slowest_bound_s)}",
    ]
    for share, name in ((0.5, "p50"), (0.99, "p99"), (1.0, "last")):
        took = format_duration(percentile(seconds, share))
        told.append(f"{name:<10} {took}, {percentile(ratios, share):.3f} of the bound")
    if len(outcome.groups) > 1:
        told += [
            f"  {group.name}: p99 {percentile(group.ratios, 0.99):.3f} of its bound"
            for group in outcome.groups
            if group.ratios
        ]
    if outcome.newcomer_ratios:
        late = percentile(outcome.newcomer_ratios, 0.99)
        told.append(f"  {len(outcome.newcomer_ratios)} newcomers: p99 {late:.3f} of the bound")
    plain_s = direct_s(scenario)
    if plain_s is not None:
        read = format_size(outcome.origin_copies * total)
        told.append(f"origin     {outcome.origin_copies:.3f} copies, {read}")
        told.append(f"direct     {format_duration(plain_s)} if each node read the origin itself")
        if plain_s <= AS_FAST_FACTOR * percentile(seconds, 1.0):
            told.append("           direct is as fast: the swarm does not pay here")
    if outcome.cross_zone_copies:
        told.append(f"zones      {outcome.cross_zone_copies:.3f} copies between zones")
    if outcome.cross_rack_copies:
        told.append(f"racks      {outcome.cross_rack_copies:.3f} copies between racks")
    told.append(f"bottleneck {scenario.slowest_bottleneck}")
    return told
