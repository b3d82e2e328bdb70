"""Counting holders by planes gives what counting one by one gives."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.protocol.chunk_set import bits_of
from tracker.policy.availability import Availability

CHUNKS = 12
_BITS = st.integers(0, (1 << CHUNKS) - 1)


@settings(max_examples=50, deadline=None)
@given(st.lists(_BITS, max_size=20), st.randoms(use_true_random=False))
def test_planes_count_as_a_list_of_counters_does(holders: list[int], rng: random.Random) -> None:
    availability = Availability()
    for bits in holders:
        availability.add(bits)
    gone = rng.sample(holders, len(holders) // 2)
    for bits in gone:
        availability.remove(bits)
    for bits in gone:
        holders.remove(bits)
    counts = [sum(bits >> chunk & 1 for bits in holders) for chunk in range(CHUNKS)]
    assert [availability.holders(chunk) for chunk in range(CHUNKS)] == counts
    assert availability.held == bits_of(c for c, count in enumerate(counts) if count)
    assert availability.held_once() == bits_of(c for c, count in enumerate(counts) if count == 1)


@settings(max_examples=50, deadline=None)
@given(st.lists(_BITS, min_size=2, max_size=6))
def test_chunks_held_without_some_holders(holders: list[int]) -> None:
    availability = Availability()
    for bits in holders:
        availability.add(bits)
    rest = 0
    for bits in holders[2:]:
        rest |= bits
    assert availability.held_without(holders[:2]) == rest
    # Asking changes nothing.
    assert availability.holders(0) == sum(bits & 1 for bits in holders)
