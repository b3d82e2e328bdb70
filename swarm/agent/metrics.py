"""The agent's metrics in Prometheus text format, made when asked for from the same record as
status."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import trio
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from swarm.agent.status import version_status

if TYPE_CHECKING:
    from swarm.agent.agent import Agent


def metrics_page(agent: Agent) -> bytes:
    """All metrics of this moment. A registry per page: the numbers live in the ledger, not here."""
    registry = CollectorRegistry()
    _version_metrics(agent, registry)
    _agent_metrics(agent, registry)
    return generate_latest(registry)


def _version_metrics(agent: Agent, registry: CollectorRegistry) -> None:
    labels = ["version"]
    held = Gauge("swarm_version_bytes_held", "Verified unique bytes", labels, registry=registry)
    total = Gauge("swarm_version_bytes", "Unique bytes", labels, registry=registry)
    ready = Gauge("swarm_version_ready", "1 when READY", labels, registry=registry)
    wasted = Gauge("swarm_version_wasted_bytes", "Bytes not used", labels, registry=registry)
    seconds = Gauge(
        "swarm_version_seconds", "Seconds until READY, so far", labels, registry=registry
    )
    by_source = Gauge(
        "swarm_version_source_bytes", "Verified bytes by source", ["version", "source"],
        registry=registry,
    )  # fmt: skip
    for version in agent.shelf.held:
        status = version_status(agent, version)
        if status is None:
            continue
        name = version.hex()
        held.labels(name).set(status.bytes_held)
        total.labels(name).set(status.bytes)
        ready.labels(name).set(status.is_ready)
        wasted.labels(name).set(status.wasted_bytes)
        seconds.labels(name).set(status.seconds)
        for source, count in status.bytes_by_source.items():
            by_source.labels(name, source.value).set(count)
    problem = Gauge(
        "swarm_version_problem", "1: not READY, and its latest fault is of this class",
        ["version", "class"], registry=registry,
    )  # fmt: skip
    for version in agent.shelf.missing():
        if (error := agent.shelf.problems.get(version)) is not None:
            problem.labels(version.hex(), error.code).set(1)


def _agent_metrics(agent: Agent, registry: CollectorRegistry) -> None:
    def gauge(name: str, meaning: str, value: float) -> None:
        Gauge(name, meaning, registry=registry).set(value)

    gauge("swarm_neighbours", "Peers with a control link", agent.neighbour_count)
    gauge("swarm_transfers_live", "Chunks on their way here", len(agent.ledger.live))
    gauge("swarm_sent_bytes_total", "Payload bytes sent to peers", agent.ledger.sent_bytes)
    gauge("swarm_nic_bytes_per_second", "NIC rate, given or learned", agent.facts.nic_bytes_per_s())
    _origin_metrics(agent, registry)
    is_lost = agent.session is not None and agent.session.is_lost
    gauge("swarm_tracker_lost", "1 while no tracker answers", is_lost)
    revision = Gauge(
        "swarm_channel_revision", "Revision served here", ["channel"], registry=registry
    )
    for channel, number in agent.facts.channels_served():
        revision.labels(channel).set(number)


def _origin_metrics(agent: Agent, registry: CollectorRegistry) -> None:
    """Nothing where there is no origin."""
    if not agent.settings.origin:
        return
    now = trio.current_time()
    degraded = Gauge(
        "swarm_origin_degraded", "1 while reads of the origin fail so", ["reason"],
        registry=registry,
    )  # fmt: skip
    since = Gauge(
        "swarm_origin_degraded_since_seconds", "Since when, seconds since 1970", ["reason"],
        registry=registry,
    )  # fmt: skip
    failures = Counter(
        "swarm_origin_failures", "Failed reads of the origin", ["reason"], registry=registry
    )
    for fault, count in agent.origin_health.failure_counts.items():
        degraded.labels(fault.value).set(0)
        failures.labels(fault.value).inc(count)
    for trouble in agent.origin_health.degradations(now=now):
        degraded.labels(trouble.fault.value).set(1)
        since.labels(trouble.fault.value).set(time.time() - now + trouble.since)
