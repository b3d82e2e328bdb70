"""A fleet over a trace: nodes come and go as ordered, and warm capacity is seen to help."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulations.fleet.fleet import CacheRule, Fleet, Setup, Spot
from simulations.fleet.nodes import State
from simulations.fleet.outcome import FleetPrices, Outcome, measure
from simulations.fleet.requests import Request
from simulations.fleet.scaling import Policy, Signal
from simulations.fleet.serving import CacheLink, Engine, Hardware, Model, Serving
from simulations.fleet.slo import Metric, parse_slo
from simulations.fleet.traffic import Burst, Lengths, Traffic, draw_requests
from swarm.errors import UsageError

SLO = parse_slo("ttft p99 < 2 s, misses < 1 %")
PRICES = FleetPrices(per_node_s=0.001, per_warm_node_s=0.0005)
# A step takes 10 ms and a prefill 10 ms or 0.5 ms a token; eight sequences at once.
HARDWARE = Hardware(4e3, 1e5, 1e5, flops_share=1.0, bandwidth_share=1.0, memory_share=1.0)
MODEL = Model(1.0, 1e3, 1, 0, 1, 1, kv_element_bytes=0.5)
SERVING = Serving(HARDWARE, MODEL, Engine(sequences_max=8))
BURST = draw_requests(
    Traffic(3600.0, 3.0, Lengths(200, 0.3), Lengths(100, 0.3), bursts=(Burst(1200.0, 900.0, 4.0),)),
    1,
)
SETUP = Setup(SERVING, 60.0, 20.0, lambda count: [60.0] * count)
QUEUE = Policy(Signal.QUEUE, 5.0, floor=1, step_max=4)


def serve(policy: Policy, made: Setup, requests: list[Request] = BURST) -> Outcome:
    fleet = Fleet(made, requests, policy, replicas=policy.floor)
    fleet.run()
    return measure(fleet, SLO, PRICES)


def test_warm_capacity_wins_a_burst() -> None:
    """Four times the traffic at once. Cold nodes come after 140 s, warm ones after 20 s."""
    cold = serve(QUEUE, SETUP)
    warm = serve(replace(QUEUE, warm=4), SETUP)
    assert warm.miss_share < cold.miss_share / 2
    assert warm.times[Metric.TTFT][-1] < cold.times[Metric.TTFT][-1]
    assert cold.node_seconds[State.WARM] == 0
    assert warm.node_seconds[State.WARM] > 4 * 1800


def test_warm_capacity_that_nobody_needs_costs_what_it_stands_by() -> None:
    calm = draw_requests(Traffic(3600.0, 0.2, Lengths(200), Lengths(100)), 1)
    cold = serve(QUEUE, SETUP, calm)
    warm = serve(replace(QUEUE, warm=4), SETUP, calm)
    assert warm.times == cold.times
    assert warm.cost - cold.cost == pytest.approx(4 * 3600 * 0.0005, rel=0.01)


@pytest.mark.parametrize(
    ("signal", "target"),
    [(Signal.UTILISATION, 0.7), (Signal.QUEUE, 5.0), (Signal.LATENCY, 0.5)],
)
def test_each_signal_answers_a_burst_and_lets_go_afterwards(signal: Signal, target: float) -> None:
    policy = replace(QUEUE, signal=signal, target=target, warm=2)
    fleet = Fleet(SETUP, BURST, policy, replicas=1)
    fleet.run()
    outcome = measure(fleet, SLO, PRICES)
    assert outcome.unanswered == 0
    assert outcome.replicas_max > 3
    assert fleet.moments[-1].ready < outcome.replicas_max
    assert outcome.replicas_min == 1


def test_more_at_once_load_longer_and_the_fleet_feels_it() -> None:
    """The same orders, but a load takes longer the more nodes share it: what every node reading one
    origin does."""
    alone = serve(replace(QUEUE, step_max=8), SETUP)
    fed_back = serve(
        replace(QUEUE, step_max=8), replace(SETUP, load_times=lambda count: [60.0 * count] * count)
    )
    at_once = max(start.at_once for start in fed_back.cold_starts)
    assert at_once > 1
    assert fed_back.slowest_cold_start_s == pytest.approx(60 + 60 * at_once + 20)
    assert alone.slowest_cold_start_s == pytest.approx(140)
    assert fed_back.miss_share > alone.miss_share


def test_nodes_still_loading_count_as_one_swarm_with_those_ordered_later() -> None:
    starts = serve(
        replace(QUEUE, step_max=1), replace(SETUP, load_times=lambda count: [300.0] * count)
    ).cold_starts
    assert starts[0].at_once == 1
    assert any(start.at_once > start.count for start in starts)


def test_a_warm_node_serves_after_its_engine_started_and_is_replaced() -> None:
    """One request every 50 ms overloads one replica from the start; monitoring looks at 15 s."""
    requests = [Request(place * 0.05, 200, 100) for place in range(4000)]
    policy = replace(QUEUE, warm=1, step_max=1, replicas_max=2)
    fleet = Fleet(SETUP, requests, policy, replicas=1)
    fleet.run()
    ready = [(moment.at_s, moment.ready) for moment in fleet.moments]
    assert ready[:3] == [(15.0, 1), (30.0, 1), (45.0, 2)]
    # The pool's new node boots and loads and then stays warm.
    warm = {moment.at_s: moment.warm for moment in fleet.moments}
    assert (warm[15.0], warm[30.0], warm[120.0], warm[150.0]) == (1, 0, 0, 1)


def test_everything_that_is_paid_for_is_counted() -> None:
    outcome = serve(replace(QUEUE, warm=1), SETUP)
    seconds = outcome.node_seconds
    paid = sum(seconds.values()) - seconds[State.WARM]
    assert outcome.cost == pytest.approx(paid * 0.001 + seconds[State.WARM] * 0.0005)
    assert seconds[State.STARTING] == pytest.approx(20.0 * round(seconds[State.STARTING] / 20))
    tokens = outcome.prompt_tokens + outcome.output_tokens
    assert outcome.per_million_tokens == pytest.approx(outcome.cost / tokens * 1e6)


def test_spot_nodes_are_taken_after_their_notice_and_their_requests_start_again() -> None:
    """Forty interruptions an hour and node, and requests that take longer than the notice."""
    requests = [Request(place * 2.0, 200, 600) for place in range(600)]
    spot = Spot(interruptions_per_hour=40.0, notice_s=5.0)
    policy = Policy(Signal.SCHEDULE, floor=4, replicas_max=4)
    fleet = Fleet(replace(SETUP, spot=spot), requests, policy, replicas=4)
    fleet.run()
    outcome = measure(fleet, SLO, PRICES)
    assert outcome.interruptions > 10
    assert outcome.restarts > 0
    assert outcome.unanswered == 0
    calm = serve(policy, SETUP, requests)
    assert calm.interruptions == calm.restarts == 0
    assert calm.times[Metric.LATENCY][-1] < outcome.times[Metric.LATENCY][-1]


def test_a_shared_cache_saves_prefill_and_is_billed_by_bytes_over_time() -> None:
    traffic = Traffic(600.0, 2.0, Lengths(50), Lengths(20), prefixes=1, prefix_tokens=400)
    requests = draw_requests(traffic, 1)
    plain = serve(QUEUE, SETUP, requests)
    cached = serve(QUEUE, replace(SETUP, cache=CacheRule(is_shared=True)), requests)
    assert cached.hit_rate == pytest.approx(400 / 450, rel=0.01)
    assert cached.times[Metric.TTFT][600] < plain.times[Metric.TTFT][600] / 2
    first_s = requests[0].arrival_s
    assert cached.cache_byte_s == pytest.approx(400 * (600 - first_s), rel=0.02)
    own = serve(QUEUE, replace(SETUP, cache=CacheRule(is_shared=False)), requests)
    assert own.cache_byte_s == 0.0
    assert own.hit_rate == pytest.approx(cached.hit_rate, rel=0.02)


def test_a_request_that_starts_again_is_found_once() -> None:
    """What was read for the lost attempts is no part of the hit rate: only the first request finds
    nothing, whatever was interrupted."""
    requests = [Request(place * 2.0, 450, 600, "prompt", 400) for place in range(200)]
    spot = Spot(interruptions_per_hour=40.0, notice_s=5.0)
    made = replace(SETUP, spot=spot, cache=CacheRule(is_shared=True))
    policy = Policy(Signal.SCHEDULE, floor=4, replicas_max=4)
    outcome = serve(policy, made, requests)
    assert outcome.restarts > 10
    assert outcome.hit_rate <= 400 / 450


def test_replicas_with_caches_of_their_own_get_what_they_have_seen() -> None:
    """Four conversations over four replicas: each stays where it began."""
    requests = [
        Request(place * 0.6, 100 * (place // 4 + 1), 10, f"chat-{place % 4}") for place in range(40)
    ]
    policy = Policy(Signal.SCHEDULE, floor=4, replicas_max=4)
    fleet = Fleet(replace(SETUP, cache=CacheRule(is_shared=False)), requests, policy, replicas=4)
    fleet.run()
    assert measure(fleet, SLO, PRICES).hit_rate > 0.7


def test_a_request_that_never_fits_is_refused_with_its_time() -> None:
    with pytest.raises(UsageError, match=r"99999 tokens \(arrival 3 s\) never fits"):
        Fleet(SETUP, [Request(3.0, 99_990, 9)], QUEUE, replicas=1)


def test_a_cache_link_that_is_slower_than_computing_shows() -> None:
    slow = Serving(HARDWARE, MODEL, Engine(sequences_max=8), CacheLink(bytes_per_s=100.0))
    traffic = Traffic(300.0, 0.2, Lengths(50), Lengths(5), prefixes=1, prefix_tokens=400)
    requests = draw_requests(traffic, 1)
    cached = serve(QUEUE, replace(SETUP, serving=slow, cache=CacheRule(is_shared=True)), requests)
    assert cached.times[Metric.TTFT][30] > 4.0


def test_a_run_depends_on_nothing_but_its_inputs() -> None:
    spot = Spot(2.0)
    first, second = (serve(replace(QUEUE, warm=2), replace(SETUP, spot=spot)) for _ in range(2))
    assert first == second
    assert serve(replace(QUEUE, warm=2), replace(SETUP, spot=spot, seed=2)) != first


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.0, 20.0), st.integers(1, 900), st.integers(1, 60)),
        min_size=1, max_size=60,
    ),
    st.integers(1, 3),
)  # fmt: skip
def test_everybody_is_answered_in_order_of_cause(
    gaps: list[tuple[float, int, int]], replicas: int
) -> None:
    """First token after arrival, last after first, by no less than the steps between."""
    requests, now_s = [], 0.0
    for gap_s, prompt, output in gaps:
        now_s += gap_s
        requests.append(Request(now_s, prompt, output))
    fleet = Fleet(SETUP, requests, replace(QUEUE, floor=replicas), replicas=replicas)
    fleet.run()
    assert fleet.unfinished_count == 0
    for ask in fleet.asks:
        request = ask.request
        assert ask.first_token_at >= request.arrival_s + max(0.01, request.prompt_tokens / 2000)
        steps_s = (request.output_tokens - 1) * 0.01
        assert ask.done_at >= ask.first_token_at + steps_s * (1 - 1e-9)
        assert ask.done_at < math.inf


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.floats(0.5, 4.0))
def test_fixed_replicas_serve_later_arrivals_no_earlier_and_more_replicas_serve_no_worse(
    seed: int, per_s: float
) -> None:
    """Equal requests to equal servers of one sequence: then more servers help everyone."""
    serving = Serving(HARDWARE, MODEL, Engine(sequences_max=1))
    requests = draw_requests(Traffic(60.0, per_s, Lengths(200), Lengths(50)), seed)
    if not requests:
        return
    ends = []
    for replicas in (1, 2, 3):
        policy = Policy(Signal.SCHEDULE, floor=replicas, replicas_max=replicas)
        fleet = Fleet(replace(SETUP, serving=serving), requests, policy, replicas=replicas)
        fleet.run()
        done = [ask.done_at for ask in fleet.asks]
        assert done == sorted(done)
        ends.append(done)
    for fewer, more in itertools.pairwise(ends):
        assert all(b <= a + 1e-9 for a, b in zip(fewer, more, strict=True))
