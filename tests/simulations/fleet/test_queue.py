"""The queue of a fleet against closed forms: replicas of one sequence each are servers.

M/M/c: Erlang's C formula. M/D/1: Pollaczek and Khinchine. M/D/c: Cosmetatos' approximation (1976),
itself good to about one per cent at these loads. 60,000 requests at two thirds of full load leave a
standard error of about one to two per cent.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from simulations.fleet.fleet import Fleet, Setup
from simulations.fleet.requests import Request
from simulations.fleet.scaling import Policy, Signal
from simulations.fleet.serving import Engine, Hardware, Model, Serving

STEP_S = 0.001
# Reading 1 GB at 1 TB/s is a step, and nothing else takes time.
SERVER = Serving(
    Hardware(1e30, 1e12, 100e9, flops_share=1.0, bandwidth_share=1.0, memory_share=1.0),
    Model(1.0, 1e9, 1, 0, 1, 1, kv_element_bytes=1e-9),
    Engine(sequences_max=1),
)


def mean_wait_s(requests: Sequence[Request], servers: int) -> float:
    setup = Setup(SERVER, 0.0, 0.0, lambda count: [0.0] * count)
    policy = Policy(Signal.SCHEDULE, floor=servers, replicas_max=servers, interval_s=1e6)
    fleet = Fleet(setup, requests, policy, replicas=servers)
    fleet.run()
    assert fleet.unfinished_count == 0
    waits = [ask.first_token_at - ask.request.arrival_s - STEP_S for ask in fleet.asks]
    return sum(waits) / len(waits)


def arrivals(per_s: float, output: Callable[[random.Random], int]) -> list[Request]:
    rng = random.Random(5)
    now_s = 0.0
    requests = []
    for _ in range(60_000):
        now_s += rng.expovariate(per_s)
        requests.append(Request(now_s, 1, output(rng)))
    return requests


def erlang_wait_s(servers: int, load: float, service_s: float) -> float:
    """Mean wait of M/M/c; `load` in servers."""
    terms = [load**k / math.factorial(k) for k in range(servers)]
    last = load**servers / math.factorial(servers) / (1 - load / servers)
    return last / (sum(terms) + last) * service_s / (servers - load)


@pytest.mark.parametrize("servers", [1, 4])
def test_mean_wait_is_that_of_m_m_c(servers: int) -> None:
    """Geometric numbers of tokens, 200 on average: exponential times to half a per cent."""
    load, service_s = 0.66 * servers, 200 * STEP_S

    def geometric(rng: random.Random) -> int:
        return 1 + int(math.log(1 - rng.random()) / math.log(1 - 1 / 200))

    simulated_s = mean_wait_s(arrivals(load / service_s, geometric), servers)
    assert simulated_s == pytest.approx(erlang_wait_s(servers, load, service_s), rel=0.05)


@pytest.mark.parametrize("servers", [1, 4])
def test_mean_wait_is_that_of_m_d_c(servers: int) -> None:
    load, service_s = 0.66 * servers, 200 * STEP_S
    utilisation = load / servers
    correction = (1 - utilisation) * (servers - 1) * (math.sqrt(4 + 5 * servers) - 2)
    expected_s = erlang_wait_s(servers, load, service_s) / 2
    expected_s *= 1 + correction / (16 * utilisation * servers)
    simulated_s = mean_wait_s(arrivals(load / service_s, lambda _: 200), servers)
    assert simulated_s == pytest.approx(expected_s, rel=0.04)


def test_full_batches_of_an_aggregator_give_their_rate() -> None:
    """Eight at a time, 200 steps each: 40 requests/s from a queue that is never empty."""
    engine = Engine(sequences_max=8, aggregate_wait_s=0.5)
    serving = Serving(SERVER.hardware, SERVER.model, engine)
    requests = [Request(0.0, 1, 200)] * 800
    setup = Setup(serving, 0.0, 0.0, lambda count: [0.0] * count)
    fleet = Fleet(setup, requests, Policy(Signal.SCHEDULE, replicas_max=1), replicas=1)
    fleet.run()
    assert fleet.timeline.now == pytest.approx(800 / 8 * 0.2)


def test_an_aggregator_waits_so_long_and_no_longer() -> None:
    engine = Engine(sequences_max=3, aggregate_wait_s=0.5)
    serving = Serving(SERVER.hardware, SERVER.model, engine)
    times = (0.0, 0.1, 2.0, 2.1, 2.2, 2.2005)
    requests = [Request(at_s, 1, 1) for at_s in times]
    setup = Setup(serving, 0.0, 0.0, lambda count: [0.0] * count)
    fleet = Fleet(setup, requests, Policy(Signal.SCHEDULE, replicas_max=1), replicas=1)
    fleet.run()
    # Two that wait half a second; three that are a batch at once; one that waits alone.
    expected = [0.501, 0.501, 2.201, 2.201, 2.201, 2.7015]
    assert [ask.done_at for ask in fleet.asks] == pytest.approx(expected)
