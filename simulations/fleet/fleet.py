"""A fleet that serves one trace: requests wait in one queue, replicas take them, a policy scales.

The queue is first come, first served. A request goes to the replica with the fewest on it; if
replicas keep prefix caches of their own, to one that holds its prefix as long as that is not much
fuller than the emptiest. With an aggregator, a batch goes to an idle replica when it is full or its
first request has waited long enough.

Monitoring looks at the fleet once an interval and the policy decides on that alone. Whoever is
given up takes no more requests and ends what it has. A spot node that is taken away stops taking
requests at the notice, and what it has not finished by its end goes back to the head of the queue
and starts again.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from simulations.fleet.nodes import LoadTimes, Nodes, State
from simulations.fleet.prefix_cache import PrefixCache
from simulations.fleet.replica import Ask, Replica
from simulations.fleet.requests import Request
from simulations.fleet.scaling import Observation, Policy, Scaler
from simulations.fleet.serving import Serving
from simulations.measure import percentile
from simulations.timeline import Timeline
from swarm.errors import UsageError

AFTER_LAST_S = 6 * 3600.0
"""So long after the last arrival a queue will not empty any more: what is left has missed."""
AFFINITY_SLACK = 8
"""Requests that a replica may have more than the emptiest and still be preferred for its cache."""
SIGNAL_SHARE = 0.95
"""The percentile of first tokens that monitoring shows."""


@dataclass(frozen=True, slots=True)
class CacheRule:
    """Prefix caches: one that all replicas share, or one in each."""

    is_shared: bool
    tokens_max: float = math.inf
    ttl_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Spot:
    """Nodes that can be taken away."""

    interruptions_per_hour: float
    notice_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What does not change from policy to policy."""

    serving: Serving
    boot_s: float
    engine_s: float
    load_times: LoadTimes
    cache: CacheRule | None = None
    spot: Spot | None = None
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Moment:
    """The fleet at the end of an interval, for plots."""

    at_s: float
    arrivals: int
    waiting: int
    ready: int
    starting: int
    warm: int


