"""How long nodes that start together wait for their version: asked of the swarm's simulator.

`ColdStarts.load_times(n)` is the scenario run with `n` nodes in its first group, all else as the
file says, the very policies of production deciding. Sizes 1, 2, 4, 8, … are simulated, once each;
between two of them times are interpolated over log2(n), node by node in the order of finishing,
because time over the bound grows with the number of doublings.

**Scaled down.** The bytes are those of the file, the chunks are made larger so that there are at
most `CHUNKS_MAX`. The time over the bound is a number of chunk times (the pipeline's filling) that
grows with the doublings, so larger chunks overstate it, for more nodes by more: with 200 chunks
for 2,000 a node alone takes as long, 4 at once take 4 % longer, 16 take 6 % and 64 take 11 %
(docs/MEASUREMENTS.md), which leaves a plan on the safe side.
`tests/simulations/fleet/test_cold_starts.py` bounds both errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from simulations.fleet.nodes import LoadTimes
from simulations.report import direct_s
from simulations.scenario import Scenario, VersionShape
from simulations.trial import repeat_command, simulate

CHUNKS_MAX = 200
"""See the module's docstring: 64 nodes take five seconds to run, and half a minute with 2,000."""
NODES_MAX = 4096
"""The largest swarm that is simulated for a fleet; more nodes at once are given its times."""


class ColdStarts:
    """Times for any number of nodes, simulated when first asked for."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        *,
        file: str = "FILE",
        settings: Sequence[str] = (),
        chunk_key: str = "chunks",
        chunks_max: int = CHUNKS_MAX,
    ) -> None:
        """What repeats a run that fails: the file with its settings, and the key that it gives
        chunks by, as they are made larger."""
        shape = scenario.version
        chunk_bytes = max(shape.chunk_bytes, math.ceil(shape.total_bytes / chunks_max))
        self._scenario = replace(scenario, version=VersionShape(shape.total_bytes, chunk_bytes))
        self._seed = seed
        self._file = file
        self._settings = tuple(settings)
        if chunk_bytes > shape.chunk_bytes:
            larger = f"{chunk_bytes}B" if chunk_key == "chunk_size" else f"{chunks_max}"
            self._settings += (f"version.{chunk_key}={larger}",)
        self._simulated: dict[int, tuple[float, ...]] = {}
        self._asked: dict[int, tuple[float, ...]] = {}

    def load_times(self, count: int) -> Sequence[float]:
        """Seconds from a node's start to its last chunk, of `count` nodes at once, ascending."""
        if count not in self._asked:
            self._asked[count] = self._interpolate(min(count, NODES_MAX))
        return self._asked[count]

    @property
    def simulated(self) -> dict[int, tuple[float, ...]]:
        """By number of nodes; for a report."""
        return dict(sorted(self._simulated.items()))

    def _interpolate(self, count: int) -> tuple[float, ...]:
        below = 1 << (count.bit_length() - 1)
        low = self.simulate(below)
        if below == count:
            return low
        high = self.simulate(below * 2)
        part = math.log2(count / below)
        places = [(place + 0.5) / count for place in range(count)]
        return tuple(
            (1 - part) * low[int(share * len(low))] + part * high[int(share * len(high))]
            for share in places
        )

    def simulate(self, count: int) -> tuple[float, ...]:
        """One run of exactly so many nodes; raises FailedRun."""
        if count not in self._simulated:
            scenario = with_first_group(self._scenario, count)
            settings = (*self._settings, f"nodes.0.count={count}")
            command = repeat_command("run", self._file, self._seed, settings)
            outcome = simulate(scenario, self._seed, command)
            name = scenario.groups[0].name
            mine = next(group for group in outcome.groups if group.name == name)
            self._simulated[count] = tuple(ratio * mine.bound_s for ratio in mine.ratios)
        return self._simulated[count]


def load_times_without_swarm(scenario: Scenario) -> LoadTimes | None:
    """If every node read its copy from the origin itself; None without one."""
    if scenario.origin is None:
        return None

    def load_times(count: int) -> Sequence[float]:
        seconds = direct_s(with_first_group(scenario, count))
        assert seconds is not None
        return [seconds] * count

    return load_times


def with_first_group(scenario: Scenario, count: int) -> Scenario:
    """So many nodes in the first group, the others as they are."""
    first, *others = scenario.groups
    return replace(scenario, groups=(replace(first, count=count), *others))
