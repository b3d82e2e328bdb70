"""The one task that lets the node decide: drain the queue, decide, act, sleep until there is more.

Events are queued by whoever sees them and handled at our own pace, so a burst of a thousand haves
is one wake-up and one decision. No other task calls `Node.handle`: the policy needs no locks, and
its story replays.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import trio

from swarm.policy.commands import Command
from swarm.policy.events import Event, TimerFired
from swarm.policy.node import Node

Watch = Callable[[tuple[Event, ...], list[Command], float], None]
"""Sees each turn: what happened, what was ordered, and when."""

QUEUE_LENGTH_MAX = 200_000
"""More waiting events than any burst can make (48 neighbours × 4,000 frames in a socket buffer)
mean that the decider is dead, and dying is better than growing."""


class Decider:
    """Owns the event queue and is the only caller of the node."""

    def __init__(
        self,
        node: Node,
        listen: Callable[[], None],
        observe: Callable[[Event], None],
        execute: Callable[[Command], None],
    ) -> None:
        """`listen` emits what waits to be read from neighbours: a turn that is due anyway takes it
        along."""
        self.node = node
        # Looks on and changes nothing; for traces.
        self.watch: Watch | None = None
        self._listen = listen
        self._observe = observe
        self._execute = execute
        self._queue: deque[Event] = deque()
        self._wake = trio.Event()

    def emit(self, event: Event) -> None:
        """Queue a fact. Cheap, never blocks; call it from the trio thread."""
        assert len(self._queue) < QUEUE_LENGTH_MAX, "the decider does not drain its queue"
        self._queue.append(event)
        self._wake.set()

    async def run(self) -> None:
        while True:
            deadline = self.node.next_deadline()
            with trio.move_on_at(math.inf if deadline is None else deadline):
                await self._wake.wait()
            self._wake = trio.Event()
            self._listen()
            now = trio.current_time()
            while self._queue:
                events = tuple(self._queue)
                self._queue.clear()
                self._handle(events, now)
            deadline = self.node.next_deadline()
            if deadline is not None and deadline <= now:
                self._handle((TimerFired(),), now)

    def _handle(self, events: tuple[Event, ...], now: float) -> None:
        """The shell notes the facts first: what it shows is never behind what the node decided
        on."""
        for event in events:
            self._observe(event)
        commands = self.node.handle(*events, now=now)
        if self.watch is not None:
            self.watch(events, commands, now)
        for command in commands:
            self._execute(command)
