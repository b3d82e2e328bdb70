"""Plans over short traces: what is recommended keeps the objective, and nothing that was tried and
keeps it is cheaper."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from simulations.fleet.capacity import offer
from simulations.fleet.fleet import Setup
from simulations.fleet.nodes import State
from simulations.fleet.outcome import FleetPrices
from simulations.fleet.planning import Case, Plan, make_plan
from simulations.fleet.report import block_rows, plan_document, plan_lines, warm_break_even
from simulations.fleet.scaling import Forecast, Signal
from simulations.fleet.serving import Engine, Hardware, Model, Serving
from simulations.fleet.slo import parse_slo
from simulations.fleet.traffic import Burst, Lengths, Traffic, draw_requests

# A step takes 10 ms and a prefill 10 ms or 0.5 ms a token; eight sequences at once.
SERVING = Serving(
    Hardware(4e3, 1e5, 1e5, flops_share=1.0, bandwidth_share=1.0, memory_share=1.0),
    Model(1.0, 1e3, 1, 0, 1, 1, kv_element_bytes=0.5),
    Engine(sequences_max=8),
)
TRAFFIC = Traffic(
    24_000.0, 0.15, Lengths(200, 0.3), Lengths(100, 0.3), bursts=(Burst(9000.0, 1500.0, 30.0),)
)
CASE = Case(
    Setup(SERVING, 60.0, 20.0, lambda count: [60.0] * count),
    draw_requests(TRAFFIC, 1),
    parse_slo("ttft p95 < 3 s, misses < 3 %"),
    FleetPrices(per_node_s=0.001, per_warm_node_s=0.0002),
    Forecast(3600.0, (0.15,) * 7),
    shares=(0.7,),
    warm_max=8,
    replicas_max=20,
)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(CASE, lambda count: [600.0 * count] * count, lambda _: None)


def test_a_replica_carries_what_it_is_found_to_carry(plan: Plan) -> None:
    capacity = plan.capacity
    assert offer(CASE.setup, CASE.requests[:4000], CASE.slo, capacity.per_s * 0.9).is_met
    assert not offer(CASE.setup, CASE.requests[:4000], CASE.slo, capacity.per_s * 1.2).is_met
    assert capacity.in_flight > capacity.per_s * 0.1
    assert capacity.alone_ttft_s == pytest.approx(0.1, rel=0.05)


def test_a_request_that_breaks_the_objective_alone_ends_the_plan() -> None:
    strict = replace(CASE, slo=parse_slo("ttft p99 < 5 ms"))
    found = make_plan(strict, None, lambda _: None)
    assert found.best is None
    assert found.capacity.broken_alone == ("ttft p99 < 0.005 s",)
    assert "no number of replicas helps" in plan_lines(found, "USD", {})[-1]
    assert plan_document(found, "USD", {})["recommendation"] is None


def test_the_recommendation_is_the_cheapest_that_keeps_the_objective(plan: Plan) -> None:
    assert plan.best is not None
    assert plan.best.outcome.is_met
    kept = [row.outcome.cost for row in plan.rows if row.outcome.is_met]
    assert plan.best.outcome.cost == min(kept)
    assert plan.runner_up is not None
    assert plan.runner_up.policy.signal is not plan.best.policy.signal


def test_every_signal_was_tried_with_warm_capacity_and_without(plan: Plan) -> None:
    for signal in Signal:
        rows = [row for row in plan.rows if row.policy.signal is signal]
        bare = [row for row in rows if not row.policy.warm and row.policy.floor == 1]
        more = [row for row in rows if row.policy.warm or row.policy.floor > 1]
        assert bare, signal
        assert more, signal


def test_a_burst_that_no_schedule_knows_breaks_it(plan: Plan) -> None:
    rows = [row for row in plan.rows if row.policy.signal is Signal.SCHEDULE]
    bare = next(row for row in rows if not row.policy.warm and row.policy.floor == 1)
    assert bare.outcome.miss_share > 0.1


def test_fewer_warm_nodes_than_recommended_do_not_keep_it(plan: Plan) -> None:
    queue = [row for row in plan.rows if row.policy.signal is Signal.QUEUE]
    warm = [row for row in queue if row.policy.warm and row.policy.step_max == CASE.step]
    kept = min((row.policy.warm for row in warm if row.outcome.is_met), default=0)
    assert kept > 1
    assert all(not row.outcome.is_met for row in warm if row.policy.warm < kept)


def test_the_swarm_is_part_of_the_answer(plan: Plan) -> None:
    """The recommendation runs again with the load times of another way, and with slower starts."""
    assert plan.best is not None
    told = {each.what: each for each in plan.challenges}
    no_swarm = told["no swarm: every node reads the origin"]
    at_once = max(start.at_once for start in no_swarm.outcome.cold_starts)
    assert at_once > 1
    assert no_swarm.outcome.slowest_cold_start_s == 60.0 + 600.0 * at_once + 20.0
    assert plan.best.outcome.slowest_cold_start_s == 140.0
    slower = told["cold starts take twice as long"]
    assert slower.outcome.miss_share > plan.best.outcome.miss_share


def test_lines_name_what_an_operator_sets(plan: Plan) -> None:
    text = "\n".join(plan_lines(plan, "USD", {1: (60.0,)}))
    for words in ("scale by", "replicas", "warm floor", "scale out", "<- this", "runner-up"):
        assert words in text


def test_the_object_holds_all_that_was_tried(plan: Plan) -> None:
    told = json.loads(json.dumps(plan_document(plan, "USD", {1: (60.0,)}), allow_nan=False))
    assert len(told["tried"]) == len(plan.rows)
    assert told["recommendation"]["is_met"] is True
    assert told["cold_start"]["load_s"] == {"1": 60.0}
    assert told["replica"]["kv_blocks"] == SERVING.block_count


def test_a_break_even_price_makes_both_cost_the_same(plan: Plan) -> None:
    """10,000 s of warm nodes at 0.0002 are 2; one of it has to go."""
    assert plan.best is not None
    none_warm = {**plan.best.outcome.node_seconds, State.WARM: 0.0}
    some_warm = {**plan.best.outcome.node_seconds, State.WARM: 10_000.0}
    best = replace(plan.best.outcome, node_seconds=none_warm, cost=50.0)
    for cost, share in ((51.0, 0.5), (52.5, None), (49.0, None)):
        other = replace(plan.best.outcome, node_seconds=some_warm, cost=cost)
        told = replace(
            plan,
            best=replace(plan.best, outcome=best),
            runner_up=replace(plan.best, outcome=other),
        )
        assert warm_break_even(told) == (None if share is None else pytest.approx(share))


def test_block_sizes_trade_waste_for_tables() -> None:
    serving = Serving(SERVING.hardware, SERVING.model, Engine(sequences_max=64, block_s=1e-5))
    rows = block_rows(serving, 300)
    wastes = [row.waste_share for row in rows]
    steps = [row.step_s for row in rows]
    assert wastes == sorted(wastes)
    assert steps == sorted(steps, reverse=True)
    assert wastes[0] == 0.0


def test_a_block_size_of_which_none_fits_is_left_out() -> None:
    """100 bytes beside the weights are 100 tokens: no block of 128, and of 64 one."""
    small = replace(SERVING.hardware, memory_bytes=1100.0)
    rows = block_rows(Serving(small, SERVING.model, Engine()), 50)
    assert [row.block_tokens for row in rows] == [1, 8, 16, 32, 64]
    assert rows[-1].sequences == 1
