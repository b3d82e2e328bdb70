"""Traffic made up from a few figures, where nobody has a trace yet.

Arrivals are a Poisson process whose rate follows the clock: a steady rate, over a day a cosine
between its trough and its peak, and bursts that multiply it for a while. They are drawn by thinning
(Lewis and Shedler 1979): candidates at the highest rate, each kept with the probability that the
rate at its time is of the highest. Lengths are log-normal, which is what published traces of chat
and code look like to the eye (Splitwise, arXiv:2311.18677, figure 3): a median and how far it
spreads. Prefixes are drawn by Zipf's law.

One seed gives one trace, whatever asks for it.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
from dataclasses import dataclass

from simulations.fleet.requests import TOKENS_MAX, Request

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Burst:
    """More of everything for a while."""

    at_s: float
    for_s: float
    # The rate is multiplied by it.
    factor: float


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a prompt or an answer: log-normal, 1 at least."""

    median: int
    # Standard deviation of the logarithm. 0: all equal; 1: one in six is 2.7 times the median.
    spread: float = 0.0

    def draw(self, rng: random.Random) -> int:
        if not self.spread:
            return self.median
        return min(max(round(self.median * math.exp(rng.gauss(0.0, self.spread))), 1), TOKENS_MAX)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What to draw."""

    for_s: float
    # At the peak of the day, outside of bursts.
    requests_per_s: float
    prompt: Lengths
    output: Lengths
    # Rate at the lowest hour over that at the peak; 1: no day.
    trough_share: float = 1.0
    # Time of the peak, from the start.
    peak_at_s: float = DAY_S * 14 / 24
    bursts: tuple[Burst, ...] = ()
    # So many different beginnings of so many tokens; 0: nothing is shared.
    prefixes: int = 0
    prefix_tokens: int = 0

    def rate_at(self, now_s: float) -> float:
        """Requests/s at a time."""
        day = math.cos(2 * math.pi * (now_s - self.peak_at_s) / DAY_S)
        share = self.trough_share + (1 - self.trough_share) * (1 + day) / 2
        for burst in self.bursts:
            if burst.at_s <= now_s < burst.at_s + burst.for_s:
                share *= burst.factor
        return self.requests_per_s * share

    @property
    def highest_rate(self) -> float:
        """No time has more. Bursts may overlap."""
        factor = math.prod(max(burst.factor, 1.0) for burst in self.bursts)
        return self.requests_per_s * factor

    @property
    def expected_count(self) -> float:
        """Requests to be expected, at most: what a reader checks before drawing them."""
        edges = sorted({edge for b in self.bursts for edge in (b.at_s, b.at_s + b.for_s)})
        more = 0.0
        for begins_s, ends_s in itertools.pairwise(edges):
            running = [b for b in self.bursts if b.at_s <= begins_s < b.at_s + b.for_s]
            if running:
                more += (ends_s - begins_s) * math.prod(max(b.factor, 1.0) for b in running)
        return self.requests_per_s * (self.for_s + more)


def draw_requests(traffic: Traffic, seed: int) -> list[Request]:
    """One trace. Each kind of chance has its own stream: a longer answer moves no arrival."""
    arrivals, lengths = random.Random(seed), random.Random(seed + 1)
    shared = random.Random(seed + 2)
    heights = list(itertools.accumulate(1 / rank for rank in range(1, traffic.prefixes + 1)))
    highest = traffic.highest_rate
    requests: list[Request] = []
    now_s = 0.0
    while (now_s := now_s + arrivals.expovariate(highest)) < traffic.for_s:
        if arrivals.random() * highest >= traffic.rate_at(now_s):
            continue
        prompt, output = traffic.prompt.draw(lengths), traffic.output.draw(lengths)
        name = ""
        if heights:
            rank = bisect.bisect_left(heights, shared.random() * heights[-1])
            name = f"prefix-{rank + 1}"
            prompt += traffic.prefix_tokens
        requests.append(Request(now_s, prompt, output, name, traffic.prefix_tokens if name else 0))
    return requests
