"""A fleet in virtual time, put together and run.

Everything of a run hangs on its scenario and its seed. The cluster starts nodes, takes them away,
parts and joins them, and runs the timeline until every living node is complete. Who is told what,
and when, is the drivers' affair.
"""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from simulations.checks import CheckFailed, Checks
from simulations.faults import order_faults
from simulations.measure import Outcome, measure
from simulations.network import TOLERANCE, Link, Network
from simulations.node_driver import LEAVE_POLL_S, NodeDriver
from simulations.origin import Origin
from simulations.scenario import NodeGroup, Scenario
from simulations.timeline import Timeline
from simulations.tracker_driver import TrackerDriver
from simulations.world import VERSION, World
from swarm.policy.events import PeerLost
from swarm.policy.settings import NodeSettings
from swarm.protocol.ids import Address, NodeId
from swarm.protocol.messages import PeerInfo
from swarm.protocol.tracker_api import Mode

STORY_COUNT = 64
"""Steps that a node keeps for a bug report. A planning run keeps one: what a story holds on to is
memory that could be used again, which costs 7 % of the time."""
ACTIONS_OF_AN_INSTANT_MAX = 1_000_000
"""Four thousand nodes that boot together make a tenth of it; more is somebody who orders himself
again and again for a time that has passed."""
LEAVE_GRACE_S = 20.0
"""As long as the agent gives its uploads after SIGTERM."""


