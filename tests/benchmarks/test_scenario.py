"""The bound against cases that can be worked out on paper."""

from __future__ import annotations

import pytest

from benchmarks.scenario import Scenario


def scenario(*, nodes: int = 12, node_mbit: float = 64, origin_mbit: float = 64) -> Scenario:
    return Scenario(nodes=nodes, node_mbit=node_mbit, origin_mbit=origin_mbit, file_mib=96)


FILE_S_AT_64_MBIT = 96 * 1024 * 1024 * 8 / 64e6


def test_a_slow_origin_bounds_by_sending_the_file_once() -> None:
    assert scenario(origin_mbit=32).bound_s == pytest.approx(2 * FILE_S_AT_64_MBIT)


def test_a_slow_node_bounds_by_receiving_the_file_once() -> None:
    assert scenario(origin_mbit=256).bound_s == pytest.approx(FILE_S_AT_64_MBIT)


def test_alone_a_node_and_the_origin_share_nothing() -> None:
    assert scenario(nodes=1).bound_s == pytest.approx(FILE_S_AT_64_MBIT)


def test_the_sum_of_uplinks_bounds_where_nodes_send_slowly() -> None:
    """Two nodes of 64 and an origin of 100 Mbit/s: two copies over 228 Mbit/s take less than one
    copy over a node's card; the largest of the three counts."""
    two = scenario(nodes=2, origin_mbit=100)
    assert two.bound_s == pytest.approx(FILE_S_AT_64_MBIT)


def test_a_disk_slower_than_the_card_bounds_instead_of_it() -> None:
    slow = Scenario(nodes=3, node_mbit=64, origin_mbit=64, file_mib=96, disk_mib_per_s=2)
    assert slow.bound_s == pytest.approx(48)
    fast = Scenario(nodes=3, node_mbit=64, origin_mbit=64, file_mib=96, disk_mib_per_s=200)
    assert fast.bound_s == pytest.approx(FILE_S_AT_64_MBIT)


def test_hosts_are_shaped_as_the_scenario_says() -> None:
    hosts = Scenario(nodes=2, node_mbit=64, origin_mbit=256, file_mib=1, flow_cap_mbit=16).hosts()
    assert list(hosts) == ["origin", "tracker", "node0", "node1"]
    assert (hosts["origin"].rate_mbit, hosts["node1"].rate_mbit) == (256, 64)
    assert hosts["tracker"].rate_mbit is None
    assert hosts["node0"].flow_cap_mbit == 16


def test_a_scenario_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        scenario(nodes=0)
