"""The prefix cache, step by step: what is found, what is pushed out, what has expired, what is
billed."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from simulations.fleet.prefix_cache import PrefixCache


def test_a_hit_is_whole_blocks_and_never_the_whole_prompt() -> None:
    cache = PrefixCache(block_tokens=16)
    assert cache.look_up("a", 100, 40, now=0.0) == 0
    cache.store("a", 40, now=1.0)
    assert cache.tokens == 32
    assert cache.look_up("a", 100, 40, now=2.0) == 32
    # A prompt of exactly two blocks: its last token has to be computed.
    assert cache.look_up("a", 32, 32, now=3.0) == 16


def test_a_conversation_finds_all_that_was_said_before() -> None:
    cache = PrefixCache(block_tokens=16)
    cache.store("chat", 320, now=0.0)
    assert cache.look_up("chat", 400, 0, now=1.0) == 320
    cache.store("chat", 480, now=2.0)
    assert cache.look_up("chat", 1000, 0, now=3.0) == 480
    # What is shorter than what is kept takes nothing away.
    cache.store("chat", 16, now=4.0)
    assert cache.tokens == 480


def test_the_least_recently_used_goes_first() -> None:
    cache = PrefixCache(tokens_max=48, block_tokens=16)
    for place, name in enumerate(("a", "b", "c")):
        cache.store(name, 16, now=float(place))
    assert cache.look_up("a", 100, 16, now=3.0) == 16
    cache.store("d", 16, now=4.0)
    assert [name in cache for name in "abcd"] == [True, False, True, True]
    assert cache.tokens == 48
    cache.store("too large", 64, now=5.0)
    assert "too large" not in cache
    assert len(cache) == 3


def test_an_entry_lives_so_long_after_its_last_use() -> None:
    cache = PrefixCache(ttl_s=1800.0, block_tokens=16)
    cache.store("a", 16, now=0.0)
    assert cache.look_up("a", 100, 16, now=1799.0) == 16
    assert cache.look_up("a", 100, 16, now=3598.0) == 16
    assert cache.look_up("a", 100, 16, now=5398.0) == 0
    assert cache.tokens == len(cache) == 0


def test_the_bill_is_tokens_over_time_until_expiry_or_eviction() -> None:
    cache = PrefixCache(tokens_max=64, ttl_s=100.0, block_tokens=16)
    cache.store("a", 32, now=0.0)  # Used last at 10: expires at 110.
    cache.store("b", 16, now=10.0)
    cache.look_up("a", 100, 32, now=10.0)
    assert cache.token_seconds(20.0) == 32 * 20 + 16 * 10
    # Nobody asked between: b ended at 110 and a at 110, not when they were missed.
    assert cache.token_seconds(500.0) == 32 * 110 + 16 * 100
    cache.store("c", 64, now=600.0)
    cache.store("d", 16, now=650.0)  # Pushes c out.
    assert cache.token_seconds(660.0) == 32 * 110 + 16 * 100 + 64 * 50 + 16 * 10


def test_growing_is_billed_from_when_it_grew() -> None:
    cache = PrefixCache(block_tokens=16)
    cache.store("chat", 16, now=0.0)
    cache.store("chat", 48, now=10.0)
    assert cache.token_seconds(20.0) == 16 * 10 + 48 * 10


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.integers(1, 200), st.floats(0.0, 50.0)),
        max_size=60,
    ),
    st.integers(16, 400),
    st.floats(1.0, 200.0),
)
def test_size_and_bill_hold_whatever_happens(
    steps: list[tuple[str, int, float]], tokens_max: int, ttl_s: float
) -> None:
    """The size is kept, the bill is never above size times time, and hits were stored before."""
    cache = PrefixCache(tokens_max=tokens_max, ttl_s=ttl_s, block_tokens=16)
    now, stored = 0.0, dict.fromkeys("abcdef", 0)
    for name, tokens, gap_s in steps:
        now += gap_s
        found = cache.look_up(name, tokens + 1, tokens, now=now)
        assert found <= min(stored[name], tokens)
        cache.store(name, tokens, now=now)
        stored[name] = max(stored[name], tokens)
        assert cache.tokens <= tokens_max
    assert 0 <= cache.token_seconds(now) <= tokens_max * now * (1 + 1e-9)
    assert cache.token_seconds(math.nextafter(now + ttl_s, math.inf)) >= 0
    assert len(cache) == 0