class Fleet:
    """One run of one policy over one trace."""

    def __init__(
        self, setup: Setup, requests: Sequence[Request], policy: Policy, *, replicas: int
    ) -> None:
        _check_lengths(setup.serving, requests)
        self.setup = setup
        self.policy = policy
        self.asks = [Ask(request) for request in requests]
        self.moments: list[Moment] = []
        self.interruption_count = 0
        self.timeline = Timeline()
        self.nodes = Nodes(
            self.timeline,
            boot_s=setup.boot_s,
            engine_s=setup.engine_s,
            load_times=setup.load_times,
            warm=policy.warm,
            on_ready=self._add_replica,
        )
        rule = setup.cache
        self.shared_cache = self._new_cache(rule) if rule is not None and rule.is_shared else None
        self.unfinished_count = len(self.asks)
        self._rng = random.Random(setup.seed)
        self._scaler = Scaler(policy)
        self._queue: deque[Ask] = deque()
        self._replicas: list[Replica] = []
        self._name = 0
        self._next = 0
        self._seen_arrivals = 0
        self._busy_s: dict[int, float] = {}
        self._ttft_s: list[float] = []
        self._is_waking = False
        self.nodes.open(replicas)
        for _ in range(replicas):
            self._add_replica()

    def run(self) -> None:
        """Until the last request is done."""
        timeline = self.timeline
        limit_s = self.asks[-1].request.arrival_s + AFTER_LAST_S
        timeline.at(self.asks[0].request.arrival_s, self._arrive)
        timeline.after(self.policy.interval_s, self._look)
        while self.unfinished_count and timeline.step(limit_s):
            pass
        self.nodes.meter.read(timeline.now)

    # -- requests

    def _arrive(self) -> None:
        ask = self.asks[self._next]
        self._next += 1
        if self._next < len(self.asks):
            self.timeline.at(self.asks[self._next].request.arrival_s, self._arrive)
        self._queue.append(ask)
        # Somebody waits already: there is no room.
        if len(self._queue) == 1 or self._is_aggregating:
            self._dispatch()

    @property
    def _is_aggregating(self) -> bool:
        return self.setup.serving.engine.aggregate_wait_s is not None

    def _dispatch(self) -> None:
        if self._is_aggregating:
            self._dispatch_batches()
            return
        started: dict[int, Replica] = {}
        while self._queue:
            replica = self._pick(self._queue[0].request)
            if replica is None:
                break
            replica.assign(self._queue.popleft())
            started[replica.name] = replica
        for replica in started.values():
            replica.go()

    def _pick(self, request: Request) -> Replica | None:
        best, least = None, math.inf
        for replica in self._replicas:
            count = replica.count
            if count < least and replica.has_room(request):
                best, least = replica, count
        if best is None or not request.prefix or self.shared_cache is not None:
            return best
        for replica in self._replicas:
            if (
                replica.count <= least + AFFINITY_SLACK
                and replica.holds(request.prefix)
                and replica.has_room(request)
            ):
                return replica
        return best

    def _dispatch_batches(self) -> None:
        engine = self.setup.serving.engine
        wait_s = engine.aggregate_wait_s or 0.0
        now = self.timeline.now
        for replica in self._replicas:
            if not self._queue:
                return
            due_at = self._queue[0].request.arrival_s + wait_s
            if len(self._queue) < engine.sequences_max and now < due_at:
                if not self._is_waking:
                    self._is_waking = True
                    self.timeline.at(due_at, self._wake)
                return
            batch = 0
            while self._queue and replica.has_room(self._queue[0].request):
                replica.assign(self._queue.popleft())
                batch += 1
            if batch:
                replica.go()

    def _wake(self) -> None:
        self._is_waking = False
        self._dispatch()

    def _done(self, replica: Replica, asks: list[Ask]) -> None:
        self.unfinished_count -= len(asks)
        if replica.is_closed:
            if not replica.count:
                self._replicas.remove(replica)
                self.nodes.give_back()
        elif self._queue:
            self._dispatch()

    def _first_tokens(self, ttft_s: float) -> None:
        self._ttft_s.append(ttft_s)

    # -- replicas

    def _new_cache(self, rule: CacheRule) -> PrefixCache:
        block_tokens = self.setup.serving.engine.block_tokens
        return PrefixCache(tokens_max=rule.tokens_max, ttl_s=rule.ttl_s, block_tokens=block_tokens)

    def _add_replica(self) -> None:
        setup = self.setup
        cache = self.shared_cache
        if setup.cache is not None and cache is None:
            cache = self._new_cache(setup.cache)
        self._name += 1
        replica = Replica(
            self._name, setup.serving, self.timeline, cache, self._first_tokens, self._done
        )
        self._replicas.append(replica)
        if setup.spot is not None and setup.spot.interruptions_per_hour:
            lives_s = self._rng.expovariate(setup.spot.interruptions_per_hour / 3600)
            self.timeline.after(lives_s, self._notice, replica)
        self._dispatch()

    def _close(self, replica: Replica) -> None:
        replica.is_closed = True
        if not replica.count:
            self._replicas.remove(replica)
            self.nodes.give_back()

    def _notice(self, replica: Replica) -> None:
        """The cloud wants its machine back."""
        if replica in self._replicas and self.setup.spot is not None:
            self.interruption_count += 1
            replica.is_closed = True
            self.timeline.after(self.setup.spot.notice_s, self._take, replica)

    def _take(self, replica: Replica) -> None:
        if replica not in self._replicas:
            return
        self._replicas.remove(replica)
        self.nodes.lose()
        for ask in reversed(replica.take_back()):
            ask.restarts += 1
            self._queue.appendleft(ask)
        self._dispatch()

    # -- scaling

    def _look(self) -> None:
        if not self.unfinished_count:
            return
        now = self.timeline.now
        open_ones = [replica for replica in self._replicas if not replica.is_closed]
        seen = self._observe(open_ones, now)
        wanted = self._scaler.wanted(seen, now=now)
        present = seen.ready + seen.starting
        if wanted > present:
            self.nodes.order(wanted - present)
        elif wanted < present:
            self._shrink(open_ones, present - wanted)
        self.timeline.after(self.policy.interval_s, self._look)

    def _observe(self, open_ones: list[Replica], now: float) -> Observation:
        interval_s = self.policy.interval_s
        busy_s = {replica.name: replica.busy_until(now) for replica in open_ones}
        worked_s = sum(busy - self._busy_s.get(name, 0.0) for name, busy in busy_s.items())
        self._busy_s = busy_s
        running = sum(replica.count for replica in open_ones)
        ttft_s = percentile(sorted(self._ttft_s), SIGNAL_SHARE) if self._ttft_s else 0.0
        self._ttft_s = []
        oldest_s = now - self._queue[0].request.arrival_s if self._queue else 0.0
        counts = self.nodes.meter.count
        self.moments.append(
            Moment(
                now, self._next - self._seen_arrivals, len(self._queue), len(open_ones),
                self.nodes.starting, counts[State.WARM],
            )
        )  # fmt: skip
        self._seen_arrivals = self._next
        return Observation(
            ready=len(open_ones),
            starting=self.nodes.starting,
            utilisation=worked_s / (interval_s * len(open_ones)) if open_ones else 0.0,
            waiting=len(self._queue),
            running=running,
            ttft_s=ttft_s,
            oldest_wait_s=oldest_s,
        )

    def _shrink(self, open_ones: list[Replica], count: int) -> None:
        """First what has not begun to start, then the emptiest; one replica always stays."""
        count -= self.nodes.cancel(count)
        emptiest = sorted(open_ones, key=lambda replica: (replica.count, -replica.name))
        for replica in emptiest[: min(count, len(open_ones) - 1)]:
            self._close(replica)


def _check_lengths(serving: Serving, requests: Sequence[Request]) -> None:
    longest = max(requests, key=lambda request: request.prompt_tokens + request.output_tokens)
    tokens = longest.prompt_tokens + longest.output_tokens
    if serving.blocks(tokens) > serving.block_count:
        held = serving.block_count * serving.engine.block_tokens
        raise UsageError(
            f"a request of {tokens} tokens (arrival {longest.arrival_s:g} s) never fits: a replica "
            f"has KV blocks for {held}",
            hint="more GPUs for a replica, a smaller model, or a trace without it",
        )
