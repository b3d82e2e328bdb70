"""Virtual time and shared bandwidth: an event heap, and flows that share ports fairly.

A port is one direction of a NIC, or the origin. A peer flow gets the smaller of its equal shares at
the sender and of what origin flows leave at the receiver; an origin flow gets the smaller of its
share of the origin, its connections' cap and an equal share of the receiver. This is
conservative (what one end cannot use is not given to others), and it has no TCP dynamics.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

Action = Callable[[], None]


class Clock:
    """Runs actions in order of their time; equal times run in order of scheduling."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Action]] = []
        self._sequence = itertools.count()

    def at(self, when: float, action: Action) -> None:
        heapq.heappush(self._heap, (max(when, self.now), next(self._sequence), action))

    def after(self, delay_s: float, action: Action) -> None:
        self.at(self.now + delay_s, action)

    def step(self, until: float) -> bool:
        """Run the next action; False if there is none before `until`."""
        if not self._heap or self._heap[0][0] > until:
            return False
        self.now, _, action = heapq.heappop(self._heap)
        action()
        return True


@dataclass(slots=True, eq=False)
class Port:
    """One direction of a NIC or the origin, and the flows that share it."""

    bytes_per_s: float
    peer_flows: dict[Flow, None] = field(default_factory=dict)
    origin_flows: dict[Flow, None] = field(default_factory=dict)

    @property
    def flow_count(self) -> int:
        return len(self.peer_flows) + len(self.origin_flows)

    def share_of_peer_flow(self) -> float:
        left = self.bytes_per_s - sum(flow.bytes_per_s for flow in self.origin_flows)
        return max(left, 0.0) / max(len(self.peer_flows), 1)


@dataclass(slots=True, eq=False)
class Flow:
    """Bytes on their way between two ports."""

    source: Port
    target: Port
    length: float
    cap_bytes_per_s: float
    is_origin: bool
    done: Action
    # Called once when this many bytes are left; the pre-send point.
    near_end: Action | None
    near_end_bytes: float
    remaining: float = 0.0
    bytes_per_s: float = 0.0
    updated_at: float = 0.0
    # Grows with each change of rate, so that an outdated end is recognised.
    epoch: int = 0
    is_live: bool = True


class Network:
    """All flows; recomputes only those that share a port with a change."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def start(self, flow: Flow) -> Flow:
        flow.remaining = flow.length
        flow.updated_at = self._clock.now
        for port in (flow.source, flow.target):
            (port.origin_flows if flow.is_origin else port.peer_flows)[flow] = None
        self._settle(flow)
        return flow

    def stop(self, flow: Flow) -> None:
        if flow.is_live:
            self._leave(flow)

    def resize(self, port: Port, bytes_per_s: float) -> None:
        """A NIC or the origin gets faster or slower."""
        port.bytes_per_s = bytes_per_s
        for flow in [*port.origin_flows, *port.peer_flows]:
            self._settle(flow)

    def received(self, flow: Flow) -> int:
        """Bytes that have passed so far."""
        elapsed = self._clock.now - flow.updated_at
        return int(flow.length - max(flow.remaining - elapsed * flow.bytes_per_s, 0.0))

    def _leave(self, flow: Flow) -> None:
        flow.is_live = False
        for port in (flow.source, flow.target):
            (port.origin_flows if flow.is_origin else port.peer_flows).pop(flow)
        self._settle(flow)

    def _settle(self, changed: Flow) -> None:
        """Give every flow near a change its new rate: origin flows first, they leave the rest."""
        origin_flows = dict(changed.target.origin_flows)
        if changed.is_origin:
            origin_flows.update(changed.source.origin_flows)
        targets = {changed.target: None}
        for flow in origin_flows:
            targets[flow.target] = None
            self._set_rate(
                flow,
                min(
                    flow.source.bytes_per_s / len(flow.source.origin_flows),
                    flow.target.bytes_per_s / flow.target.flow_count,
                    flow.cap_bytes_per_s,
                ),
            )
        peer_flows = dict(changed.source.peer_flows)
        for port in targets:
            peer_flows.update(port.peer_flows)
        for flow in peer_flows:
            at_source = flow.source.bytes_per_s / len(flow.source.peer_flows)
            self._set_rate(flow, min(at_source, flow.target.share_of_peer_flow()))

    def _set_rate(self, flow: Flow, bytes_per_s: float) -> None:
        if bytes_per_s == flow.bytes_per_s:
            return
        now = self._clock.now
        flow.remaining = max(flow.remaining - (now - flow.updated_at) * flow.bytes_per_s, 0.0)
        flow.updated_at = now
        flow.bytes_per_s = bytes_per_s
        flow.epoch += 1
        if bytes_per_s <= 0:
            return
        epoch = flow.epoch
        if flow.near_end is not None:
            delay_s = max(flow.remaining - flow.near_end_bytes, 0.0) / bytes_per_s
            self._clock.after(delay_s, lambda: self._near_end(flow, epoch))
        self._clock.after(flow.remaining / bytes_per_s, lambda: self._end(flow, epoch))

    def _near_end(self, flow: Flow, epoch: int) -> None:
        if flow.is_live and flow.epoch == epoch and flow.near_end is not None:
            near_end, flow.near_end = flow.near_end, None
            near_end()

    def _end(self, flow: Flow, epoch: int) -> None:
        if flow.is_live and flow.epoch == epoch:
            self._near_end(flow, epoch)
            self._leave(flow)
            flow.done()
