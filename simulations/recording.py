"""Traces of simulated nodes: the same record that an agent writes with ``--trace``."""

from __future__ import annotations

from simulations.cluster import Cluster
from simulations.node_driver import NodeDriver
from swarm.capacity.cold_start import ColdStartRecorder, Trace, TraceSettings, parse_trace
from swarm.policy.commands import Command
from swarm.policy.events import Event


class Recording:
    """Watches every node that is in the cluster when this is made; look after the run."""

    def __init__(self, cluster: Cluster) -> None:
        self._recorders: dict[str, ColdStartRecorder] = {}
        for driver in cluster.world.drivers.values():
            recorder = ColdStartRecorder(driver.id.hex(), _settings_of(driver))
            self._recorders[recorder.node] = recorder
            driver.transfers.recorder = recorder
            driver.watch = self._turn
        self._cluster = cluster

    def lines(self) -> dict[str, list[str]]:
        """What each node that began would have written, by node id, in the scenario's order."""
        found = {}
        for driver in self._cluster.world.drivers.values():
            recorder = self._recorders.get(driver.id.hex())
            if recorder is not None and driver.is_started:
                recorder.close()
                found[recorder.node] = list(recorder.lines)
        return found

    def traces(self) -> list[Trace]:
        """The same, read."""
        return [parse_trace(iter(lines), node) for node, lines in self.lines().items()]

    def _turn(self, driver: NodeDriver, facts: tuple[Event, ...], commands: list[Command]) -> None:
        now = driver.world.timeline.now
        self._recorders[driver.id.hex()].watch(facts, commands, now, now)


def _settings_of(driver: NodeDriver) -> TraceSettings:
    told = driver.settings
    return TraceSettings(
        zone=told.zone,
        rack=told.rack,
        nic_bytes_per_s=told.nic_bytes_per_s or None,
        flow_cap_bytes_per_s=told.flow_cap_bytes_per_s or None,
        uplink_bytes_per_s=told.uplink_bytes_per_s or None,
        has_tracker=told.has_tracker,
        has_origin=told.has_origin,
    )
