"""What a plan of a fleet is told as: a recommendation, why, and what would change it.

One JSON object holds everything that was tried; the lines for people hold of each signal the best
without warm capacity and the best with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from simulations.cost import money
from simulations.fleet.nodes import State
from simulations.fleet.outcome import Outcome
from simulations.fleet.planning import Challenge, Plan, Row
from simulations.fleet.scaling import Policy, Signal
from simulations.fleet.serving import DoesNotFit, Serving
from simulations.fleet.slo import Metric
from simulations.measure import percentile
from simulations.report import finite
from simulations.text_table import table_lines
from swarm.units import format_duration

Json = Mapping[str, object]
BLOCK_SIZES = (1, 8, 16, 32, 64, 128)
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def plan_document(plan: Plan, currency: str, loads: Mapping[int, Sequence[float]]) -> Json:
    """Everything that depends on the file, the trace and the code alone."""
    case = plan.case
    serving = case.setup.serving
    return {
        "objective": str(case.slo),
        "currency": currency,
        "requests": len(case.requests),
        "trace_s": case.requests[-1].arrival_s,
        "replica": {
            "requests_per_s": plan.capacity.per_s,
            "in_flight": plan.capacity.in_flight,
            "alone_ttft_s": finite(plan.capacity.alone_ttft_s),
            "broken_alone": list(plan.capacity.broken_alone),
            "kv_blocks": serving.block_count,
            "blocks": [asdict(row) for row in block_rows(serving, mean_tokens(plan))],
        },
        "cold_start": {
            "boot_s": case.setup.boot_s,
            "engine_s": case.setup.engine_s,
            "load_s": {str(count): times[-1] for count, times in loads.items()},
        },
        "recommendation": _row_document(plan.best) if plan.best else None,
        "runner_up": _row_document(plan.runner_up) if plan.runner_up else None,
        "break_even_warm_price": warm_break_even(plan),
        "tried": [_row_document(row) for row in plan.rows],
        "challenges": [
            {"what": each.what, "warm": each.warm, **outcome_document(each.outcome)}
            for each in plan.challenges
        ],
    }


def _row_document(row: Row) -> dict[str, object]:
    policy = row.policy
    return {
        "signal": policy.signal,
        "target": policy.target,
        "share": row.share,
        "floor": policy.floor,
        "warm": policy.warm,
        "step": policy.step_max,
        "schedule": [list(entry) for entry in policy.schedule],
        **outcome_document(row.outcome),
    }


def outcome_document(outcome: Outcome) -> dict[str, object]:
    times = {
        metric.value: {
            name: finite(percentile(outcome.times[metric], share))
            for name, share in PERCENTILES.items()
        }
        for metric in Metric
    }
    return {
        "is_met": outcome.is_met,
        "broken": list(outcome.broken),
        "miss_share": outcome.miss_share,
        "unanswered": outcome.unanswered,
        "seconds": times,
        "replicas_max": outcome.replicas_max,
        "replicas_min": outcome.replicas_min,
        "nodes_max": outcome.nodes_max,
        "cold_starts": sum(start.count for start in outcome.cold_starts),
        "most_at_once": max((start.at_once for start in outcome.cold_starts), default=0),
        "slowest_cold_start_s": outcome.slowest_cold_start_s,
        "interruptions": outcome.interruptions,
        "restarts": outcome.restarts,
        "hit_rate": outcome.hit_rate,
        "node_hours": {state.value: s / 3600 for state, s in outcome.node_seconds.items()},
        "cost": outcome.cost,
        "cost_per_million_tokens": outcome.per_million_tokens,
        "cost_per_request": outcome.per_request,
    }


def plan_lines(plan: Plan, currency: str, loads: Mapping[int, Sequence[float]]) -> list[str]:
    """For people."""
    case = plan.case
    span_s = max(case.requests[-1].arrival_s, 1.0)
    told = [
        f"{len(case.requests)} requests in {format_duration(span_s)}, "
        f"{len(case.requests) / span_s:.2f}/s on average; objective: {case.slo}",
        *_replica_lines(plan),
        _cold_start_line(plan, loads),
    ]
    if plan.best is None:
        broken = ", ".join(plan.capacity.broken_alone)
        told.append(f"no number of replicas helps: a request that is alone already breaks {broken}")
        return told
    told += ["", *_advice(plan.best, plan, currency), "", "why"]
    told += [f"  {line}" for line in _comparison(plan, currency)]
    told += ["", "what would change it", *_challenge_lines(plan)]
    return told


def _replica_lines(plan: Plan) -> list[str]:
    serving, capacity = plan.case.setup.serving, plan.capacity
    tokens = mean_tokens(plan)
    engine = serving.engine
    return [
        f"a replica  keeps it up to {capacity.per_s:.2f} requests/s, with "
        f"{capacity.in_flight:.1f} in flight; one alone: {capacity.alone_ttft_s:.2f} s to the "
        "first token",
        f"memory     {serving.block_count} KV blocks of {engine.block_tokens} tokens: "
        f"{serving.concurrent(tokens)} sequences of {tokens} tokens (the mean)",
    ]


def _cold_start_line(plan: Plan, loads: Mapping[int, Sequence[float]]) -> str:
    setup = plan.case.setup
    words = ", ".join(f"{times[-1]:.0f} s for {count} at once" for count, times in loads.items())
    boot, engine = format_duration(setup.boot_s), format_duration(setup.engine_s)
    return f"cold start {boot} boot + load ({words}) + {engine} engine"


def _advice(best: Row, plan: Plan, currency: str) -> list[str]:
    policy, outcome, case = best.policy, best.outcome, plan.case
    hours = max(case.requests[-1].arrival_s / 3600, 1e-9)
    head = "do this" if outcome.is_met else "nothing that was tried keeps the objective; closest"
    warm = f"{policy.warm} booted with the version on disk, engine not running"
    return [
        head,
        f"  scale by    {threshold(policy)}",
        f"  replicas    {policy.floor} at least; the trace took {outcome.replicas_max} at most",
        f"  warm floor  {warm if policy.warm else 'none'}",
        f"  scale out   by up to {policy.step_max} at once, looking every "
        f"{format_duration(policy.interval_s)}; in after {format_duration(policy.calm_s)} of calm",
        f"  cost        {money(outcome.cost)} {currency} for the trace: "
        f"{money(outcome.cost / hours)} an hour, {money(outcome.per_million_tokens)} per million "
        f"tokens, {money(outcome.per_request * 1000)} per 1,000 requests",
        f"  misses      {outcome.miss_share:.2%}; " + ", ".join(_percentile_words(outcome)),
    ]


def _percentile_words(outcome: Outcome) -> list[str]:
    return [
        f"{metric} p50 {percentile(outcome.times[metric], 0.5):.3g} s "
        f"p99 {percentile(outcome.times[metric], 0.99):.3g} s"
        for metric in Metric
    ]


def threshold(policy: Policy) -> str:
    """The signal and what to compare it with."""
    match policy.signal:
        case Signal.UTILISATION:
            return f"GPU utilisation above {policy.target:.0%}"
        case Signal.QUEUE:
            return f"requests waiting or running above {policy.target:.1f} per replica"
        case Signal.LATENCY:
            return f"time to first token, p95, above {policy.target:.2g} s"
        case Signal.SCHEDULE:
            most = max(count for _, count in policy.schedule)
            return f"schedule of {len(policy.schedule)} entries, up to {most} replicas"


def _comparison(plan: Plan, currency: str) -> list[str]:
    heads = ("signal", "floor", "warm", "step", "misses", "ttft p99", "most", "cold", currency, "")
    rows: list[tuple[str, ...]] = []
    for signal in plan.case.signals:
        tried = [row for row in plan.rows if row.policy.signal is signal]
        floor = plan.case.floor
        bare = [row for row in tried if not row.policy.warm and row.policy.floor == floor]
        more = [row for row in tried if row not in bare]
        chosen = [min(rows, key=lambda row: row.rank) for rows in (bare, more) if rows]
        rows += [_comparison_row(row, plan) for row in chosen]
    return table_lines(heads, rows)


def _comparison_row(row: Row, plan: Plan) -> tuple[str, ...]:
    policy, outcome = row.policy, row.outcome
    mark = "" if outcome.is_met else "breaks it"
    if row is plan.best:
        mark = "<- this" if outcome.is_met else "<- closest"
    elif row is plan.runner_up:
        mark = "runner-up" if outcome.is_met else "runner-up, breaks it"
    ttft_s = percentile(outcome.times[Metric.TTFT], 0.99)
    return (
        threshold(policy),
        str(policy.floor),
        str(policy.warm),
        str(policy.step_max),
        f"{outcome.miss_share:.2%}",
        f"{ttft_s:.2f} s",
        str(outcome.replicas_max),
        str(sum(start.count for start in outcome.cold_starts)),
        money(outcome.cost),
        mark,
    )


def _challenge_lines(plan: Plan) -> list[str]:
    told = [f"  {each.what}: {_challenge_words(each)}" for each in plan.challenges]
    share = warm_break_even(plan)
    if share is not None and plan.runner_up is not None:
        runner_up = plan.runner_up.policy
        told.append(
            f"  a warm node at less than {share:.0%} of its price: {runner_up.signal} with "
            f"{runner_up.warm} warm would be cheaper"
        )
    return told


def _challenge_words(challenge: Challenge) -> str:
    outcome = challenge.outcome
    if outcome.is_met:
        return f"still kept, {outcome.miss_share:.2%} miss"
    if challenge.warm is None:
        many = f"with {challenge.warm_tried} warm nodes it is still broken"
        return f"{outcome.miss_share:.2%} would miss, and {many}"
    return f"{outcome.miss_share:.2%} would miss; {challenge.warm} warm nodes would keep it"


def warm_break_even(plan: Plan) -> float | None:
    """Part of its price at which a warm node makes the runner-up as cheap as the best; None if
    there is no such part, or either breaks the objective."""
    if plan.best is None or plan.runner_up is None:
        return None
    best, other = plan.best.outcome, plan.runner_up.outcome
    price = plan.case.prices.per_warm_node_s
    gap = (other.node_seconds[State.WARM] - best.node_seconds[State.WARM]) * price
    dearer = other.cost - best.cost
    if not (best.is_met and other.is_met) or gap <= 0 or not 0 < dearer < gap:
        return None
    return 1 - dearer / gap


def mean_tokens(plan: Plan) -> int:
    requests = plan.case.requests
    total = sum(request.prompt_tokens + request.output_tokens for request in requests)
    return max(round(total / len(requests)), 1)


@dataclass(frozen=True, slots=True)
class BlockRow:
    """What one size of KV blocks comes to, for sequences of the mean length."""

    block_tokens: int
    # That run at once.
    sequences: int
    # Part of their blocks that holds nothing, on average.
    waste_share: float
    # Of so many of them.
    step_s: float


def block_rows(serving: Serving, tokens: int) -> list[BlockRow]:
    """What the block size trades: waste at the tail of each sequence, tables to keep. Sizes of
    which not one sequence fits are left out."""
    rows: list[BlockRow] = []
    for block_tokens in sorted({*BLOCK_SIZES, serving.engine.block_tokens}):
        engine = replace(serving.engine, block_tokens=block_tokens)
        try:
            sized = Serving(serving.hardware, serving.model, engine)
        except DoesNotFit:
            continue
        count = sized.concurrent(tokens)
        if not count:
            continue
        # Half a block a sequence is empty, whatever its length.
        empty = (block_tokens - 1) / 2
        step_s = sized.step_s(count, count * tokens)
        rows.append(BlockRow(block_tokens, count, empty / (tokens + empty), step_s))
    return rows
