"""From a TOML file to a scenario: one reader per table, then what only the whole can tell.

The tables are those of `scenario`; `docs/CAPACITY.md` shows each key. A rate that limits both ways
is `nic`, else `up` and `down`. What cannot work is refused before it runs for hours: chunks that
nobody holds and no origin has, racks without a size, a fault in a group that is not there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from simulations.alternatives import Alternatives
from simulations.alternatives_file import read_alternatives
from simulations.faults import (
    Corrupt,
    Crash,
    Fault,
    Leave,
    OriginSlow,
    Partition,
    Slow,
    TrackerLoss,
)
from simulations.prices import Prices, read_prices
from simulations.scenario import (
    NODE_RTT_S,
    SERVICE_RTT_S,
    ZONE_RTT_S,
    ChunkCost,
    LinkShape,
    NodeGroup,
    OriginShape,
    Scenario,
    TrackerShape,
    VersionShape,
)
from simulations.toml_table import Document, Table
from swarm.errors import UsageError
from swarm.policy.settings import NodeSettings
from tracker.policy.prices import ZoneCopies

CHUNK_COUNT_MAX = 100_000
FAULT_KINDS = (
    "crash", "leave", "slow-nic", "slow-disk", "partition", "corrupt", "origin-slow",
    "tracker-loss",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """What a file says."""

    scenario: Scenario
    seed: int
    prices: Prices
    alternatives: Alternatives


def read_scenario(path: Path, settings: tuple[str, ...] = ()) -> ScenarioFile:
    """Read a file and apply ``KEY=VALUE`` settings over it; raises UsageError."""
    return parse_scenario(read_document(path, settings))


def read_document(path: Path, settings: tuple[str, ...] = ()) -> Document:
    """The file with its settings, not yet understood; raises UsageError."""
    document = Document(read_text(path), str(path))
    for setting in settings:
        document.change(setting)
    return document


def read_text(path: Path) -> str:
    """Raises UsageError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", object_name=str(path)) from error


def parse_scenario(document: Document) -> ScenarioFile:
    root = document.table()
    seed = root.count("seed", 1, least=0)
    mode = root.choice("mode", ("", "origin", "peers-only"), "")
    limit_bounds = root.number("limit_bounds", 50.0)
    version = _version(root.table("version"))
    tables = root.tables("nodes")
    if not tables:
        raise root.fail("nodes", "there are no nodes", "write a [[nodes]] table")
    groups = tuple(_group(table, index) for index, table in enumerate(tables))
    links = _links(root.table("links"), groups)
    origin = _origin(root.table("origin"), groups) if root.flag("has_origin", True) else None
    if origin is None and root.has("origin"):
        raise root.fail("has_origin", "is false, but there is an [origin] table")
    tracker = _tracker(root.table("tracker"))
    cost = _cost(root.table("hashing"))
    faults = tuple(_fault(table, groups) for table in root.tables("faults"))
    prices = read_prices(root.table("prices"))
    alternatives = read_alternatives(root.table("alternatives"), prices)
    # Of the serving fleet around the swarm; simulations.fleet reads it.
    root.table("fleet")
    root.end()
    scenario = Scenario(
        version, groups, links, origin, tracker, cost, faults, limit_bounds=limit_bounds, mode=mode
    )
    _check(root, scenario)
    return ScenarioFile(scenario, seed, prices, alternatives)


def _version(table: Table) -> VersionShape:
    total = table.size("size")
    if table.has("chunks") == table.has("chunk_size"):
        raise table.fail("chunks", "give either chunks or chunk_size")
    if table.has("chunks"):
        chunk = math.ceil(total / table.count("chunks"))
    else:
        chunk = table.size("chunk_size")
    shape = VersionShape(total, chunk)
    if shape.chunk_count > CHUNK_COUNT_MAX:
        raise table.fail("chunk_size", f"{shape.chunk_count} chunks; {CHUNK_COUNT_MAX} at most")
    table.end()
    return shape


