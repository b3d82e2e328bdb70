"""A fleet of real agents beside the same fleet simulated: what both tests of agreement share."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from simulations.agreement import Agreement, compare
from simulations.commands.replay import predict
from simulations.rebuild import Rebuilt
from simulations.scenario import Scenario
from swarm.capacity.cold_start import Trace, parse_trace

SEEDS = (1, 2, 3, 4, 5)
"""Chance decides a few per cent; the middle of five is the prediction."""
TRACE_TIMEOUT_S = 10.0
POLL_S = 0.05


def read_finished_traces(paths: Iterable[Path]) -> list[Trace]:
    """Traces whose last line stands; an agent writes it within a second of the end."""
    traces = []
    give_up_at = time.monotonic() + TRACE_TIMEOUT_S
    for path in paths:
        while True:
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            if lines and lines[-1].endswith("}") and '"kind":"end"' in lines[-1]:
                break
            assert time.monotonic() < give_up_at, f"{path} has no end: {lines[-1:]}"
            time.sleep(POLL_S)
        traces.append(parse_trace(iter(lines), str(path)))
    return traces


def denied_s(process_ids: Iterable[int]) -> float:
    """Seconds so far that the main threads of these processes waited for a processor, the mean of
    them."""
    waits = []
    for process_id in process_ids:
        fields = Path(f"/proc/{process_id}/schedstat").read_text().split()
        waits.append(int(fields[1]) / 1e9)
    return sum(waits) / len(waits)


def simulate_beside(scenario: Scenario, actual: list[Trace]) -> Agreement:
    """The middle prediction by the last node's time, beside what happened."""
    rebuilt = Rebuilt(scenario, (), ())
    found = [compare(predict(rebuilt, len(actual), seed), actual) for seed in SEEDS]
    return sorted(found, key=lambda agreement: agreement.part("last").predicted)[len(SEEDS) // 2]


def told(agreement: Agreement, starved_s: float) -> str:
    """For the log of a run, agreed or not."""
    lines = [
        f"  {part.name:<22}{part.predicted:>10.3f}{part.actual:>10.3f} {part.unit:<7}"
        f"{'' if part.deviation is None else format(part.deviation, '+.1%'):>8}"
        for part in (*agreement.totals, *agreement.parts)
    ]
    head = f"  {'':<22}{'simulated':>10}{'real':>10}"
    return "\n".join(["", head, *lines, f"  waited for a processor: {starved_s:.2f} s an agent"])
