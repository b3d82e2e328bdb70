"""The model of one replica against arithmetic that was done by hand, and against itself."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.fleet.serving import (
    CacheLink,
    DoesNotFit,
    Engine,
    Hardware,
    Model,
    Serving,
    attention_pairs,
)

# One H100 SXM (NVIDIA's data sheet: 989 TFLOP/s dense BF16, 80 GB, 3.35 TB/s), Llama 3.1 8B (its
# config.json: 32 layers, 32 heads, 8 KV heads of 128).
H100 = Hardware(989e12, 3.35e12, 80e9, flops_share=0.5, bandwidth_share=0.75)
LLAMA_8B = Model(8.03e9, 16.06e9, 32, 32, 8, 128)


def test_kv_blocks_are_exact() -> None:
    """2 · 32 · 8 · 128 · 2 B = 131,072 B a token; 72 GB less 16.06 GB in blocks of 2 MiB."""
    serving = Serving(H100, LLAMA_8B, Engine(block_tokens=16))
    assert LLAMA_8B.kv_bytes_per_token == 131_072
    assert serving.block_count == math.floor((72e9 - 16.06e9) / (16 * 131_072)) == 26_674
    assert [serving.blocks(tokens) for tokens in (1, 16, 17, 1600)] == [1, 1, 2, 100]
    assert serving.concurrent(1600) == 256
    assert Serving(H100, LLAMA_8B, Engine(sequences_max=1000)).concurrent(1600) == 266


@pytest.mark.parametrize(("block_tokens", "empty"), [(1, 0), (16, 8), (256, 24)])
def test_larger_blocks_waste_more_and_cost_less(block_tokens: int, empty: int) -> None:
    """1,000 tokens: 62.5 blocks of 16 take 63, of which half a block is empty; 8 ns a block and
    step."""
    engine = Engine(block_tokens=block_tokens, block_s=8e-9)
    serving = Serving(H100, LLAMA_8B, engine)
    assert serving.blocks(1000) * block_tokens == 1000 + empty
    plain = Serving(H100, LLAMA_8B, replace(engine, block_s=0.0))
    tables_s = serving.step_s(100, 100_000) - plain.step_s(100, 100_000)
    assert tables_s == pytest.approx(8e-9 * (100_000 / block_tokens + 100 / 2))


def test_decode_reads_the_weights_once_whatever_the_batch() -> None:
    """16.06 GB at 0.75 · 3.35 TB/s take 6.392 ms; KV of 32 · 1,000 tokens another 1.669 ms."""
    serving = Serving(H100, LLAMA_8B, Engine())
    assert serving.step_s(1, 0) == serving.step_s(32, 0) == pytest.approx(6.392e-3, rel=1e-3)
    assert serving.step_s(32, 32_000) - serving.step_s(32, 0) == pytest.approx(1.669e-3, rel=1e-3)
    # 16.06 GFLOP a token at 494.5 TFLOP/s: above 197 sequences arithmetic takes longer.
    assert serving.step_s(196, 0) == serving.step_s(1, 0)
    assert serving.step_s(394, 0) == pytest.approx(394 * 16.06e9 / 494.5e12)


def test_prefill_is_bound_by_arithmetic_and_never_below_reading_the_weights() -> None:
    serving = Serving(H100, LLAMA_8B, Engine())
    assert serving.prefill_s(1, 10, 0.0, 0) == serving.weights_s
    linear_s = 4096 * 16.06e9 / 494.5e12
    pairs = attention_pairs(4096, 0)
    assert pairs == 4096 * 4097 / 2
    attention_s = 4 * 32 * 32 * 128 * pairs / 494.5e12
    assert serving.prefill_s(1, 4096, pairs, 0) == pytest.approx(linear_s + attention_s)
    assert 0.05 < attention_s / linear_s < 0.1


def test_cached_tokens_are_read_and_not_computed() -> None:
    link = CacheLink(bytes_per_s=8e9, latency_s=1e-3)
    serving = Serving(H100, LLAMA_8B, Engine(step_s=2e-3, request_s=5e-4), link)
    read_s = 1e-3 + 3000 * 131_072 / 8e9
    expected = 2e-3 + 2 * 5e-4 + 1000 * serving.token_s + read_s
    assert serving.prefill_s(2, 1000, 0.0, 3000) == pytest.approx(expected)
    assert serving.fetch_s(0) == 0.0


def test_weights_that_leave_no_room_are_refused() -> None:
    with pytest.raises(DoesNotFit, match=r"141.2 GB leave no block of KV cache in 72.0 GB"):
        Serving(H100, replace(LLAMA_8B, weight_bytes=141.2e9), Engine())


@given(st.integers(1, 300), st.integers(1, 256), st.integers(0, 500_000))
def test_steps_add_up_to_their_closed_form(steps: int, sequences: int, held: int) -> None:
    serving = Serving(H100, LLAMA_8B, Engine(step_s=1e-3, block_s=1e-8))
    added = sum(serving.step_s(sequences, held + sequences * step) for step in range(steps))
    assert serving.steps_s(steps, sequences, held) == pytest.approx(added, rel=1e-9)


@given(st.floats(0.0, 100.0), st.integers(1, 256), st.integers(0, 500_000))
def test_a_time_is_turned_into_the_steps_that_cover_it(
    elapsed_s: float, sequences: int, held: int
) -> None:
    serving = Serving(H100, LLAMA_8B, Engine(step_s=1e-3))
    steps = serving.steps_within(elapsed_s, sequences, held)
    assert serving.steps_s(steps, sequences, held) >= elapsed_s
    if steps:
        before_s = serving.steps_s(steps - 1, sequences, held)
        assert before_s < elapsed_s or before_s == pytest.approx(elapsed_s, rel=1e-9)


@given(
    st.floats(0.05, 1.0), st.floats(0.05, 1.0), st.integers(1, 200), st.integers(0, 100_000),
    st.integers(1, 5000),
)  # fmt: skip
def test_better_hardware_is_never_slower(
    low: float, high: float, sequences: int, held: int, tokens: int
) -> None:
    """Monotonic: more of the peak reached, fewer sequences or shorter prompts take no longer."""
    low, high = sorted((low, high))
    slow = Serving(replace(H100, flops_share=low, bandwidth_share=low), LLAMA_8B, Engine())
    fast = Serving(replace(H100, flops_share=high, bandwidth_share=high), LLAMA_8B, Engine())
    assert fast.step_s(sequences, held) <= slow.step_s(sequences, held)
    assert fast.step_s(sequences, held) <= fast.step_s(sequences + 1, held + 1)
    assert fast.prefill_s(1, tokens, 0.0, 0) <= slow.prefill_s(1, tokens, 0.0, 0)
    assert fast.prefill_s(1, tokens, 0.0, 0) <= fast.prefill_s(1, tokens + 1, 0.0, 0)
