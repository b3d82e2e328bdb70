"""What a scenario takes for granted, each varied alone: half and double, or what if it were there.

A rate that a scenario does not limit cannot be halved; for those the question is what a limit that
others have met would cost, and the value is named. The scenarios keep everything else: an origin
whose rate was given in NICs keeps its bytes a second when the NIC is varied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from simulations.faults import Crash, Fault, Slow
from simulations.scenario import ChunkCost, NodeGroup, OriginShape, Scenario
from swarm.units import format_duration, format_rate

FLOW_CAP_BYTES_PER_S = 5e9 / 8
"""EC2 outside of a placement group."""
CONNECTION_BYTES_PER_S = 90e6
FIRST_BYTE_S = (0.03, 0.1)
"""S3, as its documentation and everybody's measurements have it."""
# Round figures, where a scenario has nothing of the kind: is it worth finding out?
PER_CHUNK_S = 0.001
TRACKER_SERVICE_S = 0.001
STARTS_WITHIN_S = 10.0
SLOW_SHARE, SLOW_FACTOR = 0.05, 0.05
CRASH_SHARE, NOTICE_S = 0.02, 5.0
UNEVENNESS = 0.5


@dataclass(frozen=True, slots=True)
class Variant:
    """A scenario with one assumption changed."""

    # "half", "double", or what it would be.
    label: str
    scenario: Scenario


@dataclass(frozen=True, slots=True)
class Assumption:
    """One line of the scenario, or one that it leaves out."""

    name: str
    # As the scenario has it.
    now: str
    variants: tuple[Variant, ...]


def assumptions(scenario: Scenario) -> list[Assumption]:
    """In the order of the scenario's tables."""
    return [
        *_of_nodes(scenario),
        *_of_links(scenario),
        *_of_origin(scenario),
        *_of_services(scenario),
        *_of_faults(scenario),
    ]


def _of_nodes(scenario: Scenario) -> Iterator[Assumption]:
    first = scenario.groups[0]
    slowest = min(group.down_bytes_per_s for group in scenario.groups)

    def all_groups(change: Callable[[NodeGroup], NodeGroup]) -> Scenario:
        return replace(scenario, groups=tuple(change(group) for group in scenario.groups))

    def nic(by: float) -> Scenario:
        return all_groups(
            lambda group: replace(
                group,
                up_bytes_per_s=group.up_bytes_per_s * by,
                down_bytes_per_s=group.down_bytes_per_s * by,
            )
        )

    yield _halved("NIC", format_rate(first.down_bytes_per_s), nic)
    told = "true" if first.told_nic_bytes_per_s is None else "as told"
    unknown = all_groups(lambda group: replace(group, told_nic_bytes_per_s=0.0))
    yield _what_if("what nodes are told of their NIC", told, "nothing", unknown)
    cap = min(FLOW_CAP_BYTES_PER_S, slowest / 4)
    yield _limit(
        "rate of one flow", first.flow_cap_bytes_per_s, cap,
        lambda rate: all_groups(lambda group: replace(group, flow_cap_bytes_per_s=rate)),
    )  # fmt: skip
    yield _limit(
        "disk writes", first.disk_write_bytes_per_s, slowest / 2,
        lambda rate: all_groups(lambda group: replace(group, disk_write_bytes_per_s=rate)),
    )  # fmt: skip
    if any(group.held_share for group in scenario.groups):
        yield _limit(
            "disk reads", first.disk_read_bytes_per_s, slowest / 2,
            lambda rate: all_groups(lambda group: replace(group, disk_read_bytes_per_s=rate)),
        )  # fmt: skip

    def starts(within_s: float) -> Scenario:
        return all_groups(lambda group: replace(group, starts_within_s=within_s))

    name, within_s = "spread of starts", first.starts_within_s
    if within_s:
        yield _halved(name, format_duration(within_s), lambda by: starts(within_s * by))
    else:
        label = format_duration(STARTS_WITHIN_S)
        yield _what_if(name, "none", label, starts(STARTS_WITHIN_S))


def _of_links(scenario: Scenario) -> Iterator[Assumption]:
    links, origin, tracker = scenario.links, scenario.origin, scenario.tracker

    def rtt(by: float) -> Scenario:
        return replace(
            scenario,
            links=replace(links, rtt_s=links.rtt_s * by, zone_rtt_s=links.zone_rtt_s * by),
            origin=replace(origin, rtt_s=origin.rtt_s * by) if origin else None,
            tracker=replace(tracker, rtt_s=tracker.rtt_s * by) if tracker else None,
        )

    yield _halved("round trips", _milliseconds(links.rtt_s), rtt)
    zone, rack = links.zone_bytes_per_s, links.rack_bytes_per_s
    if zone < math.inf:
        yield _halved(
            "zone uplinks", format_rate(zone),
            lambda by: replace(scenario, links=replace(links, zone_bytes_per_s=zone * by)),
        )  # fmt: skip
    if rack < math.inf:
        yield _halved(
            "rack uplinks", format_rate(rack),
            lambda by: replace(scenario, links=replace(links, rack_bytes_per_s=rack * by)),
        )  # fmt: skip
    if not links.unevenness:
        uneven = replace(scenario, links=replace(links, unevenness=UNEVENNESS))
        yield _what_if("how flows share a link", "evenly", f"off by {UNEVENNESS:.0%}", uneven)


