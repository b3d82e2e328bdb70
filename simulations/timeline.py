"""Virtual time: an event heap that never looks at a clock.

Actions run in the order of their time, and those of one instant in the order in which they were
ordered, so a run depends on its seed alone. `at_end_of_instant` delays work until everything else
of this instant has run: a flow that ends and its successor that begins at the same moment change no
rate, so rates are worked out once, afterwards.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TypeVarTuple, cast

Arguments = TypeVarTuple("Arguments")
_Action = Callable[[*tuple[object, ...]], None]


class Timeline:
    """The heap and the time of its last action, in seconds since the start of the run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.action_count = 0
        self._heap: list[tuple[float, int, _Action, tuple[object, ...]]] = []
        self._sequence = 0
        self._late: list[Callable[[], None]] = []

    def at(self, when: float, action: Callable[[*Arguments], None], *arguments: *Arguments) -> None:
        """Call `action` at `when`, or now if that has passed."""
        self._sequence = sequence = self._sequence + 1
        entry = (max(when, self.now), sequence, cast("_Action", action), arguments)
        heapq.heappush(self._heap, entry)

    def after(
        self, delay_s: float, action: Callable[[*Arguments], None], *arguments: *Arguments
    ) -> None:
        self._sequence = sequence = self._sequence + 1
        entry = (self.now + delay_s, sequence, cast("_Action", action), arguments)
        heapq.heappush(self._heap, entry)

    def at_end_of_instant(self, action: Callable[[], None]) -> None:
        """Call `action` when nothing else is left to do at this time."""
        self._late.append(action)

    def step(self, until: float) -> bool:
        """Run the next action; False if there is none up to `until`."""
        heap = self._heap
        if self._late and (not heap or heap[0][0] > self.now):
            late, self._late = self._late, []
            for action in late:
                action()
            return True
        if not heap or heap[0][0] > until:
            return False
        self.now, _, run, arguments = heapq.heappop(heap)
        self.action_count += 1
        run(*arguments)
        return True
