"""What is promised to users, as they write it: ``ttft p99 < 2 s, misses < 1 %``.

Clauses are joined by commas. ``METRIC pNN < DURATION`` bounds a percentile of all requests of the
trace: `ttft` (arrival to first token), `tpot` (time per output token after the first) or `latency`
(arrival to last token). A request that is beyond the duration of any clause has missed;
``misses < SHARE`` bounds how many may.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from simulations.measure import percentile
from swarm.errors import UsageError
from swarm.units import parse_duration, parse_percent

_CLAUSE = re.compile(r"\s*(\w+)\s*(?:p(\d+(?:\.\d+)?))?\s*<\s*(.+?)\s*")
_HINT = "write 'ttft p99 < 2 s, misses < 1 %' (ttft, tpot or latency; a duration needs a unit)"
CLAUSE_COUNT_MAX = 16
"""A handful of percentiles of three metrics; more is a file that was passed by mistake."""


class Metric(StrEnum):
    """What of a request is timed."""

    TTFT = "ttft"
    TPOT = "tpot"
    LATENCY = "latency"


@dataclass(frozen=True, slots=True)
class Clause:
    """A percentile (0 to 1) of a metric and its bound."""

    metric: Metric
    share: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.metric} p{self.share * 100:g} < {self.seconds:g} s"


@dataclass(frozen=True, slots=True)
class Slo:
    """All that is promised."""

    clauses: tuple[Clause, ...]
    # Share of requests that may miss; None: any.
    misses: float | None = None

    def __str__(self) -> str:
        words = [str(clause) for clause in self.clauses]
        if self.misses is not None:
            words.append(f"misses < {self.misses * 100:g} %")
        return ", ".join(words)

    def limit_s(self, metric: Metric) -> float | None:
        """The strictest duration that a single request is held to."""
        found = [clause.seconds for clause in self.clauses if clause.metric is metric]
        return min(found) if found else None

    def broken(self, ascending: Mapping[Metric, Sequence[float]], miss_share: float) -> list[str]:
        """The clauses that do not hold for a run's requests, each metric's values ascending."""
        told = [
            str(clause)
            for clause in self.clauses
            if (values := ascending[clause.metric])
            and percentile(values, clause.share) >= clause.seconds
        ]
        if self.misses is not None and miss_share >= self.misses:
            told.append(f"misses < {self.misses * 100:g} %")
        return told


def parse_slo(text: str) -> Slo:
    """Raises UsageError."""
    clauses: list[Clause] = []
    misses: float | None = None
    parts = text.split(",")
    if len(parts) > CLAUSE_COUNT_MAX:
        raise UsageError(f"more than {CLAUSE_COUNT_MAX} clauses in an objective", hint=_HINT)
    for part in parts:
        match = _CLAUSE.fullmatch(part)
        if match is None:
            raise UsageError(f"not an objective: {part.strip()[:80]!r}", hint=_HINT)
        name, rank, bound = match.groups()
        if name == "misses" and rank is None:
            if misses is not None:
                raise UsageError(f"misses are bounded twice: {text[:80]!r}", hint=_HINT)
            misses = parse_percent(bound)
            if misses <= 0:
                raise UsageError("misses < 0 % cannot be kept", hint="write misses < 0.1 %")
        elif name in tuple(Metric) and rank is not None:
            clauses.append(Clause(Metric(name), _share(rank), _seconds(bound)))
        else:
            raise UsageError(f"not an objective: {part.strip()[:80]!r}", hint=_HINT)
    if not clauses:
        raise UsageError(f"no request is held to any time by {text[:80]!r}", hint=_HINT)
    return Slo(tuple(clauses), misses)


def _share(rank: str) -> float:
    share = float(Fraction(rank) / 100)
    if not 0 < share < 1:
        raise UsageError(f"p{rank} is no percentile between p0 and p100", hint=_HINT)
    return share


def _seconds(text: str) -> float:
    if not text[-1:].isalpha():
        raise UsageError(f"{text[:80]!r} has no unit", hint=_HINT)
    seconds = parse_duration(text)
    if seconds <= 0:
        raise UsageError(f"nothing takes less than {text[:80]!r}", hint=_HINT)
    return seconds