def _group(table: Table, index: int) -> NodeGroup:
    if table.has("nic") == (table.has("up") or table.has("down")):
        raise table.fail("nic", "give either nic, or up and down")
    up, down = (
        (table.rate("nic"),) * 2 if table.has("nic") else (table.rate("up"), table.rate("down"))
    )
    usual = NodeSettings()
    settings = NodeSettings(
        session_count=table.count("sessions", usual.session_count),
        neighbour_count=table.count("neighbours", usual.neighbour_count, least=2),
    )
    burst_s = table.duration("burst_for", math.inf)
    group = NodeGroup(
        table.count("count"),
        up,
        down,
        name=table.text("name", f"nodes-{index + 1}"),
        zones=table.texts("zones", ("",)),
        rack_nodes=table.count("rack_nodes", 0, least=0),
        flow_cap_bytes_per_s=table.rate("flow_cap", math.inf),
        disk_write_bytes_per_s=table.rate("disk_write", math.inf),
        disk_read_bytes_per_s=table.rate("disk_read", math.inf),
        starts_at_s=table.duration("starts_at", 0.0),
        starts_within_s=table.duration("starts_within", 0.0),
        held_share=table.share("holds", 0.0),
        told_nic_bytes_per_s=_told_nic(table),
        burst_s=burst_s,
        burst_over_bytes_per_s=table.rate("burst_over") if burst_s < math.inf else 0.0,
        settings=settings,
    )
    table.end()
    return group


def _told_nic(table: Table) -> float | None:
    """Absent: the truth. "unknown": nothing."""
    if not table.has("told_nic"):
        return None
    return 0.0 if table.text("told_nic") == "unknown" else table.rate("told_nic")


def _links(table: Table, groups: tuple[NodeGroup, ...]) -> LinkShape:
    rtt_s = table.duration("rtt", NODE_RTT_S)
    rack = table.rate("rack", math.inf)
    if table.has("oversubscription"):
        rack = _rack_rate(table, groups)
    shape = LinkShape(
        rtt_s=rtt_s,
        zone_rtt_s=table.duration("zone_rtt", max(rtt_s, ZONE_RTT_S)),
        zone_bytes_per_s=table.rate("zone", math.inf),
        rack_bytes_per_s=rack,
        unevenness=table.number("unevenness") if table.has("unevenness") else 0.0,
        header_share=table.share("headers", 0.0),
        handshake_s=table.duration("handshake") if table.has("handshake") else None,
        gap_s=table.duration("gap", 0.0),
    )
    table.end()
    return shape


def _rack_rate(table: Table, groups: tuple[NodeGroup, ...]) -> float:
    """What the NICs of a rack come to, over the oversubscription."""
    factor = table.number("oversubscription")
    if table.has("rack"):
        raise table.fail("oversubscription", "give either rack or oversubscription")
    sizes = {group.rack_nodes * group.up_bytes_per_s for group in groups if group.rack_nodes}
    if len(sizes) != 1:
        raise table.fail("oversubscription", "needs rack_nodes, with one kind of rack")
    return sizes.pop() / factor


def _origin(table: Table, groups: tuple[NodeGroup, ...]) -> OriginShape:
    if table.has("rate") == table.has("nics"):
        raise table.fail("rate", "give either rate, or nics (of the first group)")
    rate = (
        table.rate("rate")
        if table.has("rate")
        else table.number("nics") * groups[0].down_bytes_per_s
    )
    first_byte = table.durations("first_byte", (0.0, 0.0))
    shape = OriginShape(
        rate,
        connection_bytes_per_s=table.rate("connection", math.inf),
        first_byte_s_min=first_byte[0],
        first_byte_s_max=first_byte[1],
        rtt_s=table.duration("rtt", SERVICE_RTT_S),
        requests_per_s=table.number("requests_per_s", math.inf)
        if table.has("requests_per_s")
        else math.inf,
        retry_after_s=table.duration("retry_after") if table.has("retry_after") else None,
        hung_share=table.share("hung", 0.0),
    )
    table.end()
    return shape


def _tracker(table: Table) -> TrackerShape | None:
    is_there = table.flag("is_there", True)
    shape = TrackerShape(
        rtt_s=table.duration("rtt", SERVICE_RTT_S),
        service_s=table.duration("service_time", 0.0),
        zone_copies=ZoneCopies(table.choice("zone_copies", ("peer", "origin"), "peer")),
    )
    table.end()
    return shape if is_there else None


