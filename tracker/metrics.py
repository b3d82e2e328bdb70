"""What the tracker tells Prometheus, in a registry of its own.

Gauges and totals are read from the policy objects when somebody scrapes, so counting costs nothing
on the way; only request times are recorded as they happen. Versions are labelled by the first 12
digits of their id, which is what every command accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict

import trio
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from tracker.policy.version_swarm import VersionSwarm
from tracker.service import TrackerService
from tracker.views import complete_count

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 20.0)
"""Around the goal of 100 ms for a report; 20 s is a listen that was held to its end."""

Observe = Callable[[int, float], None]
"""(status, seconds) of one answered request."""


class TrackerMetrics:
    """The registry of one tracker process."""

    def __init__(self, service: TrackerService) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_FleetCollector(service))
        self._seconds = Histogram(
            "swarm_tracker_request_seconds",
            "Time to answer, held listens included.",
            ["route"],
            registry=self._registry,
            buckets=_BUCKETS_S,
        )
        self._requests = Counter(
            "swarm_tracker_requests",
            "Requests answered.",
            ["route", "status"],
            registry=self._registry,
        )

    def observer(self, method: str, pattern: str) -> Observe:
        """Where the route of this pattern reports its requests."""
        route = f"{method} {pattern}"
        seconds = self._seconds.labels(route)
        by_status: dict[int, Counter] = {}

        def observe(status: int, elapsed_s: float) -> None:
            if status not in by_status:
                by_status[status] = self._requests.labels(route, str(status))
            by_status[status].inc()
            seconds.observe(elapsed_s)

        return observe

    def page(self) -> tuple[bytes, str]:
        """The text to serve and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


class _FleetCollector(Collector):
    """Reads the tracker at each scrape."""

    def __init__(self, service: TrackerService) -> None:
        self._service = service

    def describe(self) -> list[Metric]:
        """Nothing is computed at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        tracker = self._service.tracker
        statistics = tracker.statistics()
        for name, text, value in (
            ("swarm_tracker_peers", "Agents that report.", statistics.peers),
            ("swarm_tracker_listeners", "Listens held now.", self._service.waiting_count),
            ("swarm_tracker_epoch", "Starts of this store.", tracker.epoch),
            ("swarm_tracker_versions", "Versions registered.", len(tracker.catalog.records())),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        revisions = GaugeMetricFamily(
            "swarm_tracker_channel_revision", "Revision of a channel.", labels=["channel"]
        )
        for target in tracker.channels.targets():
            revisions.add_metric([target.channel], target.revision)
        yield revisions
        yield from _swarm_metrics(list(tracker.swarms))


_GAUGES: tuple[tuple[str, str, Callable[[VersionSwarm], float]], ...] = (
    ("peers", "Agents that take part in a version.", lambda swarm: len(swarm.members)),
    ("peers_complete", "Agents that hold all of it.", complete_count),
    (
        "peers_ready",
        "Agents on which it is visible.",
        lambda swarm: sum(member.is_ready for member in swarm.members.values()),
    ),
    (
        "chunks_without_holder",
        "Chunks that no live agent holds.",
        lambda swarm: swarm.chunk_count - swarm.availability.held.bit_count(),
    ),
    ("leases_live", "Leases held now.", lambda swarm: len(swarm.leases.live)),
    ("zone_leases_live", "Zone leases held now.", lambda swarm: len(swarm.zones.live())),
    (
        "origin_connections",
        "Origin connections of live leases.",
        lambda swarm: swarm.leases.connections,
    ),
    (
        "origin_connections_limit",
        "What the controller allows.",
        lambda swarm: swarm.controller.limit,
    ),
    (
        "origin_bytes_per_second",
        "Origin rate reported by lease holders.",
        lambda swarm: swarm.controller.rate(now=trio.current_time()),
    ),
    (
        "origin_throttled",
        "1 while the origin asks to slow down.",
        lambda swarm: float(swarm.throttle.is_on),
    ),
)


def _swarm_metrics(swarms: list[VersionSwarm]) -> Iterator[Metric]:
    labels = [swarm.version.hex()[:12] for swarm in swarms]
    for name, text, read in _GAUGES:
        gauge = GaugeMetricFamily(f"swarm_tracker_version_{name}", text, labels=["version"])
        for label, swarm in zip(labels, swarms, strict=True):
            gauge.add_metric([label], read(swarm))
        yield gauge
    leases = CounterMetricFamily(
        "swarm_tracker_leases", "Leases by what became of them.", labels=["version", "outcome"]
    )
    received = CounterMetricFamily(
        "swarm_tracker_origin_bytes", "Origin bytes of leases.", labels=["version"]
    )
    for label, swarm in zip(labels, swarms, strict=True):
        received.add_metric([label], swarm.origin_bytes)
        for outcome, count in asdict(swarm.leases.counts).items():
            leases.add_metric([label, outcome], count)
    yield from (leases, received)
