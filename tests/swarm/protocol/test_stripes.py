"""Every byte of a chunk travels once, whatever the number of stripes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.protocol.stripes import UNIT_BYTES_MAX, Stripe, useful_stripes

MIB = 1 << 20


@given(st.integers(1, 80 * MIB), st.integers(1, 8))
def test_stripes_cover_a_chunk_exactly(length: int, wanted: int) -> None:
    stripes = useful_stripes(length, wanted)
    shares = [Stripe(0, length, stripe, stripes) for stripe in range(stripes)]
    assert all(share.payload_bytes for share in shares)
    units = sorted(unit for share in shares for unit in share.units())
    assert units[0][0] == 0
    assert all(a[0] + a[1] == b[0] for a, b in itertools.pairwise(units))
    assert sum(units[-1]) == length


def test_one_stripe_is_one_unit() -> None:
    assert Stripe(0, 64 * MIB, 0, 1).units() == [(0, 64 * MIB)]


def test_large_chunk_interleaves_in_units() -> None:
    assert Stripe(0, 4 * MIB, 1, 2).units() == [(MIB, UNIT_BYTES_MAX), (3 * MIB, UNIT_BYTES_MAX)]


def test_small_chunk_still_gives_every_stripe_a_share() -> None:
    assert [Stripe(0, 64 * 1024, k, 4).payload_bytes for k in range(4)] == [16384] * 4


@pytest.mark.parametrize(("length", "wanted", "useful"), [(4096, 4, 1), (4097, 4, 2), (1, 8, 1)])
def test_stripe_that_would_go_empty_is_not_opened(length: int, wanted: int, useful: int) -> None:
    assert useful_stripes(length, wanted) == useful
