"""Bytes under way: flows over links, sharing each of them fairly.

A link is one direction of a NIC, the uplink of a rack or zone, a disk, or the origin. A flow
crosses several and gets its max-min fair rate: no flow could have more without taking from one that
has no more than it. A flow of several TCP connections counts as so many flows (`weight`), and `cap`
is what its connections may carry at most. There are no TCP dynamics: a rate is right at once.

**Method.** Each link offers a level, the rate per connection that fills it when every flow takes
the smaller of the level and what its other links offer. A flow gets the smallest level on its way.
Where all levels agree with each other the rates are max-min fair (Charny, Clark and Jain 1995). A
change makes its own links compute their level again, and the far links of those flows that are
affected: a level that is no limit to a flow, before or after, changes nothing there. So only the
touched part of the network is worked on. In a swarm everything touches everything in the end, with
ever smaller effects, so a change of a level below `tolerance` is not passed on; it adds up until it
is. The error against exact sharing is measured in `tests/simulations/test_sharing.py`.

The rates of one instant are worked out once, after everything else that happens in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from simulations.timeline import Timeline

TOLERANCE = 0.01
"""See the module's docstring; a hundredth of a rate is below what TCP keeps to."""
STEPS_PER_CHANGE_MAX = 64
"""Levels computed for one change at most: a slow convergence costs accuracy and not time."""
DONE_BYTES = 0.5
"""Less than this is rounding."""


@dataclass(slots=True, eq=False)
class Link:
    """A capacity that flows share, in bytes/s."""

    name: str
    bytes_per_s: float
    # Rate per connection that it offers; infinite while it limits nobody.
    level: float = math.inf
    # The level that others last took notice of.
    told_level: float = math.inf
    flows: dict[Flow, None] = field(default_factory=dict)
    # What passed in flows that are over, and what could have passed up to `sized_at`.
    passed_bytes: float = 0.0
    offered_bytes: float = 0.0
    sized_at: float = 0.0

    def fair_level(self) -> float:
        """Water-filling: flows that ask for less get it, the others share what is left."""
        demands = []
        weight = 0.0
        lowest = math.inf
        for flow in self.flows:
            demand = flow.cap_per_connection
            for link in flow.links:
                if link is not self and link.level < demand:
                    demand = link.level
            demands.append((demand, flow.weight))
            weight += flow.weight
            if demand < lowest:
                lowest = demand
        if not demands:
            return math.inf
        left = self.bytes_per_s
        if lowest * weight >= left:
            return left / weight
        demands.sort()
        for demand, share in demands:
            if demand * weight >= left:
                return left / weight
            left -= demand * share
            weight -= share
        return math.inf

    def carried_bytes(self, now: float) -> float:
        """What has passed since the start, flows under way included."""
        return self.passed_bytes + sum(flow.received(now) for flow in self.flows)

    def capacity_bytes(self, now: float) -> float:
        """What could have passed since the start."""
        return self.offered_bytes + (now - self.sized_at) * self.bytes_per_s


@dataclass(slots=True, eq=False)
class Flow:
    """Bytes on their way over some links. Owned by the network from `start` on."""

    links: tuple[Link, ...]
    length: float
    done: Callable[[], None]
    # Connections, and bytes/s that each may carry.
    weight: float = 1.0
    cap_per_connection: float = math.inf
    # Called once when so many bytes are left: the pre-send point.
    near_end: Callable[[], None] | None = None
    near_end_bytes: float = 0.0
    remaining: float = 0.0
    bytes_per_s: float = 0.0
    updated_at: float = 0.0
    # Time of its next entry on the timeline, which may come too early and never too late.
    due_at: float = math.inf
    is_live: bool = False

    def received(self, now: float) -> int:
        """Bytes that have passed so far."""
        moved = (now - self.updated_at) * self.bytes_per_s if self.is_live else 0.0
        return int(self.length - max(self.remaining - moved, 0.0))


