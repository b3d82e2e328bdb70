"""From rates that somebody measured to what they mean, and back.

A batch of b requests at hit rate h takes, as long as arithmetic is what limits the prefill,

    T(b, h) = fixed + b · (request + (1 − h) · prompt),      requests/s = b / T(b, h)

`fixed` is what a batch takes however many are in it: the steps of decoding, each of which reads the
weights, and the engine's work a step. `request` is what each costs even if all of its prompt is
found: handling it, and reading its KV from the cache. `prompt` is what is saved when all of a
prompt is found instead of none of it: its arithmetic less the reading. Three rates at two batch
sizes and two hit rates give the three times, exactly; whether they can be true is a question to the
hardware.

`alternatives` turns them into parameters. Three times cannot tell four things (prompt length,
answer length, rate of the cache, time per request), so one is free: for each prompt length there is
one cache rate and one time per request. Lengths for which one of them were negative are impossible,
which bounds the prompt from both sides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simulations.fleet.serving import Serving


@dataclass(frozen=True, slots=True)
class Observed:
    """A rate that somebody saw."""

    batch: int
    hit_rate: float
    per_s: float

    @property
    def batch_s(self) -> float:
        return self.batch / self.per_s


@dataclass(frozen=True, slots=True)
class Shape:
    """The three times of the module's docstring, in seconds."""

    fixed_s: float
    request_s: float
    prompt_s: float

    def batch_s(self, batch: int, hit_rate: float) -> float:
        return self.fixed_s + batch * (self.request_s + (1 - hit_rate) * self.prompt_s)


@dataclass(frozen=True, slots=True)
class Alternative:
    """One set of parameters that gives a shape on a given GPU and model."""

    prompt_tokens: int
    # Of the prefix cache; infinite: nothing is read.
    cache_bytes_per_s: float
    # Of the engine, for each request.
    request_s: float
    # Steps of decoding, if each takes what the weights and the engine's step take.
    output_tokens: float


def shape_of(points: Sequence[Observed]) -> Shape | None:
    """From three rates; None if they do not tell the three times apart."""
    rows = [(1.0, float(p.batch), p.batch * (1 - p.hit_rate), p.batch_s) for p in points]
    solution = _solve(rows)
    return None if solution is None else Shape(*solution)


def _solve(rows: list[tuple[float, float, float, float]]) -> tuple[float, float, float] | None:
    """Cramer's rule for three equations."""
    if len(rows) != 3:
        return None
    columns = list(zip(*rows, strict=True))
    right = columns[3]

    def determinant(a: Sequence[float], b: Sequence[float], c: Sequence[float]) -> float:
        return (
            a[0] * (b[1] * c[2] - b[2] * c[1])
            - a[1] * (b[0] * c[2] - b[2] * c[0])
            + a[2] * (b[0] * c[1] - b[1] * c[0])
        )

    one, two, three = columns[:3]
    whole = determinant(one, two, three)
    if abs(whole) < 1e-9:
        return None
    return (
        determinant(right, two, three) / whole,
        determinant(one, right, three) / whole,
        determinant(one, two, right) / whole,
    )


def prompt_bounds(
    shape: Shape, serving: Serving, points: Sequence[Observed]
) -> tuple[float, float]:
    """The shortest prompt and the longest that give the shape.

    With shorter ones there is nothing left to read from a cache, or the smallest batch takes no
    longer than reading the weights and the formula does not hold; with longer ones no time is left
    for handling a request.
    """
    fewest = min(point.batch * (1 - point.hit_rate) for point in points)
    low = max(shape.prompt_s, serving.weights_s / fewest) / serving.token_s
    return low, (shape.prompt_s + shape.request_s) / serving.token_s


def alternative(shape: Shape, serving: Serving, prompt_tokens: int) -> Alternative | None:
    """The parameters that give the shape with such prompts; None if none do."""
    read_s = prompt_tokens * serving.token_s - shape.prompt_s
    request_s = shape.request_s - read_s
    if read_s < 0 or request_s < 0:
        return None
    read_bytes = prompt_tokens * serving.model.kv_bytes_per_token
    step_s = serving.weights_s + serving.engine.step_s
    # The prefill is the first step: its weights are read under the arithmetic.
    fixed_s = shape.fixed_s - serving.link.latency_s - serving.engine.step_s
    return Alternative(
        prompt_tokens,
        read_bytes / read_s if read_s else math.inf,
        request_s,
        1 + fixed_s / step_s,
    )
