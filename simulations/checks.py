"""What must hold in every run, whatever goes wrong in it.

* **Nothing unverified is served**: an upload starts only with a chunk that its node holds.
* **The origin is read as granted**: with a tracker that answers, each read of a chunk belongs to a
  live lease of its node, or the node has a right of its own that it states.
* **Bytes are conserved**: no link carries more than its capacity allows; a node has verified no
  more than came in; what nodes sent is what nodes got.
* **The node agrees with itself** (`Node.check_invariants`), every so many events.
* **Everybody finishes** once the faults are over; the cluster says who does not.

Both the first two are checked at each occasion, the rest at the end and on the way. A violation is
a bug of the policy, of its interpreter or of the network model; the run stops.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from swarm.policy.origin import Right
from swarm.protocol.ids import ChunkIndex

if TYPE_CHECKING:
    from simulations.network import Link
    from simulations.node_driver import NodeDriver
    from simulations.world import World

EVENTS_BETWEEN_CHECKS = 997
"""A prime, so that no rhythm of the run hides from it. A planning run looks a thousand times less
often: a look costs as much as hundreds of events."""
SPARSE_FACTOR = 1009
SLACK = 0.005
"""A link may seem to carry so much more than it can: flows of one instant get their rates with the
network's tolerance."""


class CheckFailed(Exception):
    """The run broke a rule that no fault excuses."""


class Checks:
    """Called by drivers; counts what it allows."""

    def __init__(self, *, is_sparse: bool = False) -> None:
        self.is_sparse = is_sparse
        self._interval = EVENTS_BETWEEN_CHECKS * (SPARSE_FACTOR if is_sparse else 1)
        self._until_look = self._interval
        self.leased_read_count = 0
        self.unasked_read_count = 0

    def event(self, driver: NodeDriver) -> None:
        """A node handled something."""
        self._until_look -= 1
        if self._until_look <= 0:
            self._until_look = self._interval
            driver.node.check_invariants()

    def served(self, driver: NodeDriver, chunk: ChunkIndex, now: float) -> None:
        if not driver.held >> chunk & 1:
            raise CheckFailed(f"{driver.name} serves chunk {chunk} unverified at {now:.6f} s")

    def origin_read(self, driver: NodeDriver, chunk: ChunkIndex, now: float) -> None:
        if driver.has_lease(chunk):
            self.leased_read_count += 1
            return
        self.unasked_read_count += 1
        (version,) = driver.node.statistics().versions
        if version.origin_right is Right.NONE:
            raise CheckFailed(
                f"{driver.name} reads chunk {chunk} from the origin at {now:.6f} s without a lease"
            )

    def granted(self, granted_count: int) -> None:
        """All leases that trackers gave out."""
        if self.leased_read_count > granted_count:
            raise CheckFailed(
                f"{self.leased_read_count} leased reads of the origin, but {granted_count} leases"
            )

    def end(self, world: World) -> None:
        """The run is over."""
        now = world.timeline.now
        for link in world.all_links():
            self._carried(link, now)
        self._exchanged(world)
        for driver in world.drivers.values():
            if driver.is_started and not driver.is_dead:
                driver.node.check_invariants()
                self._accounted(driver)

    def _carried(self, link: Link, now: float) -> None:
        passed = link.carried_bytes(now)
        capacity = link.capacity_bytes(now)
        if passed > capacity * (1 + SLACK) + len(link.flows) + 1:
            raise CheckFailed(f"{link.name} carried {passed:.0f} bytes of {capacity:.0f} possible")

    def _exchanged(self, world: World) -> None:
        """Out of all uplinks and the origin into all downlinks."""

        def passed(links: Iterable[Link]) -> float:
            return sum(link.passed_bytes for link in links)

        drivers = list(world.drivers.values())
        sent = passed(driver.up for driver in drivers)
        if world.origin is not None:
            sent += world.origin.link.passed_bytes
        received = passed(driver.down for driver in drivers)
        if abs(sent - received) > 1e-6 * max(sent, 1.0) + len(drivers):
            raise CheckFailed(f"{sent:.0f} bytes were sent and {received:.0f} received")

    def _accounted(self, driver: NodeDriver) -> None:
        """The node's books against what it holds and what came in."""
        (version,) = driver.node.statistics().versions
        if version.held_bytes != driver.held_bytes():
            raise CheckFailed(
                f"{driver.name} says that it holds {version.held_bytes} bytes, and its store has "
                f"{driver.held_bytes()}"
            )
        came = driver.down.passed_bytes
        fetched = version.held_bytes - version.local_bytes
        if fetched > came * (1 + 1e-9) + len(driver.world.lengths):
            raise CheckFailed(f"{driver.name} fetched {fetched} bytes, and {came:.0f} came in")
