"""How many chunks are read at once: a part of three NICs, or what helps a lone node."""

from __future__ import annotations

import itertools

from swarm.policy.read_window import ReadWindow, connections_for, reads_for

MIB = 1024 * 1024


def test_connections_keep_a_range_near_a_fifth_of_a_second() -> None:
    assert connections_for(256 * 1024) == 1
    assert connections_for(16 * MIB) == 1
    assert connections_for(64 * MIB) == 4
    assert connections_for(4096 * MIB) == 32


def test_a_node_reads_its_part_of_three_nics() -> None:
    assert reads_for(0.0, 64 * MIB, 1) == 8
    assert reads_for(0.0, 64 * MIB, 12) == 2
    alone, among_two, among_many = (reads_for(12.5e9, 64 * MIB, nodes) for nodes in (1, 2, 12))
    assert alone == 52
    assert among_two == 52
    assert among_many == 12
    assert reads_for(1e12, 64 * MIB, 1) == 64


def steady(window: ReadWindow, rate: float, *, since: float, chunks: int) -> float:
    """Chunks of 1 MB that come at this rate while the window is full."""
    now = since
    for _ in range(chunks):
        window.took(1_000_000, window.count, now)
        now += 1_000_000 / rate
    return now


def test_the_window_doubles_while_that_raises_the_rate() -> None:
    """Up to ten reads at once each bring 2 MB/s, more bring nothing: 16 are the first that bring
    all, and 32 are taken back."""
    window = ReadWindow()
    window.count = 4
    now, widths = 0.0, [4]
    for _ in range(150):
        now = steady(window, 2e6 * min(window.count, 10), since=now, chunks=1)
        if window.count != widths[-1]:
            widths.append(window.count)
    assert widths[:5] == [4, 8, 16, 32, 16]


def test_a_failed_probe_is_repeated_after_a_pause_that_doubles() -> None:
    window = ReadWindow()
    window.count = 4
    now, widths = 0.0, []
    for _ in range(120):
        now = steady(window, 8e6, since=now, chunks=1)
        widths.append(window.count)
    rises = [i for i in range(1, len(widths)) if widths[i] > widths[i - 1]]
    gaps = [later - earlier for earlier, later in itertools.pairwise(rises)]
    assert len(rises) >= 3
    assert gaps == sorted(gaps)
    assert set(widths) == {4, 8}


def test_nothing_is_learned_while_the_window_is_not_full() -> None:
    window = ReadWindow()
    window.count = 4
    for tick in range(100):
        window.took(1_000_000, 3, tick / 8)
    assert window.count == 4


def test_an_origin_that_asks_for_less_gets_less() -> None:
    window = ReadWindow()
    window.count = 5
    window.halve()
    assert window.count == 2
    window.halve()
    window.halve()
    assert window.count == 1


def test_the_window_has_an_end() -> None:
    window = ReadWindow()
    window.count = 64
    steady(window, 100e6, since=0.0, chunks=200)
    assert window.count == 64
