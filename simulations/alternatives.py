"""Ways to bring weights to nodes without a swarm, as closed forms: what a plan compares with.

All nodes begin at once and share what they read from max-min fairly, each limited by its own NIC
and disk, so the last of N equal nodes is done after max(N·F/throughput, F/node). Every assumption
that is open is taken in favour of the alternative: no retries, no throttling unless the scenario
says so, clients that fill their NIC unless they are told a number of connections.

**Plain reads of the origin.** Every node reads the whole version with ranged requests.

**A shared file system** that holds the version already: its throughput is shared, its capacity is
paid for by the month whether or not anybody reads. The default is a persistent SSD file system of
9.6 TiB with 1,000 MB/s a TiB at 0.600 USD a GB and month
(https://aws.amazon.com/fsx/lustre/pricing/, US East, early 2026).

**Prebuilt volumes**: each node gets a block volume made from a snapshot. It is there at once, but a
block is fetched from the object store when it is read first, so what counts is the rate of first
reads. The default, 300 MiB/s, is the highest that can be reserved
(https://docs.aws.amazon.com/ebs/latest/userguide/initalize-volume.html: 100 to 300 MiB/s; without a
reservation it varies). What a reservation costs is left out of the default, in favour of volumes.
Storage is 0.08 USD a GB and month for the volume and 0.05 for the snapshot
(https://aws.amazon.com/ebs/pricing/, US East, early 2026). Snapshots that restore at full speed at
once (fast snapshot restore) do so for about 1,024 GiB of volumes an hour in each zone, which is no
way to start a fleet, and are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from simulations.cost import Cost, Usage
from simulations.prices import MONTH_S, Prices
from simulations.scenario import NodeGroup, Scenario

FILE_SYSTEM_BYTES = 96 * 2**40 // 10
PART_BYTES = 8 * 2**20
"""What usual clients ask for with one request (the AWS command line's default)."""


@dataclass(frozen=True, slots=True)
class PlainReads:
    """A client on each node."""

    # As many as fill the NIC, unless told.
    connections: int | None = None
    part_bytes: int = PART_BYTES


@dataclass(frozen=True, slots=True)
class SharedFileSystem:
    """All nodes mount it."""

    bytes_per_s: float = 9.6e9
    # What one client gets at most.
    node_bytes_per_s: float = math.inf
    capacity_bytes: float = FILE_SYSTEM_BYTES
    per_byte_s: float = 0.6 / 1e9 / MONTH_S


@dataclass(frozen=True, slots=True)
class Volumes:
    """One for each node, made from one snapshot."""

    create_s: float = 10.0
    first_read_bytes_per_s: float = 300 * 2**20
    # Extra, for a reserved rate of first reads.
    per_initialized_byte: float = 0.0
    per_byte_s: float = 0.08 / 1e9 / MONTH_S
    per_snapshot_byte_s: float = 0.05 / 1e9 / MONTH_S
    # How long a node keeps its volume.
    kept_s: float = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Alternatives:
    """What a scenario's ``[alternatives]`` says."""

    plain: PlainReads = field(default_factory=PlainReads)
    file_system: SharedFileSystem = field(default_factory=SharedFileSystem)
    volumes: Volumes = field(default_factory=Volumes)
    # Among so many loads the standing costs of a month are divided.
    loads_per_month: float = 30.0
    # Keys whose default price is in another currency than the scenario's prices.
    foreign_prices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Estimate:
    """One way to load one fleet once."""

    name: str
    # (nodes, seconds until each of them is done), soonest first.
    done: tuple[tuple[int, float], ...]
    usage: Usage
    prices: Prices
    # What the last node waits for.
    limited_by: str
    # What has to be paid each month for being able to, and its part for one load.
    per_month: float = 0.0
    standing: float = 0.0

    def seconds(self, share: float) -> float:
        """When that share of the nodes is done, by the nearest rank."""
        count = sum(nodes for nodes, _ in self.done)
        rank = max(math.ceil(share * count), 1)
        for nodes, done_s in self.done:
            rank -= nodes
            if rank <= 0:
                return done_s
        return math.inf

    @property
    def last_s(self) -> float:
        return self.done[-1][1]

    @property
    def per_load(self) -> float:
        return Cost(self.usage, self.prices).total + self.standing


def plain_reads(scenario: Scenario, ways: Alternatives, prices: Prices) -> Estimate | None:
    """Every node reads the origin itself; None without one."""
    origin, plain = scenario.origin, ways.plain
    if origin is None:
        return None
    first_byte_s = origin.rtt_s + (origin.first_byte_s_min + origin.first_byte_s_max) / 2
    parts = math.ceil(scenario.version.total_bytes / plain.part_bytes)
    total_rate = min(origin.bytes_per_s, origin.requests_per_s * plain.part_bytes)
    limits = {"origin": total_rate}
    client = math.inf
    if plain.connections is not None:
        # A connection asks for the next part when it has one, and waits for its first byte.
        part_s = first_byte_s + plain.part_bytes / origin.connection_bytes_per_s
        client = plain.connections * plain.part_bytes / part_s
    done, limited_by = _done(scenario, limits, {"connections": client}, first_byte_s)
    copies = sum(nodes * (1 - group.held_share) for nodes, group in _fetching(scenario))
    usage = Usage(
        copies * parts, copies * scenario.version.total_bytes, 0.0, sum(n * s for n, s in done)
    )
    return Estimate("plain S3", done, usage, prices, limited_by)


def shared_file_system(scenario: Scenario, ways: Alternatives, prices: Prices) -> Estimate:
    """Every node reads it, however much of the version it holds."""
    shared = ways.file_system
    own = {"client": shared.node_bytes_per_s}
    done, limited_by = _done(scenario, {"file system": shared.bytes_per_s}, own, 0.0)
    usage = Usage(0.0, 0.0, 0.0, sum(nodes * done_s for nodes, done_s in done))
    per_month = shared.capacity_bytes * shared.per_byte_s * MONTH_S
    standing = per_month / ways.loads_per_month
    return Estimate("shared file system", done, usage, prices, limited_by, per_month, standing)


def prebuilt_volumes(scenario: Scenario, ways: Alternatives, prices: Prices) -> Estimate:
    """Every node gets a volume, and reads all of it once."""
    volumes = ways.volumes
    own = {"first reads of the volume": volumes.first_read_bytes_per_s}
    done, limited_by = _done(scenario, {}, own, volumes.create_s)
    total = scenario.version.total_bytes
    count = sum(nodes for nodes, _ in _fetching(scenario))
    usage = Usage(0.0, 0.0, 0.0, sum(nodes * done_s for nodes, done_s in done))
    per_volume = total * (volumes.per_initialized_byte + volumes.per_byte_s * volumes.kept_s)
    per_month = total * volumes.per_snapshot_byte_s * MONTH_S
    standing = count * per_volume + per_month / ways.loads_per_month
    return Estimate("prebuilt volumes", done, usage, prices, limited_by, per_month, standing)


def _fetching(scenario: Scenario) -> list[tuple[int, NodeGroup]]:
    return [(group.count, group) for group in scenario.groups if group.held_share < 1.0]


def _done(
    scenario: Scenario, shared: dict[str, float], own: dict[str, float], begins_s: float
) -> tuple[tuple[tuple[int, float], ...], str]:
    """When the nodes of each group are done, and what limits the last ones: something shared, or
    the smallest of what a node has alone."""
    wants: list[tuple[int, float, float]] = []
    names: list[str] = []
    for count, group in _fetching(scenario):
        limits = {
            "receiver NIC": group.down_bytes_per_s, "disk": group.disk_write_bytes_per_s, **own,
        }  # fmt: skip
        name = min(limits, key=lambda one: limits[one])
        names.append(name)
        wanted = scenario.version.total_bytes * (1 - group.held_share)
        wants.append((count, wanted, limits[name]))
    total = min(shared.values(), default=math.inf)
    times = finish_times(wants, total)
    last = max(range(len(times)), key=lambda place: times[place])
    alone_s = wants[last][1] / wants[last][2]
    is_alone = times[last] <= alone_s * (1 + 1e-9)
    limited_by = names[last] if is_alone or not shared else min(shared, key=lambda one: shared[one])
    done = sorted(
        (begins_s + time, count) for time, (count, _, _) in zip(times, wants, strict=True)
    )
    return tuple((count, done_s) for done_s, count in done), limited_by


def finish_times(wants: Sequence[tuple[int, float, float]], total: float) -> list[float]:
    """Of classes of (count, bytes, bytes/s that one can take at most), each member with its max-min
    fair share of `total` bytes/s."""
    left = {place: size for place, (_, size, _) in enumerate(wants)}
    times = [0.0] * len(wants)
    now = 0.0
    while left:
        level = _fair_level([(wants[place][0], wants[place][2]) for place in left], total)
        rates = {place: min(wants[place][2], level) for place in left}
        step_s = min(left[place] / rates[place] for place in left)
        now += step_s
        for place in list(left):
            left[place] -= rates[place] * step_s
            if left[place] <= 1e-6 * wants[place][1]:
                times[place] = now
                del left[place]
    return times


def _fair_level(caps: Sequence[tuple[int, float]], total: float) -> float:
    """What each may take so that all together take no more than `total`."""
    count = sum(one for one, _ in caps)
    for members, cap in sorted(caps, key=lambda pair: pair[1]):
        if cap * count >= total:
            return total / count
        total -= members * cap
        count -= members
    return math.inf
