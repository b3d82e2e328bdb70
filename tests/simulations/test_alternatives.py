"""Closed forms of what there is without a swarm, against hand sums and against the simulator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulations.alternatives import (
    Alternatives,
    PlainReads,
    SharedFileSystem,
    Volumes,
    finish_times,
    plain_reads,
    prebuilt_volumes,
    shared_file_system,
)
from simulations.alternatives_file import read_alternatives
from simulations.prices import MONTH_S, Prices
from simulations.scenario import NodeGroup, OriginShape, Scenario, VersionShape
from simulations.toml_table import Document
from simulations.trial import simulate
from swarm.errors import UsageError

CHUNK_BYTES = 2**18
PRICES = Prices(per_origin_byte=1e-9, gpus_per_node=1)


def fleet(*groups: NodeGroup, origin: float = 8e6, chunk_count: int = 400) -> Scenario:
    version = VersionShape(chunk_count * CHUNK_BYTES, CHUNK_BYTES)
    return Scenario(version, groups, origin=OriginShape(origin, rtt_s=0.001))


@pytest.mark.parametrize(
    ("wants", "total", "expected"),
    [
        ([(1, 100.0, 10.0)], 1000.0, [10.0]),
        ([(4, 100.0, 10.0)], 20.0, [20.0]),
        # Two slow ones keep their rate, a fast one gets what they leave: 30 - 2 x 5.
        ([(2, 100.0, 5.0), (1, 100.0, 100.0)], 30.0, [20.0, 5.0]),
        # Fair shares of 10 until the small ones are done, then the rest has 30 for one.
        ([(2, 100.0, 100.0), (1, 200.0, 100.0)], 30.0, [10.0, 10.0 + 100.0 / 30.0]),
    ],
)
def test_shares_are_max_min_fair(
    wants: list[tuple[int, float, float]], total: float, expected: list[float]
) -> None:
    assert finish_times(wants, total) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("scenario", "limited_by"),
    [
        (fleet(NodeGroup(1, 8e6, 8e6), origin=80e6), "receiver NIC"),
        (fleet(NodeGroup(5, 8e6, 8e6)), "origin"),
        (fleet(NodeGroup(2, 8e6, 8e6, disk_write_bytes_per_s=2e6), origin=80e6), "disk"),
        (fleet(NodeGroup(1, 2e6, 2e6, name="slow"), NodeGroup(1, 8e6, 8e6), origin=80e6), "slow"),
    ],
)
def test_plain_reads_take_what_the_simulator_takes(scenario: Scenario, limited_by: str) -> None:
    """Within 1 %: the same fleet with every node reading the origin for itself."""
    estimate = plain_reads(scenario, Alternatives(), PRICES)
    assert estimate is not None
    outcome = simulate(replace(scenario, mode="origin"), 1, "")
    assert estimate.last_s == pytest.approx(outcome.seconds[-1], rel=0.01)
    assert estimate.seconds(0.5) == pytest.approx(
        outcome.seconds[len(outcome.seconds) // 2 - (len(outcome.seconds) % 2 == 0)], rel=0.01
    )
    assert estimate.usage.node_s == pytest.approx(sum(outcome.seconds), rel=0.01)
    copies = outcome.origin_copies
    assert estimate.usage.origin_bytes == pytest.approx(copies * scenario.version.total_bytes)
    assert estimate.limited_by == ("receiver NIC" if limited_by == "slow" else limited_by)


def test_few_connections_limit_a_plain_reader() -> None:
    """Each part waits for its first byte: 2^20 B at 10 MB/s and 0.1 s each, four at a time."""
    origin = OriginShape(1e9, 10e6, first_byte_s_min=0.05, first_byte_s_max=0.15, rtt_s=0.0)
    scenario = replace(fleet(NodeGroup(1, 1e9, 1e9)), origin=origin)
    ways = Alternatives(plain=PlainReads(connections=4, part_bytes=2**20))
    estimate = plain_reads(scenario, ways, PRICES)
    assert estimate is not None
    part_s = 0.1 + 2**20 / 10e6
    assert estimate.last_s == pytest.approx(0.1 + 100 / 4 * part_s)
    assert estimate.limited_by == "connections"
    assert estimate.usage.origin_requests == 100


def test_an_origin_that_throttles_limits_plain_readers_by_their_requests() -> None:
    origin = OriginShape(1e12, requests_per_s=100.0, rtt_s=0.0)
    scenario = replace(fleet(NodeGroup(10, 1e9, 1e9)), origin=origin)
    ways = Alternatives(plain=PlainReads(part_bytes=2**20))
    estimate = plain_reads(scenario, ways, PRICES)
    assert estimate is not None
    assert estimate.last_s == pytest.approx(10 * 100 / 100.0)
    assert estimate.limited_by == "origin"


def test_a_fleet_without_an_origin_has_no_plain_reads() -> None:
    scenario = replace(fleet(NodeGroup(1, 8e6, 8e6)), origin=None)
    assert plain_reads(scenario, Alternatives(), PRICES) is None


def test_a_shared_file_system_is_paid_for_by_the_month() -> None:
    scenario = fleet(NodeGroup(10, 8e6, 8e6))
    shared = SharedFileSystem(40e6, 5e6, capacity_bytes=1e12, per_byte_s=0.6e-9 / MONTH_S)
    ways = Alternatives(file_system=shared, loads_per_month=20)
    estimate = shared_file_system(scenario, ways, PRICES)
    total = scenario.version.total_bytes
    assert estimate.last_s == pytest.approx(10 * total / 40e6)
    assert estimate.limited_by == "file system"
    assert estimate.per_month == pytest.approx(600.0)
    idle = 10 * estimate.last_s * PRICES.per_gpu_s
    assert estimate.per_load == pytest.approx(30.0 + idle)
    alone = shared_file_system(fleet(NodeGroup(1, 8e6, 8e6)), ways, PRICES)
    assert alone.limited_by == "client"
    assert alone.last_s == pytest.approx(total / 5e6)


def test_a_prebuilt_volume_reads_each_block_first_from_the_store() -> None:
    scenario = fleet(NodeGroup(10, 8e6, 8e6))
    total = scenario.version.total_bytes
    volumes = Volumes(
        create_s=7.0, first_read_bytes_per_s=1e6, per_initialized_byte=1e-9,
        per_byte_s=2e-9 / MONTH_S, per_snapshot_byte_s=3e-9 / MONTH_S, kept_s=MONTH_S / 2,
    )  # fmt: skip
    ways = Alternatives(volumes=volumes, loads_per_month=10)
    estimate = prebuilt_volumes(scenario, ways, PRICES)
    assert estimate.last_s == pytest.approx(7.0 + total / 1e6)
    assert estimate.limited_by == "first reads of the volume"
    assert estimate.per_month == pytest.approx(3e-9 * total)
    standing = 10 * total * (1e-9 + 1e-9) + 3e-9 * total / 10
    assert estimate.standing == pytest.approx(standing)


def read(text: str, prices: Prices | None = None) -> Alternatives:
    table = Document(text, "plan.toml").table().table("alternatives")
    return read_alternatives(table, prices or Prices())


def test_a_file_names_its_own_alternatives() -> None:
    ways = read(
        "[alternatives]\nloads_per_month = 4\n"
        '[alternatives.plain_s3]\nconnections = 10\npart = "16MiB"\n'
        '[alternatives.shared_file_system]\nthroughput = "2GB/s"\nnode = "1GB/s"\n'
        'capacity = "2TB"\nprice = "0.145 USD/GB-month"\n'
        '[alternatives.volumes]\ncreate = "30s"\nfirst_read = "100MiB/s"\nkept = "2h"\n'
        'price = "0.1 USD/GB-month"\nsnapshot = "0.05 USD/GB-month"\n'
        'initialization = "0.01 USD/GB"\n'
    )
    assert ways.loads_per_month == 4.0
    assert ways.plain == PlainReads(10, 2**24)
    assert ways.file_system.capacity_bytes == 2e12
    assert ways.file_system.per_byte_s * MONTH_S == pytest.approx(0.145e-9)
    assert ways.volumes.kept_s == 7200.0
    assert ways.volumes.per_initialized_byte == pytest.approx(0.01e-9)
    assert read("") == Alternatives()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[alternatives]\nloads = 3", r"plan.toml:2: alternatives.loads: unknown key"),
        (
            '[alternatives.shared_file_system]\nprice = "0.6 USD/GB"',
            r"plan.toml:2: alternatives.shared_file_system.price: not such a price",
        ),
        (
            '[alternatives.volumes]\nfirst_read = "300"',
            r"plan.toml:2: alternatives.volumes.first_read: not a rate",
        ),
        (
            '[alternatives.volumes]\nprice = "0.1 EUR/GB-month"',
            r"plan.toml:2: alternatives.volumes.price: is in EUR, others are in USD",
        ),
        ("[alternatives.plain_s3]\nconnections = 0", r"connections: is 0, not between 1"),
    ],
)
def test_wrong_alternatives_are_refused_with_key_and_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(text)


def test_defaults_in_another_currency_are_told_and_not_added_up() -> None:
    ways = read("", Prices(currency="EUR"))
    assert ways.foreign_prices == (
        "alternatives.shared_file_system.price", "alternatives.volumes.initialization",
        "alternatives.volumes.price", "alternatives.volumes.snapshot",
    )  # fmt: skip
