"""One replica in virtual time: who runs on it, and until when.

Prefill goes first, as in vLLM's original scheduler: when a request has been assigned, the running
step ends, all assigned prompts are computed together (so many tokens at once as the engine allows)
while the others wait, then decoding goes on. Between such changes nothing happens but steps of a
known sum, so time is advanced from change to change: two or three events a request instead of one a
token.

A request's blocks are reserved for its whole length when it is assigned. An engine that grows
sequences block by block packs more of them and now and then has to throw one out and compute it
again; the reservation is the cautious side of that.

With an aggregator (`Engine.aggregate_wait_s`) nobody is assigned to a replica that is not idle.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

from simulations.fleet.prefix_cache import PrefixCache
from simulations.fleet.requests import Request
from simulations.fleet.serving import Serving, attention_pairs
from simulations.timeline import Timeline


@dataclass(slots=True, eq=False)
class Ask:
    """A request on its way, and when what happened to it. Instants in seconds of the run."""

    request: Request
    first_token_at: float = math.inf
    done_at: float = math.inf
    # Tokens of its prompt that were found, when it was computed last.
    found_tokens: int = 0
    # Times that it had to start again, because its replica was taken away.
    restarts: int = 0


class Replica:
    """A replica that serves. The fleet assigns to it and is called back when somebody is done."""

    def __init__(
        self,
        name: int,
        serving: Serving,
        timeline: Timeline,
        cache: PrefixCache | None,
        on_first: Callable[[float], None],
        on_done: Callable[[Replica, list[Ask]], None],
    ) -> None:
        self.name = name
        self.serving = serving
        self.is_closed = False
        self.free_blocks = serving.block_count
        # Requests on it, in whatever state.
        self.count = 0
        self.busy_s = 0.0
        self._timeline = timeline
        self._cache = cache
        self._on_first = on_first
        self._on_done = on_done
        # Assigned and not yet computed; being computed; decoding, by the step they end with.
        self._assigned: list[Ask] = []
        self._computing: list[Ask] = []
        self._running: list[tuple[int, int, Ask]] = []
        self._sequence = 0
        self._steps = 0
        self._held_tokens = 0
        # What is under way: its start, its planned steps (0: a prefill) and its generation.
        self._began_at = 0.0
        self._planned_steps = 0
        self._is_busy = False
        self._generation = 0

    # -- what the fleet asks

    def has_room(self, request: Request) -> bool:
        if self.is_closed:
            return False
        engine = self.serving.engine
        if engine.aggregate_wait_s is not None and self._is_busy:
            return False
        needed = self.serving.blocks(request.prompt_tokens + request.output_tokens)
        return self.count < engine.sequences_max and needed <= self.free_blocks

    def holds(self, prefix: str) -> bool:
        return self._cache is not None and prefix in self._cache

    def busy_until(self, now: float) -> float:
        """Seconds in which anything ran, up to now: what a GPU's utilisation shows."""
        return self.busy_s + (now - self._began_at if self._is_busy else 0.0)

    def assign(self, ask: Ask) -> None:
        """Take a request for which there is room; `go` starts it."""
        request = ask.request
        self.free_blocks -= self.serving.blocks(request.prompt_tokens + request.output_tokens)
        self._assigned.append(ask)
        self.count += 1

    def go(self) -> None:
        """Let the assigned ones begin at the next boundary of a step."""
        if not self._is_busy:
            self._begin()
        elif self._planned_steps:
            self._cut()

    def take_back(self) -> list[Ask]:
        """Everything on it, unfinished, in the order of assignment; the replica stops."""
        running = [ask for _, _, ask in sorted(self._running, key=lambda entry: entry[1])]
        asks = running + self._computing + self._assigned
        self._settle()
        self._assigned, self._computing, self._running = [], [], []
        self._generation += 1
        self.count = 0
        self.is_closed = True
        return asks

    # -- what runs

    def _begin(self) -> None:
        """Start what is next: a prefill, else decoding, else nothing."""
        if self._assigned:
            self._start(self._prefill(), 0)
        elif self._running:
            steps = self._running[0][0] - self._steps
            count = len(self._running)
            self._start(self.serving.steps_s(steps, count, self._held_tokens), steps)

    def _start(self, takes_s: float, steps: int) -> None:
        self._is_busy = True
        self._began_at = self._timeline.now
        self._planned_steps = steps
        self._order(self._timeline.now + takes_s)

    def _order(self, at: float) -> None:
        self._generation += 1
        self._timeline.at(at, self._end, self._generation)

    def _cut(self) -> None:
        """End decoding with the step that is under way."""
        count = len(self._running)
        elapsed_s = self._timeline.now - self._began_at
        steps = self.serving.steps_within(elapsed_s, count, self._held_tokens)
        steps = max(steps, 1)
        if steps < self._planned_steps:
            self._planned_steps = steps
            takes_s = self.serving.steps_s(steps, count, self._held_tokens)
            self._order(self._began_at + takes_s)

    def _end(self, generation: int) -> None:
        if generation != self._generation:
            return
        steps = self._planned_steps
        self._settle()
        done = self._end_steps(steps) if steps else self._end_prefill()
        if done:
            self._on_done(self, done)
        if not self._is_busy:
            self._begin()

    def _settle(self) -> None:
        if self._is_busy:
            self.busy_s += self._timeline.now - self._began_at
            self._is_busy = False

    def _prefill(self) -> float:
        """Take as many assigned prompts as one prefill may hold; seconds that it takes."""
        new_tokens, cached_tokens, pairs, count = 0, 0, 0.0, 0
        limit = self.serving.engine.prefill_tokens_max
        for ask in self._assigned:
            request = ask.request
            # By the whole prompt, since looking it up counts as a use; a longer one goes alone.
            if count and new_tokens + request.prompt_tokens > limit:
                break
            found = ask.found_tokens = self._find(request)
            new = request.prompt_tokens - found
            new_tokens += new
            cached_tokens += found
            pairs += attention_pairs(new, found)
            count += 1
        self._computing, self._assigned = self._assigned[:count], self._assigned[count:]
        return self.serving.prefill_s(count, new_tokens, pairs, cached_tokens)

    def _find(self, request: Request) -> int:
        if self._cache is None or not request.prefix:
            return 0
        now = self._timeline.now
        return self._cache.look_up(
            request.prefix, request.prompt_tokens, request.prefix_tokens, now=now
        )

    def _end_prefill(self) -> list[Ask]:
        now = self._timeline.now
        done: list[Ask] = []
        for ask in self._computing:
            request = ask.request
            if ask.first_token_at > now:
                ask.first_token_at = now
                self._on_first(now - request.arrival_s)
            if self._cache is not None and request.prefix_tokens:
                self._cache.store(request.prefix, request.prefix_tokens, now=now)
            if request.output_tokens == 1:
                done.append(self._finish(ask))
                continue
            self._sequence += 1
            ends_with = self._steps + request.output_tokens - 1
            heapq.heappush(self._running, (ends_with, self._sequence, ask))
            self._held_tokens += request.prompt_tokens + 1
        self._computing = []
        return done

    def _end_steps(self, steps: int) -> list[Ask]:
        self._steps += steps
        self._held_tokens += steps * len(self._running)
        done: list[Ask] = []
        while self._running and self._running[0][0] == self._steps:
            ask = heapq.heappop(self._running)[2]
            self._held_tokens -= ask.request.prompt_tokens + ask.request.output_tokens
            done.append(self._finish(ask))
        return done

    def _finish(self, ask: Ask) -> Ask:
        request = ask.request
        ask.done_at = self._timeline.now
        self.count -= 1
        self.free_blocks += self.serving.blocks(request.prompt_tokens + request.output_tokens)
        if self._cache is not None and request.prefix and not request.prefix_tokens:
            said = request.prompt_tokens + request.output_tokens
            self._cache.store(request.prefix, said, now=ask.done_at)
        return ask
