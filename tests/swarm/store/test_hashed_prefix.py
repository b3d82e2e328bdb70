"""Bytes given in any order are hashed in their own, each once."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from swarm.store.hashed_prefix import HashedPrefix

CONTENT = bytes(range(100))


def give(prefix: HashedPrefix, offset: int, count: int) -> None:
    """What a writer does with bytes that it has written."""
    if prefix.begin(offset):
        prefix.hasher.update(CONTENT[offset : offset + count])
        prefix.advance(count)
    else:
        prefix.put_ahead(offset, count)
    while (span := prefix.begin_read_back()) is not None:
        start, length = span
        prefix.hasher.update(CONTENT[start : start + length])
        prefix.advance(length)


@given(cuts=st.sets(st.integers(1, 99), max_size=8), order=st.randoms(use_true_random=False))
def test_any_cut_in_any_order_gives_the_digest(cuts: set[int], order: random.Random) -> None:
    edges = [0, *sorted(cuts), 100]
    pieces = [(start, end - start) for start, end in pairwise(edges)]
    shuffled = list(pieces)
    order.shuffle(shuffled)
    prefix = HashedPrefix()
    for offset, count in shuffled:
        give(prefix, offset, count)
    assert prefix.end == 100
    assert prefix.hasher.digest() == blake3(CONTENT).digest()
    assert prefix.had_read_back == (shuffled != pieces)


def test_one_thread_hashes_at_a_time() -> None:
    prefix = HashedPrefix()
    assert prefix.begin(0)
    assert not prefix.begin(0)
    prefix.put_ahead(10, 5)
    assert prefix.begin_read_back() is None
    prefix.advance(10)
    assert prefix.begin_read_back() == (10, 5)
    assert prefix.begin_read_back() is None
    prefix.advance(5)
    assert prefix.end == 15


def test_bytes_given_twice_are_a_bug() -> None:
    prefix = HashedPrefix()
    give(prefix, 0, 10)
    with pytest.raises(AssertionError):
        prefix.begin(5)
    prefix.put_ahead(20, 5)
    with pytest.raises(AssertionError):
        prefix.put_ahead(20, 5)
