"""The bit-sliced counters against counting one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.protocol.availability import Availability
from tests.support.story import bits

SETS = st.lists(st.integers(0, (1 << 24) - 1), max_size=40)


def availability_of(*rows: str) -> Availability:
    availability = Availability()
    for row in rows:
        availability.add(bits(row))
    return availability


def test_the_rarest_chunks_of_a_mask_are_found() -> None:
    availability = availability_of(
        "####.",
        "##.#.",
        "#..#.",
    )
    assert availability.rarest(bits("####.")) == bits("..#..")
    assert availability.rarest(bits("##.#.")) == bits(".#...")
    assert availability.rarest(bits("#..#.")) == bits("#..#.")
    assert availability.rarest(bits("#####")) == bits("....#")
    assert availability.rarest(0) == 0
    assert availability.held == bits("####.")


def test_removing_what_was_never_added_is_a_bug() -> None:
    availability = availability_of("##..")
    with pytest.raises(AssertionError, match="never added"):
        availability.remove(bits("..#."))


@given(SETS, st.data())
def test_counters_agree_with_counting(holders: list[int], data: st.DataObject) -> None:
    """Add all sets, remove some of them, and compare each counter with a plain count."""
    availability = Availability()
    for holder in holders:
        availability.add(holder)
    gone = data.draw(st.lists(st.sampled_from(holders), unique=True) if holders else st.just([]))
    rest = list(holders)
    for holder in gone:
        availability.remove(holder)
        rest.remove(holder)
    counts = [sum(holder >> chunk & 1 for holder in rest) for chunk in range(24)]
    assert [availability.count(chunk) for chunk in range(24)] == counts
    assert availability.held == sum(1 << chunk for chunk in range(24) if counts[chunk])
    assert availability.held_once() == sum(1 << chunk for chunk in range(24) if counts[chunk] == 1)
    mask = data.draw(st.integers(1, (1 << 24) - 1))
    members = [chunk for chunk in range(24) if mask >> chunk & 1]
    least = min(counts[chunk] for chunk in members)
    assert availability.rarest(mask) == sum(
        1 << chunk for chunk in members if counts[chunk] == least
    )


@given(SETS.filter(bool))
def test_chunks_held_without_some_holders(holders: list[int]) -> None:
    availability = Availability()
    for holder in holders:
        availability.add(holder)
    rest = 0
    for holder in holders[2:]:
        rest |= holder
    assert availability.held_without(holders[:2]) == rest
    # Asking changes nothing.
    assert availability.count(0) == sum(holder & 1 for holder in holders)
    assert availability.held == rest | holders[0] | holders[min(1, len(holders) - 1)]