def _cost(table: Table) -> ChunkCost:
    cost = ChunkCost(
        table.duration("per_chunk", 0.0),
        table.rate("rate", math.inf),
        shared_count=table.count("shared_processors", 0, least=0),
    )
    table.end()
    return cost


def _fault(table: Table, groups: tuple[NodeGroup, ...]) -> Fault:
    kind = table.choice("kind", FAULT_KINDS)
    at_s = table.duration("at")
    fault: Fault
    match kind:
        case "origin-slow":
            fault = OriginSlow(
                at_s,
                table.duration("for"),
                total_factor=table.number("total", 1.0),
                connection_factor=table.number("connection", 1.0),
            )
        case "tracker-loss":
            fault = TrackerLoss(at_s, table.duration("for"))
        case _:
            fault = _node_fault(table, kind, at_s, groups)
    table.end()
    return fault


def _node_fault(table: Table, kind: str, at_s: float, groups: tuple[NodeGroup, ...]) -> Fault:
    names = [group.name for group in groups]
    group = table.choice("group", names) if table.has("group") else ""
    if kind == "crash" and table.has("per_minute"):
        return Crash(
            at_s,
            per_minute=table.share("per_minute"),
            for_s=table.duration("for"),
            notice_s=table.duration("notice", 0.0),
            is_replaced=table.flag("is_replaced", False),
            group=group,
        )
    zones = {zone for one in groups for zone in one.zones}
    if kind == "partition" and table.has("zone"):
        zone = table.choice("zone", sorted(zones))
        return Partition(at_s, table.duration("for"), zone=zone, group=group)
    if table.has("share") == table.has("count"):
        raise table.fail("share", "give either share or count")
    share = table.share("share") if table.has("share") else 0.0
    count = table.count("count") if table.has("count") else 0
    match kind:
        case "crash":
            return Crash(
                at_s, share, count,
                notice_s=table.duration("notice", 0.0),
                is_replaced=table.flag("is_replaced", False),
                group=group,
            )  # fmt: skip
        case "leave":
            return Leave(at_s, share, count, group)
        case "partition":
            return Partition(at_s, table.duration("for"), share, count, group)
        case "corrupt":
            part = table.share("chunks", 1.0)
            is_on_disk = table.flag("is_on_disk", True)
            return Corrupt(at_s, part, share, count, group, is_on_disk)
        case _:
            for_s = table.duration("for") if table.has("for") else math.inf
            factor = table.number("factor")
            return Slow(at_s, factor, share, count, for_s, kind == "slow-disk", group)


def _check(root: Table, scenario: Scenario) -> None:
    """What no single table can know."""
    names = [group.name for group in scenario.groups]
    if len(set(names)) < len(names):
        raise root.fail("nodes", f"two groups have one name: {', '.join(names)}")
    held = max(group.held_share for group in scenario.groups)
    if held < 1.0 and (scenario.origin is None or scenario.mode == "peers-only"):
        raise root.fail(
            "nodes",
            "there are chunks that nobody holds, and no origin to read them from",
            'give some nodes holds = "100%", or an [origin]',
        )
    if scenario.mode and scenario.tracker is None:
        raise root.fail("mode", "a mode is the tracker's to tell, and there is none")
    if scenario.mode == "origin" and scenario.origin is None:
        raise root.fail("mode", "there is no origin")
    if all(group.held_share == 1.0 for group in scenario.groups):
        raise root.fail("nodes", "everybody holds everything: nothing is left to simulate")
    if scenario.links.rack_bytes_per_s < math.inf and not any(
        group.rack_nodes for group in scenario.groups
    ):
        raise root.fail("links.rack", "no group has racks", "write rack_nodes in [[nodes]]")
    if scenario.links.zone_bytes_per_s < math.inf and all(
        group.zones == ("",) for group in scenario.groups
    ):
        raise root.fail("links.zone", "no group has zones", 'write zones = ["a", "b"] in [[nodes]]')