class Network:
    """All flows."""

    def __init__(self, timeline: Timeline, tolerance: float = TOLERANCE) -> None:
        self._timeline = timeline
        self._tolerance = tolerance
        self._dirty: dict[Link, None] = {}
        # Levels computed and changes settled, to see what sharing costs.
        self.step_count = 0
        self.settle_count = 0

    def start(self, flow: Flow) -> None:
        now = self._timeline.now
        assert flow.links, "a flow needs a link to limit it"
        flow.remaining = flow.length
        flow.updated_at = now
        flow.is_live = True
        for link in flow.links:
            link.flows[flow] = None
            self._mark(link)

    def stop(self, flow: Flow) -> None:
        """Take a flow out, done or not; what has passed stays counted."""
        if flow.is_live:
            self._advance(flow)
            self._leave(flow)

    def recap(self, flow: Flow, cap_per_connection: float) -> None:
        """A flow may carry more or less from now on."""
        flow.cap_per_connection = cap_per_connection
        for link in flow.links:
            self._mark(link)

    def resize(self, link: Link, bytes_per_s: float) -> None:
        """A link gets faster or slower."""
        now = self._timeline.now
        link.offered_bytes = link.capacity_bytes(now)
        link.sized_at = now
        link.bytes_per_s = bytes_per_s
        self._mark(link)

    def _mark(self, link: Link) -> None:
        if not self._dirty:
            self._timeline.at_end_of_instant(self._settle)
        self._dirty[link] = None

    def _leave(self, flow: Flow) -> None:
        flow.is_live = False
        passed = flow.length - flow.remaining
        for link in flow.links:
            del link.flows[flow]
            link.passed_bytes += passed
            self._mark(link)

    def _settle(self) -> None:
        """Bring the levels to agree around the links that changed, then give the flows there their
        rates."""
        self.settle_count += 1
        queue, self._dirty = self._dirty, {}
        changed = dict(queue)
        steps_left = STEPS_PER_CHANGE_MAX * len(queue)
        while queue and steps_left:
            steps_left -= 1
            self.step_count += 1
            link = next(iter(queue))
            del queue[link]
            level = link.fair_level()
            if level != link.level:
                link.level = level
                changed[link] = None
                if self._is_news(link.told_level, level):
                    self._pass_on(link, queue)
        for link in changed:
            for flow in link.flows:
                self._set_rate(flow)

    def _is_news(self, told: float, level: float) -> bool:
        if told == math.inf or level == math.inf:
            return told != level
        return abs(level - told) > self._tolerance * told

    def _pass_on(self, link: Link, queue: dict[Link, None]) -> None:
        """Let those far links compute again to which the change of this level matters."""
        before, after = link.told_level, link.level
        link.told_level = after
        for flow in link.flows:
            rest = flow.cap_per_connection
            if before >= rest and after >= rest:
                continue
            for far in flow.links:
                if far is not link and (before < far.level or after < far.level):
                    queue[far] = None

    def _set_rate(self, flow: Flow) -> None:
        level = flow.cap_per_connection
        for link in flow.links:
            if link.level < level:
                level = link.level
        bytes_per_s = level * flow.weight
        if bytes_per_s == flow.bytes_per_s:
            return
        if bytes_per_s == math.inf:
            bytes_per_s = min(link.bytes_per_s for link in flow.links)
        self._advance(flow)
        flow.bytes_per_s = bytes_per_s
        self._schedule(flow)

    def _advance(self, flow: Flow) -> None:
        now = self._timeline.now
        moved = (now - flow.updated_at) * flow.bytes_per_s
        flow.remaining = max(flow.remaining - moved, 0.0)
        flow.updated_at = now

    def _schedule(self, flow: Flow) -> None:
        """Note when it is to be looked at: at its pre-send point, then at its end. An entry that is
        there already and comes earlier will do."""
        if flow.bytes_per_s <= 0:
            return
        ahead = flow.remaining
        if flow.near_end is not None:
            ahead = max(ahead - flow.near_end_bytes, 0.0)
        due_at = flow.updated_at + ahead / flow.bytes_per_s
        if due_at < flow.due_at:
            flow.due_at = due_at
            self._timeline.at(due_at, self._look, flow, due_at)

    def _look(self, flow: Flow, due_at: float) -> None:
        if not flow.is_live or flow.due_at != due_at:
            return
        flow.due_at = math.inf
        self._advance(flow)
        if flow.near_end is not None and flow.remaining <= flow.near_end_bytes + DONE_BYTES:
            near_end, flow.near_end = flow.near_end, None
            near_end()
        if not flow.is_live:
            return
        if flow.remaining <= DONE_BYTES:
            flow.remaining = 0.0
            self._leave(flow)
            flow.done()
        else:
            self._schedule(flow)
