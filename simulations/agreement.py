"""Prediction against truth: two traces of each node, and what makes the difference.

A chunk's way has three parts: waiting from the request to the first byte, the payload, and what
comes after the last byte. Where a prediction is off, one of them is, or the chunks came from
elsewhere; `parts` puts numbers to it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simulations.measure import percentile
from swarm.capacity.cold_start import VERIFIED, Attempt, Trace


@dataclass(frozen=True, slots=True)
class NodeAgreement:
    """One node. Times are seconds from its start; None: it did not become ready."""

    node: str
    started_s: float
    predicted_s: float | None
    actual_s: float | None
    # Part of its verified bytes that came from the origin.
    predicted_origin_share: float
    actual_origin_share: float

    @property
    def deviation(self) -> float | None:
        """(predicted − actual) / actual."""
        return _deviation(self.predicted_s, self.actual_s)


@dataclass(frozen=True, slots=True)
class Part:
    """One figure of the fleet, predicted and actual, in `unit`."""

    name: str
    unit: str
    predicted: float
    actual: float
    # What the difference is measured by, to tell which of several parts matters.
    whole: float

    @property
    def deviation(self) -> float | None:
        return _deviation(self.predicted, self.actual)

    @property
    def effect(self) -> float:
        """The difference as a part of the whole."""
        return abs(self.predicted - self.actual) / self.whole if self.whole else 0.0


@dataclass(frozen=True, slots=True)
class Agreement:
    """A fleet."""

    nodes: tuple[NodeAgreement, ...]
    # p50 and last of the times, and the origin's bytes, wasted ones not counted.
    totals: tuple[Part, ...]
    # What they consist of.
    parts: tuple[Part, ...]

    def part(self, name: str) -> Part:
        return next(part for part in (*self.totals, *self.parts) if part.name == name)

    @property
    def worst(self) -> Part:
        """The part whose error matters most."""
        return max(self.parts, key=lambda part: part.effect)


def compare(predicted: Sequence[Trace], actual: Sequence[Trace]) -> Agreement:
    """Pairs by position: the predicted trace of each actual one."""
    assert len(predicted) == len(actual), "one prediction a trace"
    first_at = min(trace.start.started_at for trace in actual)
    nodes = [
        NodeAgreement(
            real.start.node,
            real.start.started_at - first_at,
            _ready_s(told),
            _ready_s(real),
            _origin_share(told),
            _origin_share(real),
        )
        for told, real in zip(predicted, actual, strict=True)
    ]
    return Agreement(
        tuple(nodes),
        tuple(_totals(predicted, actual)),
        tuple(_parts(_verified(predicted), _verified(actual))),
    )


def _totals(predicted: Sequence[Trace], actual: Sequence[Trace]) -> Iterable[Part]:
    told, real = _times(predicted), _times(actual)
    for name, share in (("p50", 0.5), ("last", 1.0)):
        took_s = percentile(real, share)
        yield Part(name, "s", percentile(told, share), took_s, took_s)
    total = max(actual[0].start.total_bytes, 1)
    copies = (_origin_bytes(predicted) / total, _origin_bytes(actual) / total)
    yield Part("origin copies", "copies", *copies, copies[1])


def _parts(predicted: Sequence[Attempt], actual: Sequence[Attempt]) -> Iterable[Part]:
    for name, is_origin in (("peers", False), ("origin", True)):
        told = [attempt for attempt in predicted if attempt.is_origin is is_origin]
        real = [attempt for attempt in actual if attempt.is_origin is is_origin]
        if told and real:
            shares = (100 * _share(told, predicted), 100 * _share(real, actual))
            yield Part(f"share of {name}", "%", *shares, 100.0)
            whole = (_wait_ms(real) + _payload_ms(real) + _after_ms(real)) / _share(real, actual)
            for part, take in (("wait for", _wait_ms), ("payload of", _payload_ms)):
                yield Part(f"{part} {name}", "ms", take(told), take(real), whole)
    if predicted and actual:
        whole = _wait_ms(actual) + _payload_ms(actual) + _after_ms(actual)
        yield Part("after the last byte", "ms", _after_ms(predicted), _after_ms(actual), whole)


def _share(some: Sequence[Attempt], everything: Sequence[Attempt]) -> float:
    return sum(a.bytes for a in some) / max(sum(a.bytes for a in everything), 1)


def _wait_ms(attempts: Sequence[Attempt]) -> float:
    return _mean_ms(a.begun_s - a.asked_s for a in attempts if a.begun_s is not None)


def _payload_ms(attempts: Sequence[Attempt]) -> float:
    return _mean_ms(
        a.received_s - a.begun_s
        for a in attempts
        if a.begun_s is not None and a.received_s is not None
    )


def _after_ms(attempts: Sequence[Attempt]) -> float:
    return _mean_ms(a.done_s - a.received_s for a in attempts if a.received_s is not None)


def _mean_ms(seconds: Iterable[float]) -> float:
    given = list(seconds)
    return 1e3 * statistics.fmean(given) if given else 0.0


def _times(traces: Sequence[Trace]) -> list[float]:
    """Ascending; a node that was whole from the start takes none, one that never was, for ever."""
    took = [_ready_s(trace) for trace in traces if trace.start.held_count < trace.start.chunk_count]
    return sorted(math.inf if seconds is None else seconds for seconds in took)


def _ready_s(trace: Trace) -> float | None:
    return trace.end.ready_s if trace.end is not None else None


def _verified(traces: Sequence[Trace]) -> list[Attempt]:
    return [a for trace in traces for a in trace.attempts if a.outcome == VERIFIED]


def _origin_bytes(traces: Sequence[Trace]) -> int:
    return sum(attempt.bytes for attempt in _verified(traces) if attempt.is_origin)


def _origin_share(trace: Trace) -> float:
    verified = _verified([trace])
    return _share([attempt for attempt in verified if attempt.is_origin], verified)


def _deviation(predicted: float | None, actual: float | None) -> float | None:
    if predicted is None or actual is None or not actual:
        return None
    return predicted / actual - 1
