"""The ``[alternatives]`` of a scenario file."""

from __future__ import annotations

from simulations.alternatives import Alternatives, PlainReads, SharedFileSystem, Volumes
from simulations.prices import Prices, Purse, per_byte, per_byte_s
from simulations.toml_table import Table


def read_alternatives(table: Table, prices: Prices) -> Alternatives:
    """Over the defaults; all prices are in the currency of `prices`. Raises UsageError."""
    usual = Alternatives()
    shared = table.table("shared_file_system")
    volumes = table.table("volumes")
    purses = (Purse(shared, prices.currency), Purse(volumes, prices.currency))
    ways = Alternatives(
        plain=_plain(table.table("plain_s3"), usual.plain),
        file_system=_file_system(shared, usual.file_system, purses[0]),
        volumes=_volumes(volumes, usual.volumes, purses[1]),
        loads_per_month=table.number("loads_per_month", usual.loads_per_month),
        foreign_prices=tuple(key for purse in purses for key in purse.foreign_defaults),
    )
    table.end()
    return ways


def _plain(table: Table, usual: PlainReads) -> PlainReads:
    ways = PlainReads(
        connections=table.count("connections") if table.has("connections") else usual.connections,
        part_bytes=table.size("part", usual.part_bytes),
    )
    table.end()
    return ways


def _file_system(table: Table, usual: SharedFileSystem, purse: Purse) -> SharedFileSystem:
    ways = SharedFileSystem(
        bytes_per_s=table.rate("throughput", usual.bytes_per_s),
        node_bytes_per_s=table.rate("node", usual.node_bytes_per_s),
        capacity_bytes=table.size("capacity", usual.capacity_bytes),
        per_byte_s=purse.price("price", per_byte_s, usual.per_byte_s, "0.6 USD/GB-month"),
    )
    table.end()
    return ways


def _volumes(table: Table, usual: Volumes, purse: Purse) -> Volumes:
    ways = Volumes(
        create_s=table.duration("create", usual.create_s),
        first_read_bytes_per_s=table.rate("first_read", usual.first_read_bytes_per_s),
        per_initialized_byte=purse.price(
            "initialization", per_byte, usual.per_initialized_byte, "0.01 USD/GB"
        ),
        per_byte_s=purse.price("price", per_byte_s, usual.per_byte_s, "0.08 USD/GB-month"),
        per_snapshot_byte_s=purse.price(
            "snapshot", per_byte_s, usual.per_snapshot_byte_s, "0.05 USD/GB-month"
        ),
        kept_s=table.duration("kept", usual.kept_s),
    )
    table.end()
    return ways
