"""What a grid of batch sizes and hit rates is told as: a table for each back-end, the best of it,
what the aggregator's wait does, and what observed rates mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from simulations.cost import money
from simulations.fleet.grid import BackEnd, Cell, Grid, GridCase, batch_s, serving_of
from simulations.fleet.shape import Observed, alternative, prompt_bounds, shape_of
from simulations.report import finite
from simulations.text_table import table_lines
from swarm.units import format_rate, format_size

Json = Mapping[str, object]
MILLION = 1e6
ALTERNATIVE_COUNT = 5


def grid_document(grid: Grid, currency: str) -> Json:
    """Everything that depends on the file and the code alone."""
    case = grid.case
    return {
        "objective": str(case.slo),
        "currency": currency,
        "cells": [_cell_document(cell) for cell in grid.cells],
        "waits": [{"wait_s": wait_s, **_cell_document(cell)} for wait_s, cell in grid.waits],
        "observed": [
            {
                "batch": point.batch,
                "hit_rate": point.hit_rate,
                "requests_per_s": point.per_s,
                "model_requests_per_s": _model_rate(case, point),
            }
            for point in case.observed
        ],
        "shape": _shape_document(case),
    }


def _cell_document(cell: Cell) -> dict[str, object]:
    return {
        "back_end": cell.back_end,
        "batch": cell.batch,
        "hit_rate": cell.hit_rate,
        "batch_s": cell.batch_s,
        "full_requests_per_s": cell.full_per_s,
        "kept_requests_per_s": cell.kept_per_s,
        "latency_s": dict(zip(("p50", "p95", "p99"), cell.latency_s, strict=True)),
        "cache_bytes": cell.cache_bytes,
        "cost_per_request": finite(cell.cost),
        "spot_cost_per_request": finite(cell.spot_cost),
        "cache_cost_per_request": cell.cache_cost,
        "cost_per_million_tokens": finite(cell.per_million_tokens(cell.cost)),
        "spot_cost_per_million_tokens": finite(cell.per_million_tokens(cell.spot_cost)),
    }


def grid_lines(grid: Grid, currency: str) -> list[str]:
    """For people."""
    case = grid.case
    told = [
        f"one replica; {case.prompt_tokens} tokens in, {case.output_tokens} out; {case.slo}",
        "full: batches never short; kept: the highest rate of Poisson arrivals within the",
        f"objective, with the latencies there. Money: {currency} per million requests there.",
    ]
    for back_end in case.back_ends:
        told += ["", *_back_end_lines(grid, back_end)]
    if grid.waits:
        told += ["", *_wait_lines(grid)]
    if case.observed:
        told += ["", *_shape_lines(case)]
    return told


def _back_end_lines(grid: Grid, back_end: BackEnd) -> list[str]:
    case = grid.case
    mine = [cell for cell in grid.cells if cell.back_end == back_end.name]
    heads = (
        "batch", "found", "a batch", "full", "kept", "p50", "p95", "p99", "in cache",
        "GPU", "spot GPU", "cache", "per 1M tokens", "on spot",
    )  # fmt: skip
    rows = [_cell_row(cell) for cell in mine]
    read = f"{format_rate(back_end.link.bytes_per_s)}, {back_end.link.latency_s * 1e3:g} ms"
    told = [f"{back_end.name} ({read})", *table_lines(heads, rows)]
    kept = [cell for cell in mine if cell.kept_per_s]
    if kept:
        best = min(kept, key=lambda cell: cell.cost)
        told.append(
            f"cheapest within the objective: batch {best.batch} at {best.hit_rate:.0%}, "
            f"{money(best.cost * MILLION)} per million requests"
        )
    saved_s = case.prompt_tokens * serving_of(case, back_end, 1).token_s
    read_s = serving_of(case, back_end, 1).fetch_s(case.prompt_tokens) - back_end.link.latency_s
    told.append(
        f"a prompt that is found saves {saved_s * 1e3:.2f} ms of arithmetic and takes "
        f"{read_s * 1e3:.2f} ms to read"
    )
    return told


def _cell_row(cell: Cell) -> tuple[str, ...]:
    latencies = tuple(f"{each * 1e3:.0f} ms" for each in cell.latency_s)
    start = (f"{cell.batch}", f"{cell.hit_rate:.0%}", f"{cell.batch_s * 1e3:.1f} ms")
    if not cell.kept_per_s:
        return (*start, f"{cell.full_per_s:.1f}/s", "breaks it", *latencies, *["-"] * 6)
    return (
        *start,
        f"{cell.full_per_s:.1f}/s",
        f"{cell.kept_per_s:.1f}/s",
        *latencies,
        format_size(cell.cache_bytes),
        money(cell.node_cost * MILLION),
        money(cell.spot_node_cost * MILLION),
        money(cell.cache_cost * MILLION),
        money(cell.per_million_tokens(cell.cost)),
        money(cell.per_million_tokens(cell.spot_cost)),
    )


def _wait_lines(grid: Grid) -> list[str]:
    first = grid.waits[0][1]
    rows = [
        (
            f"{wait_s * 1e3:g} ms",
            f"{cell.kept_per_s:.1f}/s",
            *(f"{each * 1e3:.0f} ms" for each in cell.latency_s),
        )
        for wait_s, cell in grid.waits
    ]
    heads = ("wait", "kept", "p50", "p95", "p99")
    where = f"batch {first.batch} at {first.hit_rate:.0%}, {first.back_end}"
    return [f"the aggregator's wait ({where})", *table_lines(heads, rows)]


def _shape_lines(case: GridCase) -> list[str]:
    observed, back_end = case.observed, case.back_ends[0]
    told = [f"observed rates, and the model's with {back_end.name}"]
    for point in observed:
        rate = _model_rate(case, point)
        told.append(
            f"  batch {point.batch} at {point.hit_rate:.0%}: {point.per_s:g}/s, model "
            f"{rate:.1f}/s ({rate / point.per_s - 1:+.1%})"
        )
    shape = shape_of(observed)
    if shape is None:
        return told
    serving = serving_of(case, back_end, 1)
    low, high = prompt_bounds(shape, serving, observed)
    told += [
        f"they mean {shape.fixed_s * 1e3:.1f} ms a batch, {shape.request_s * 1e3:.2f} ms a request "
        f"and {shape.prompt_s * 1e3:.2f} ms more if none of it is found.",
        f"On this GPU and model prompts of {low:.0f} to {high:.0f} tokens give that, each with one "
        "rate of the cache and one time per request:",
    ]
    rows = []
    for tokens in _lengths(low, high, case.prompt_tokens):
        found = alternative(shape, serving, tokens)
        if found is None:
            continue
        rate = found.cache_bytes_per_s
        rows.append(
            (
                f"{tokens}",
                f"{found.output_tokens:.1f}",
                format_rate(rate) if rate < math.inf else "any",
                f"{found.request_s * 1e3:.2f} ms",
            )
        )
    heads = ("prompt", "output", "cache gives", "a request")
    return told + [f"  {line}" for line in table_lines(heads, rows)]


def _shape_document(case: GridCase) -> Json | None:
    shape = shape_of(case.observed)
    if shape is None:
        return None
    serving = serving_of(case, case.back_ends[0], 1)
    low, high = prompt_bounds(shape, serving, case.observed)
    found = [alternative(shape, serving, n) for n in _lengths(low, high, case.prompt_tokens)]
    return {
        "fixed_s": shape.fixed_s,
        "request_s": shape.request_s,
        "prompt_s": shape.prompt_s,
        "prompt_tokens_min": low,
        "prompt_tokens_max": high,
        "alternatives": [
            {
                "prompt_tokens": each.prompt_tokens,
                "output_tokens": each.output_tokens,
                "cache_bytes_per_s": finite(each.cache_bytes_per_s),
                "request_s": each.request_s,
            }
            for each in found
            if each is not None
        ],
    }


def _lengths(low: float, high: float, chosen: int) -> list[int]:
    """Evenly between the bounds, and the file's own."""
    if not 0 < low < high:
        return []
    first, last = math.ceil(low), math.floor(high)
    step = (last - first) / (ALTERNATIVE_COUNT - 1)
    return sorted({chosen, *(round(first + step * place) for place in range(ALTERNATIVE_COUNT))})


def _model_rate(case: GridCase, point: Observed) -> float:
    """Requests/s with the first back-end."""
    return point.batch / batch_s(case, case.back_ends[0], point.batch, point.hit_rate)
