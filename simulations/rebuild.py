"""From the traces of a fleet's nodes to the scenario that they lived through.

What an agent was told is taken as it was told; what nobody was told is taken from a profile, and
what no profile says from the traces: a card is at least as fast as the highest rate seen over half
a second, the origin as fast as it was in the better half of the time. Racks are not rebuilt, and a
peer that gave chunks and left no trace is taken to have been whole from the start.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simulations.calibration import beside_payload, link_s
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
from swarm.capacity.cold_start import VERIFIED, Attempt, Trace
from swarm.capacity.profile import Profile
from swarm.errors import UsageError
from swarm.policy.settings import NodeSettings

WINDOW_S = 0.5
"""Rates are seen over so long: what the agent itself believes."""
BETTER_HALF = 0.75
"""The middle of the better half."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """`scenario` has one group a trace, in the order of the traces, then those without one."""

    scenario: Scenario
    # Peers that gave chunks and left no trace.
    untraced: tuple[str, ...]
    notes: tuple[str, ...]


def rebuild(
    traces: Sequence[Trace], profile: Profile | None, origin_bytes_per_s: float | None
) -> Rebuilt:
    """The scenario; raises UsageError if the traces do not hold enough of it."""
    links = _links(profile)
    first_at = min(trace.start.started_at for trace in traces)
    sent = _sent_rates(traces)
    measured = profile.network.receive_bytes_per_s if profile is not None else None
    groups = [_group(trace, first_at, links, measured, sent) for trace in traces]
    traced = {trace.start.node for trace in traces}
    untraced = tuple(sorted(set(sent) - traced))
    for node in untraced:
        card = links.card(measured or max(sent[node], max(sent.values())))
        groups.append(NodeGroup(1, card, card, name=node, held_share=1.0))
    start = traces[0].start
    scenario = Scenario(
        VersionShape(start.total_bytes, start.chunk_bytes),
        tuple(groups),
        links,
        _origin(traces, profile, links, origin_bytes_per_s),
        TrackerShape() if any(trace.start.settings.has_tracker for trace in traces) else None,
        ChunkCost(profile.agent.verify_s or 0.0) if profile is not None else ChunkCost(),
    )
    _check(scenario)
    return Rebuilt(scenario, untraced, tuple(_notes(traces, untraced)))


def _links(profile: Profile | None) -> LinkShape:
    if profile is None:
        return LinkShape()
    network, agent = profile.network, profile.agent
    rtt_s = NODE_RTT_S if network.rtt_s is None else network.rtt_s
    return LinkShape(
        rtt_s=rtt_s,
        zone_rtt_s=max(rtt_s, ZONE_RTT_S),
        unevenness=network.unevenness or 0.0,
        header_share=beside_payload(profile),
        handshake_s=link_s(profile),
        gap_s=agent.chunk_gap_s or 0.0,
    )


def _group(
    trace: Trace,
    first_at: float,
    links: LinkShape,
    measured: float | None,
    sent: dict[str, float],
) -> NodeGroup:
    start, told = trace.start, trace.start.settings
    # What was told is the card, or where a limit is lower, that; limits count payload.
    card = math.inf if told.nic_bytes_per_s is None else told.nic_bytes_per_s
    up, down = (
        card if limit is None else min(links.card(limit), card)
        for limit in (told.uplink_bytes_per_s, told.downlink_bytes_per_s)
    )
    if math.inf in (up, down):
        seen = max(_highest_rate(_intervals(trace.attempts)), sent.get(start.node, 0.0))
        card = links.card(measured or seen)
        up, down = (card if rate == math.inf else rate for rate in (up, down))
    if not min(up, down) > 0:
        raise UsageError(
            f"node {start.node[:12]}: nothing tells the rate of its card",
            object_name=start.node,
            hint="give --profile FILE",
        )
    return NodeGroup(
        1,
        up,
        down,
        name=start.node,
        zones=(told.zone,),
        flow_cap_bytes_per_s=told.flow_cap_bytes_per_s or math.inf,
        starts_at_s=start.started_at - first_at,
        held_share=start.held_count / start.chunk_count,
        told_nic_bytes_per_s=told.nic_bytes_per_s or 0.0,
        settings=NodeSettings(uplink_bytes_per_s=told.uplink_bytes_per_s or 0.0),
    )


def _origin(
    traces: Sequence[Trace],
    profile: Profile | None,
    links: LinkShape,
    bytes_per_s: float | None,
) -> OriginShape | None:
    if not any(trace.start.settings.has_origin for trace in traces):
        return None
    reads = [
        (trace.start.started_at, attempt)
        for trace in traces
        for attempt in trace.attempts
        if attempt.is_origin and attempt.begun_s is not None
    ]
    waits = sorted(read.begun_s - read.asked_s for _, read in reads if read.begun_s is not None)
    if not waits:
        return None
    seen = profile.origin if profile is not None else None
    # The shortest: the others waited for the origin's rate too, which the simulation adds itself.
    first = (waits[0], waits[0])
    if seen is not None and seen.first_byte_s_min is not None and seen.first_byte_s_max is not None:
        first = (seen.first_byte_s_min, seen.first_byte_s_max)
    return OriginShape(
        links.card(_usual_rate(reads)) if bytes_per_s is None else bytes_per_s,
        connection_bytes_per_s=(seen.connection_bytes_per_s if seen else None) or math.inf,
        first_byte_s_min=max(first[0] - SERVICE_RTT_S, 0.0),
        first_byte_s_max=max(first[1] - SERVICE_RTT_S, 0.0),
    )


def _usual_rate(reads: Iterable[tuple[float, Attempt]]) -> float:
    """Bytes/s of all reads together in the better half of the time that they took: what the origin
    gives while enough is asked of it."""
    spans = [
        (began + read.begun_s, began + _end_s(read), read.bytes)
        for began, read in reads
        if read.begun_s is not None and read.outcome == VERIFIED
    ]
    if not spans:
        raise UsageError(
            "no read of the origin succeeded: nothing tells its rate",
            hint="give --origin-rate RATE",
        )
    return _quantile(sorted(_window_rates(spans)), BETTER_HALF)


def _sent_rates(traces: Sequence[Trace]) -> dict[str, float]:
    """The highest rate at which others got from each node, by node id, in bytes/s."""
    taken: defaultdict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for trace in traces:
        for attempt in trace.attempts:
            if not attempt.is_origin and attempt.begun_s is not None:
                taken[attempt.source] += _intervals([attempt], trace.start.started_at)
    return {node: _highest_rate(spans) for node, spans in sorted(taken.items())}


def _intervals(
    attempts: Iterable[Attempt], offset_s: float = 0.0
) -> list[tuple[float, float, int]]:
    """(begin, end, bytes) of each chunk that arrived."""
    return [
        (offset_s + attempt.begun_s, offset_s + _end_s(attempt), attempt.bytes)
        for attempt in attempts
        if attempt.begun_s is not None and attempt.outcome == VERIFIED
    ]


def _highest_rate(spans: Iterable[tuple[float, float, int]]) -> float:
    """Bytes/s in the busiest window."""
    return max(_window_rates(spans), default=0.0)


def _window_rates(spans: Iterable[tuple[float, float, int]]) -> list[float]:
    """Bytes/s in each window in which anything moved, each chunk spread evenly over its time."""
    windows: defaultdict[int, float] = defaultdict(float)
    for begun, ended, count in spans:
        length = max(ended - begun, 1e-6)
        for index in range(int(begun / WINDOW_S), int(ended / WINDOW_S) + 1):
            low, high = index * WINDOW_S, (index + 1) * WINDOW_S
            inside = max(min(high, begun + length) - max(low, begun), 0.0)
            windows[index] += count * inside / length
    return [moved / WINDOW_S for moved in windows.values() if moved]


def _end_s(attempt: Attempt) -> float:
    return attempt.done_s if attempt.received_s is None else attempt.received_s


def _quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(int(share * len(ascending)), len(ascending) - 1)]


def _notes(traces: Sequence[Trace], untraced: Sequence[str]) -> Iterable[str]:
    if untraced:
        names = ", ".join(node[:12] for node in untraced[:3])
        yield f"{len(untraced)} peers left no trace and count as whole from the start: {names}"
    if any(trace.start.settings.rack for trace in traces):
        yield "racks are not rebuilt: their uplinks count as no limit"
    dropped = sum(trace.end.dropped_count for trace in traces if trace.end is not None)
    if dropped:
        yield f"{dropped} attempts were not written to the traces"


def _check(scenario: Scenario) -> None:
    held = max(group.held_share for group in scenario.groups)
    if scenario.origin is None and held < 1.0:
        raise UsageError(
            "the traces show no source that held everything, and no read of an origin",
            hint="give the traces of all nodes that took part",
        )
    if all(group.held_share == 1.0 for group in scenario.groups):
        raise UsageError("every node held everything at its start: there is nothing to replay")