class Cluster:
    """One run."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int = 1,
        *,
        tolerance: float = TOLERANCE,
        checks: Checks | None = None,
    ) -> None:
        self.scenario = scenario
        self.seed = seed
        self._rng = random.Random(seed)
        timeline = Timeline()
        self.world = World(
            scenario,
            scenario.version.lengths,
            timeline,
            Network(timeline, tolerance),
            self._new_origin(scenario),
            random.Random(seed + 3),
            checks or Checks(),
        )
        self.tracker: TrackerDriver | None = None
        if scenario.tracker is not None:
            self.tracker = TrackerDriver(
                timeline, VERSION, self.world.lengths, scenario.tracker, seed + 1
            )
            if scenario.mode:
                self.tracker.set_mode(Mode(scenario.mode))
        self._rack_count = 0
        for group in scenario.groups:
            self._add_group(group)
        order_faults(self, scenario.faults, random.Random(seed + 4))

    # -- putting together

    def _new_origin(self, scenario: Scenario) -> Origin | None:
        if scenario.origin is None:
            return None
        payload_bytes_per_s = scenario.links.payload(scenario.origin.bytes_per_s)
        return Origin(scenario.origin, payload_bytes_per_s, random.Random(self.seed + 2))

    def _add_group(self, group: NodeGroup) -> None:
        for index in range(group.count):
            zone = group.zones[index % len(group.zones)]
            rack = self._rack_of(group, index) if group.rack_nodes else ""
            delay_s = group.starts_at_s
            if group.starts_within_s:
                delay_s += self._rng.uniform(0, group.starts_within_s)
            self.boot(group, zone=zone, rack=rack, delay_s=delay_s)

    def _rack_of(self, group: NodeGroup, index: int) -> str:
        """Racks lie within a zone and are filled one after the other."""
        place = index // len(group.zones) // group.rack_nodes
        return f"{group.name}-{group.zones[index % len(group.zones)]}-{place + 1}"

    def boot(
        self,
        group: NodeGroup,
        *,
        zone: str = "",
        rack: str = "",
        delay_s: float = 0.0,
        held: int | None = None,
    ) -> NodeDriver:
        """Add a node; it starts after `delay_s` with the chunks `held`, or what its group holds."""
        world = self.world
        index = len(world.drivers)
        node_id = NodeId(self._rng.randbytes(16))
        host = f"10.{index // 62500}.{index // 250 % 250}.{index % 250 + 1}"
        info = PeerInfo(node_id, 1, Address(host, 7000), zone, rack)
        if held is None:
            held = (1 << round(group.held_share * len(world.lengths))) - 1
        seed = self._rng.random()
        settings = self._settings(group, zone, rack)
        driver = NodeDriver(world, group, info, settings, seed, held)
        world.drivers[node_id] = driver
        world.tally.unfinished_count += 1
        world.tally.coming_count += 1
        links = self.scenario.links
        self._add_uplinks(zone, links.zone_bytes_per_s)
        self._add_uplinks(rack, links.rack_bytes_per_s)
        world.timeline.after(delay_s, self._start, driver)
        return driver

    def _settings(self, group: NodeGroup, zone: str, rack: str) -> NodeSettings:
        told = group.told_nic_bytes_per_s
        flow_cap = group.flow_cap_bytes_per_s
        return replace(
            group.settings,
            zone=zone,
            rack=rack,
            nic_bytes_per_s=min(group.up_bytes_per_s, group.down_bytes_per_s)
            if told is None
            else told,
            flow_cap_bytes_per_s=flow_cap if flow_cap < math.inf else 0.0,
            has_origin=self.scenario.origin is not None,
            has_tracker=self.scenario.tracker is not None,
            story_count=1 if self.world.checks.is_sparse else STORY_COUNT,
        )

    def _add_uplinks(self, place: str, bytes_per_s: float) -> None:
        if place and bytes_per_s < math.inf and (place, True) not in self.world.uplinks:
            rate = self.scenario.links.payload(bytes_per_s)
            self.world.uplinks[place, True] = Link(f"uplink of {place}", rate)
            self.world.uplinks[place, False] = Link(f"downlink of {place}", rate)

    def _start(self, driver: NodeDriver) -> None:
        world, group = self.world, driver.group
        world.tally.coming_count -= 1
        if driver.is_dead:
            return
        driver.start(self._peer_list(), self.tracker)
        if group.burst_s < math.inf:
            world.timeline.after(group.burst_s, self._fall, driver)

    def _peer_list(self) -> tuple[PeerInfo, ...]:
        """What a node is told at its start: without a tracker all the others."""
        if self.tracker is not None:
            return ()
        return tuple(driver.info for driver in self.world.drivers.values())

    def _fall(self, driver: NodeDriver) -> None:
        """The NIC's burst credit is used up."""
        rate = self.scenario.links.payload(driver.group.burst_over_bytes_per_s)
        for link in (driver.up, driver.down):
            self.world.network.resize(link, rate)

    # -- what goes wrong

    def kill(self, driver: NodeDriver, notice_s: float = 0.0, *, is_replaced: bool = False) -> None:
        """The machine is gone; those linked to it find out after `notice_s`."""
        world = self.world
        if driver.done_at == math.inf:
            world.tally.unfinished_count -= 1
        driver.is_dead = True
        driver.noticed_at = world.timeline.now + notice_s
        driver.transfers.stop()
        if notice_s:
            world.timeline.after(notice_s, self._notice, driver)
        else:
            self._notice(driver)
        if is_replaced:
            newcomer = self.boot(driver.group, zone=driver.zone, rack=driver.info.rack, held=0)
            newcomer.is_newcomer = True

    def _notice(self, driver: NodeDriver) -> None:
        for other in self.world.drivers.values():
            if other.is_started and not other.is_dead:
                self._break(other, driver)

    def _break(self, here: NodeDriver, there: NodeDriver) -> None:
        """`here` finds its connections to `there` broken."""
        here.transfers.lose_source(there)
        here.transfers.lose_reader(there.id)
        here.lose_link(there.id)

    def leave(self, driver: NodeDriver) -> None:
        """SIGTERM."""
        if driver.is_started:
            driver.leave()
            until = self.world.timeline.now + LEAVE_GRACE_S
            self.world.timeline.after(LEAVE_POLL_S, self._leave_when_idle, driver, until)

    def _leave_when_idle(self, driver: NodeDriver, until: float) -> None:
        timeline = self.world.timeline
        if driver.is_dead:
            return
        if not driver.is_idle and timeline.now < until:
            timeline.after(LEAVE_POLL_S, self._leave_when_idle, driver, until)
            return
        if self.tracker is not None:
            self.tracker.bye(driver.id)
        for peer in list(driver.links):
            other = self.world.drivers[peer]
            other.links.pop(driver.id, None)
            driver.send(other, PeerLost(driver.id, is_clean=True))
        driver.links.clear()
        self.kill(driver)

    def slow(self, driver: NodeDriver, factor: float, *, is_disk: bool) -> None:
        links = [driver.disk_read, driver.disk_write] if is_disk else [driver.up, driver.down]
        for link in links:
            if link is not None:
                self.world.network.resize(link, link.bytes_per_s * factor)

    def slow_origin(self, total_factor: float, connection_factor: float) -> None:
        if self.world.origin is not None:
            self.world.origin.slow(self.world.network, total_factor, connection_factor)

    def lose_tracker(self, for_s: float) -> None:
        if self.tracker is not None:
            self.tracker.lose(for_s)

    def part(self, island: list[NodeDriver], notice_s: float) -> None:
        """No byte passes between the island and the rest; both find out after a while."""
        world = self.world
        now = world.timeline.now
        for driver in island:
            driver.island = 1
            driver.noticed_at = now + notice_s
        for driver in world.drivers.values():
            for other in world.drivers.values() if driver.island else ():
                if not other.island:
                    driver.transfers.freeze(other)
                    other.transfers.freeze(driver)
        world.timeline.after(notice_s, self._notice_parting, island)

    def _notice_parting(self, island: list[NodeDriver]) -> None:
        for here in [driver for driver in island if driver.island and not driver.is_dead]:
            for there in [d for d in self.world.drivers.values() if not d.island and not d.is_dead]:
                self._break(here, there)
                self._break(there, here)

    def join_again(self, island: list[NodeDriver]) -> None:
        for driver in island:
            driver.island = 0

    # -- running

    def run(self, until_s: float | None = None) -> Outcome:
        """Until every living node is complete and the faults are over, or `until_s`."""
        limit_s = self.scenario.limit_s if until_s is None else until_s
        timeline, tally = self.world.timeline, self.world.tally
        faults_end_s = max((fault.ends_at_s for fault in self.scenario.faults), default=0.0)
        timeline.at(min(faults_end_s, limit_s), lambda: None)
        look_at, looked_at = ACTIONS_OF_AN_INSTANT_MAX, -1.0
        with _without_collector():
            while tally.unfinished_count or tally.coming_count or timeline.now < faults_end_s:
                if not timeline.step(limit_s):
                    break
                if timeline.action_count >= look_at:
                    look_at += ACTIONS_OF_AN_INSTANT_MAX
                    if timeline.now == looked_at:
                        raise CheckFailed(f"time stands still at {looked_at:.6f} s")
                    looked_at = timeline.now
        self.world.checks.end(self.world)
        if self.tracker is not None:
            self.world.checks.granted(self.tracker.granted_count)
        return measure(self)

    def require_finished(self) -> None:
        """Raise if a living node is not complete."""
        late = [d for d in self.world.drivers.values() if d.done_at == math.inf and not d.is_dead]
        if late:
            count = len(self.world.lengths)
            words = ", ".join(f"{d.name}: {d.held.bit_count()} of {count}" for d in late[:5])
            raise CheckFailed(
                f"{len(late)} nodes are not complete at {self.world.timeline.now:.3f} s: {words}"
            )


@contextmanager
def _without_collector() -> Iterator[None]:
    """Nothing of a run is garbage before its end, and looking for some costs a tenth of it."""
    was_enabled = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
