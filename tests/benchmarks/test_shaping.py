"""What is told to traffic control; what the kernel makes of it is measured in test_lab.py."""

from __future__ import annotations

import pytest

from benchmarks.shaping import FLOW_BUCKETS, Nic, received_commands, sent_commands


def test_a_card_without_a_rate_is_left_alone() -> None:
    assert sent_commands(Nic(), "eth0", ["10.0.0.1"]) == []
    assert received_commands(Nic(), "port0") == []


def test_both_directions_are_paced_alike() -> None:
    expected = "root tbf rate 64000000bit burst 262144 latency 20000us"
    assert sent_commands(Nic(64), "eth0", []) == [f"qdisc add dev eth0 {expected}"]
    assert received_commands(Nic(64), "port0") == [f"qdisc add dev port0 {expected}"]


def test_a_flow_cap_leaves_the_receiving_side_to_the_card() -> None:
    assert received_commands(Nic(64, flow_cap_mbit=16), "port0") == received_commands(
        Nic(64), "port0"
    )


def test_each_destination_gets_its_own_classes() -> None:
    lines = sent_commands(Nic(64, flow_cap_mbit=16), "eth0", ["10.0.0.1", "10.0.0.2"])
    classes = [line for line in lines if line.startswith("class") and "ceil 16000000bit" in line]
    assert len(classes) == 2 * FLOW_BUCKETS
    assert len({line.split("classid ")[1].split()[0] for line in classes}) == 2 * FLOW_BUCKETS


def test_what_classes_are_promised_never_exceeds_the_card() -> None:
    """htb grants a class its rate even when the parent is overdrawn."""
    lines = sent_commands(Nic(64, flow_cap_mbit=16), "eth0", [f"10.0.0.{i}" for i in range(1, 13)])
    promised = [
        int(line.split("htb rate ")[1].split("bit")[0])
        for line in lines
        if "ceil 16000000bit" in line
    ]
    assert sum(promised) <= 64_000_000 * 1.001


def test_a_flow_cap_above_the_card_is_the_card() -> None:
    lines = sent_commands(Nic(64, flow_cap_mbit=100), "eth0", ["10.0.0.1"])
    assert not [line for line in lines if "100000000bit" in line]


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_a_rate_of_nothing_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        Nic(rate)


def test_a_flow_cap_needs_a_card_rate() -> None:
    with pytest.raises(ValueError, match="card rate"):
        Nic(None, flow_cap_mbit=5)
