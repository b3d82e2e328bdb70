"""The machines behind the replicas: ordered, loading, warm, starting, serving; and their bill.

A cold node boots, gets the version from the swarm and starts its engine. A warm node has done the
first two. Whoever orders replicas gets warm nodes first; the pool is filled up again behind them,
and all nodes that load at the same time are one swarm, so ordering more at once changes how long
each takes. A node that has loaded goes to a replica that is still owed one, else to the pool, else
away; a replica that is given up returns to the pool if that is short, as it holds the version.

Nodes that were already loading when others joined keep the time they were given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from simulations.timeline import Timeline

LoadTimes = Callable[[int], Sequence[float]]
"""Of so many nodes that load at once: seconds until each has the version, ascending."""


class State(StrEnum):
    """What a node is paid for."""

    LOADING = "loading"
    WARM = "warm"
    STARTING = "starting"
    SERVING = "serving"


@dataclass(slots=True)
class Meter:
    """Nodes in each state, and their seconds."""

    count: dict[State, int] = field(default_factory=lambda: dict.fromkeys(State, 0))
    seconds: dict[State, float] = field(default_factory=lambda: dict.fromkeys(State, 0.0))
    _read_at: float = 0.0

    def read(self, now: float) -> None:
        for state, count in self.count.items():
            self.seconds[state] += count * (now - self._read_at)
        self._read_at = now

    @property
    def total(self) -> int:
        return sum(self.count.values())


@dataclass(frozen=True, slots=True)
class ColdStart:
    """One order of cold nodes: when, how many, how many loaded at once, and the slowest's time."""

    at_s: float
    count: int
    at_once: int
    slowest_s: float


class Nodes:
    """All nodes of a fleet, which orders and gives back; `on_ready` tells of a running engine."""

    def __init__(
        self,
        timeline: Timeline,
        *,
        boot_s: float,
        engine_s: float,
        load_times: LoadTimes,
        warm: int,
        on_ready: Callable[[], None],
    ) -> None:
        self.meter = Meter()
        self.cold_starts: list[ColdStart] = []
        self.peak = 0
        self._timeline = timeline
        self._boot_s = boot_s
        self._engine_s = engine_s
        self._load_times = load_times
        self._warm_wanted = warm
        self._on_ready = on_ready
        # Replicas that were ordered and have no node with the version yet.
        self._owed = 0

    @property
    def starting(self) -> int:
        """Replicas that are on their way."""
        return self._owed + self.meter.count[State.STARTING]

    def open(self, serving: int) -> None:
        """What is there when the trace begins: replicas, and the pool."""
        self._add(State.SERVING, serving)
        self._add(State.WARM, self._warm_wanted)

    def order(self, count: int) -> None:
        """So many more replicas."""
        self._owed += count
        while self._owed and self.meter.count[State.WARM]:
            self._add(State.WARM, -1)
            self._start_engine()
        self._load()

    def cancel(self, count: int) -> int:
        """Owe so many fewer, as far as nothing has started yet; returns how many."""
        cancelled = min(count, self._owed)
        self._owed -= cancelled
        return cancelled

    def give_back(self) -> None:
        """A replica stopped; its node holds the version."""
        self._add(State.SERVING, -1)
        self._keep()

    def lose(self) -> None:
        """A serving node was taken away."""
        self._add(State.SERVING, -1)
        self._load()

    # -- on the way

    def _load(self) -> None:
        """Order cold nodes for what is owed and what the pool lacks."""
        count = self.meter.count
        loading = count[State.LOADING]
        new = self._owed + max(self._warm_wanted - count[State.WARM], 0) - loading
        if new <= 0:
            return
        self._add(State.LOADING, new)
        times = self._load_times(loading + new)
        # The new ones are spread over the whole swarm, neither its first nor its last.
        mine = [times[int((place + 0.5) * len(times) / new)] for place in range(new)]
        for takes_s in mine:
            self._timeline.after(self._boot_s + takes_s, self._loaded)
        slowest_s = self._boot_s + mine[-1] + self._engine_s
        self.cold_starts.append(ColdStart(self._timeline.now, new, loading + new, slowest_s))

    def _loaded(self) -> None:
        self._add(State.LOADING, -1)
        if self._owed:
            self._start_engine()
        else:
            self._keep()

    def _keep(self) -> None:
        if self.meter.count[State.WARM] < self._warm_wanted:
            self._add(State.WARM, 1)

    def _start_engine(self) -> None:
        self._owed -= 1
        self._add(State.STARTING, 1)
        self._timeline.after(self._engine_s, self._started)

    def _started(self) -> None:
        self._add(State.STARTING, -1)
        self._add(State.SERVING, 1)
        self._on_ready()

    def _add(self, state: State, count: int) -> None:
        self.meter.read(self._timeline.now)
        self.meter.count[state] += count
        self.peak = max(self.peak, self.meter.total)