def _of_origin(scenario: Scenario) -> Iterator[Assumption]:
    origin = scenario.origin
    if origin is None:
        return

    def changed(one: OriginShape) -> Scenario:
        return replace(scenario, origin=one)

    rate, low_s, high_s = origin.bytes_per_s, origin.first_byte_s_min, origin.first_byte_s_max
    yield _halved(
        "origin's rate", format_rate(rate),
        lambda by: changed(replace(origin, bytes_per_s=rate * by)),
    )  # fmt: skip
    yield _limit(
        "origin's rate for a connection",
        origin.connection_bytes_per_s,
        min(CONNECTION_BYTES_PER_S, rate / 4),
        lambda one: changed(replace(origin, connection_bytes_per_s=one)),
    )

    def first_byte(low_s: float, high_s: float) -> Scenario:
        return changed(replace(origin, first_byte_s_min=low_s, first_byte_s_max=high_s))

    if high_s:
        now = f"{_milliseconds(low_s)} to {_milliseconds(high_s)}"
        yield _halved("origin's first byte", now, lambda by: first_byte(low_s * by, high_s * by))
    else:
        label = f"{_milliseconds(FIRST_BYTE_S[0])} to {_milliseconds(FIRST_BYTE_S[1])}"
        yield _what_if("origin's first byte", "at once", label, first_byte(*FIRST_BYTE_S))


def _of_services(scenario: Scenario) -> Iterator[Assumption]:
    cost, tracker = scenario.chunk_cost, scenario.tracker

    def changed(one: ChunkCost) -> Scenario:
        return replace(scenario, chunk_cost=one)

    slowest = min(group.down_bytes_per_s for group in scenario.groups)
    yield _limit(
        "hashing", cost.bytes_per_s, slowest,
        lambda rate: changed(replace(cost, bytes_per_s=rate)),
    )  # fmt: skip
    name, chunk_s = "processor for a chunk", cost.per_chunk_s
    if chunk_s:
        yield _halved(
            name, _milliseconds(chunk_s),
            lambda by: changed(replace(cost, per_chunk_s=chunk_s * by)),
        )  # fmt: skip
    else:
        busy = changed(replace(cost, per_chunk_s=PER_CHUNK_S))
        yield _what_if(name, "none", _milliseconds(PER_CHUNK_S), busy)
    if tracker is not None:
        service_s = tracker.service_s * 2 or TRACKER_SERVICE_S
        slow = replace(scenario, tracker=replace(tracker, service_s=service_s))
        now = _milliseconds(tracker.service_s)
        yield _what_if("tracker's time for a call", now, _milliseconds(service_s), slow)


def _of_faults(scenario: Scenario) -> Iterator[Assumption]:
    faults = scenario.faults
    slow = [fault for fault in faults if isinstance(fault, Slow) and fault.share]
    name = "share of slow nodes"
    if slow:
        yield _halved(
            name, f"{slow[0].share:.0%}",
            lambda by: replace(scenario, faults=tuple(_slower(fault, by) for fault in faults)),
        )  # fmt: skip
    else:
        slowed = replace(
            scenario, faults=(*faults, Slow(0.0, SLOW_FACTOR, count=_some(scenario, SLOW_SHARE)))
        )
        yield _what_if(name, "none", f"{SLOW_SHARE:.0%} at {SLOW_FACTOR:.0%}", slowed)
    if not any(isinstance(fault, Crash) for fault in faults):
        count = _some(scenario, CRASH_SHARE)
        crash = Crash(scenario.slowest_bound_s / 2, count=count, notice_s=NOTICE_S)
        dying = replace(scenario, faults=(*faults, crash))
        yield _what_if("nodes that die halfway", "none", f"{CRASH_SHARE:.0%}", dying)


def _some(scenario: Scenario, share: float) -> int:
    """That share of the nodes, one at least."""
    return max(round(share * scenario.node_count), 1)


def _slower(fault: Fault, by: float) -> Fault:
    if isinstance(fault, Slow) and fault.share:
        return replace(fault, share=min(fault.share * by, 1.0))
    return fault


def _halved(name: str, now: str, change: Callable[[float], Scenario]) -> Assumption:
    return Assumption(name, now, (Variant("half", change(0.5)), Variant("double", change(2.0))))


def _limit(
    name: str, rate: float, otherwise: float, change: Callable[[float], Scenario]
) -> Assumption:
    """Half and double of a limit; what the one named would do where there is none."""
    if rate < math.inf:
        return _halved(name, format_rate(rate), lambda by: change(rate * by))
    return _what_if(name, "no limit", format_rate(otherwise), change(otherwise))


def _what_if(name: str, now: str, label: str, scenario: Scenario) -> Assumption:
    return Assumption(name, now, (Variant(label, scenario),))


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
