"""One replica, by hand: weights take a second to read and nothing else takes time, so every instant
can be counted."""

from __future__ import annotations

import pytest

from simulations.fleet.prefix_cache import PrefixCache
from simulations.fleet.replica import Ask, Replica
from simulations.fleet.requests import Request
from simulations.fleet.serving import Engine, Hardware, Model, Serving
from simulations.timeline import Timeline

# A step takes 1 s, a prefill 1 s and 10 ms for each token beyond the hundredth.
HARDWARE = Hardware(200.0, 1000.0, 3000.0, flops_share=1.0, bandwidth_share=1.0, memory_share=1.0)
MODEL = Model(1.0, 1000.0, 1, 0, 1, 1, kv_element_bytes=1e-9)


class Bench:
    """A replica and what it told."""

    def __init__(self, engine: Engine, cache: PrefixCache | None = None) -> None:
        self.timeline = Timeline()
        self.done: list[Ask] = []
        self.ttft_s: list[float] = []
        serving = Serving(HARDWARE, MODEL, engine)
        self.replica = Replica(
            1, serving, self.timeline, cache, self.ttft_s.append, lambda _, asks: self._ended(asks)
        )

    def _ended(self, asks: list[Ask]) -> None:
        self.done.extend(asks)

    def ask(self, arrival_s: float, prompt: int, output: int, prefix: str = "") -> Ask:
        ask = Ask(Request(arrival_s, prompt, output, prefix))
        self.timeline.at(arrival_s, self._give, ask)
        return ask

    def _give(self, ask: Ask) -> None:
        assert self.replica.has_room(ask.request)
        self.replica.assign(ask)
        self.replica.go()

    def run(self) -> None:
        while self.timeline.step(1e9):
            pass


def times(ask: Ask) -> tuple[float, float]:
    return ask.first_token_at, ask.done_at


def test_one_request_takes_its_prefill_and_a_step_for_each_further_token() -> None:
    bench = Bench(Engine())
    ask = bench.ask(10.0, 50, 5)
    single = bench.ask(100.0, 300, 1)
    bench.run()
    assert times(ask) == pytest.approx((11.0, 15.0))
    assert times(single) == pytest.approx((103.0, 103.0))
    assert bench.ttft_s == pytest.approx([1.0, 3.0])
    assert bench.replica.busy_s == pytest.approx(8.0)
    assert bench.replica.count == 0
    assert bench.replica.free_blocks == bench.replica.serving.block_count


def test_who_joins_waits_for_the_step_and_holds_the_others_up_for_its_prefill() -> None:
    """The first decodes from 1 s on. The second comes at 2.5 s, begins at 3 s with the step's end
    and is computed until 4 s; then both go on together."""
    bench = Bench(Engine())
    first = bench.ask(0.0, 50, 5)
    second = bench.ask(2.5, 50, 3)
    bench.run()
    assert times(second) == pytest.approx((4.0, 6.0))
    assert times(first) == pytest.approx((1.0, 6.0))


def test_prompts_that_came_together_are_computed_together_up_to_the_limit() -> None:
    bench = Bench(Engine(prefill_tokens_max=150))
    asks = [bench.ask(0.0, 20, 2), *(bench.ask(0.5, 100, 2) for _ in range(2))]
    bench.run()
    # The first alone until 1 s; the others one prefill each, as 200 tokens are too many.
    assert [ask.first_token_at for ask in asks] == pytest.approx([1.0, 2.0, 3.0])
    assert [ask.done_at for ask in asks] == pytest.approx([4.0, 4.0, 4.0])


def test_room_is_sequences_and_blocks_and_comes_back() -> None:
    bench = Bench(Engine(sequences_max=2, block_tokens=10))
    bench.replica.free_blocks = 10
    bench.ask(0.0, 45, 5)
    bench.run()
    whole, larger = Request(9.0, 60, 40), Request(9.0, 60, 41)
    assert bench.replica.has_room(whole)
    assert not bench.replica.has_room(larger)
    bench.replica.assign(Ask(Request(9.0, 5, 5)))
    assert not bench.replica.has_room(whole)
    bench.replica.assign(Ask(Request(9.0, 5, 5)))
    assert not bench.replica.has_room(Request(9.0, 1, 1))


def test_a_conversation_is_computed_only_where_it_goes_on() -> None:
    cache = PrefixCache(block_tokens=10)
    bench = Bench(Engine(block_tokens=10), cache)
    bench.ask(0.0, 290, 10, "chat")
    second = bench.ask(100.0, 500, 2, "chat")
    stranger = bench.ask(200.0, 500, 2, "other")
    bench.run()
    assert second.first_token_at == pytest.approx(102.0)
    assert stranger.first_token_at == pytest.approx(205.0)
    assert (second.found_tokens, stranger.found_tokens) == (300, 0)


def test_a_batch_of_the_aggregator_lets_nobody_join() -> None:
    bench = Bench(Engine(sequences_max=8, aggregate_wait_s=0.0))
    bench.ask(0.0, 50, 3)
    bench.timeline.step(0.5)
    assert not bench.replica.has_room(Request(0.5, 1, 1))
    bench.run()
    assert bench.replica.has_room(Request(9.0, 1, 1))


def test_what_is_taken_back_comes_in_its_order_and_nothing_ends_afterwards() -> None:
    bench = Bench(Engine())
    asks = [bench.ask(0.0, 50, 9), bench.ask(0.0, 50, 5), bench.ask(2.5, 50, 5)]
    bench.timeline.at(3.5, lambda: asks.append(Ask(Request(3.5, 1, 1))))
    while bench.timeline.now < 3.5:
        bench.timeline.step(3.5)
    bench.replica.assign(asks[3])
    assert bench.replica.take_back() == asks
    bench.run()
    assert bench.done == []
    assert bench.replica.busy_s == pytest.approx(3.5)
    assert bench.replica.count == 0
