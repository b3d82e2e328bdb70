"""The part of ``swarm-sim plan`` that is about a serving fleet: files with a ``[fleet]`` table."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from simulations.fleet.cold_starts import ColdStarts, load_times_without_swarm
from simulations.fleet.fleet import Setup
from simulations.fleet.fleet_file import FleetFile, read_fleet
from simulations.fleet.grid import GridCase, run_grid
from simulations.fleet.grid_report import grid_document, grid_lines
from simulations.fleet.outcome import FleetPrices
from simulations.fleet.planning import Case, make_plan
from simulations.fleet.report import plan_document, plan_lines
from simulations.fleet.requests import Request, read_trace
from simulations.fleet.scaling import Forecast, forecast_of
from simulations.fleet.serving import Serving
from simulations.fleet.slo import Slo, parse_slo
from simulations.fleet.traffic import Traffic, draw_requests
from simulations.report import Json
from simulations.toml_table import Document
from simulations.trial import commit_of_code
from swarm.errors import UsageError

PROGRESS_S = 5.0
"""Between two lines of progress."""
MADE_UP_SLOT_S, TRACE_SLOT_S = 900.0, 3600.0
"""Of a forecast: quarters of an hour where the curve is known; hours of a trace, as whoever has
seen such a day knows its hours and not its minutes."""


def plan_fleet(
    document: Document,
    *,
    settings: Sequence[str],
    seed: int | None,
    objective: str | None,
    trace: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Print the plan; `settings` are those of the document. Raises UsageError."""
    begun = time.monotonic()
    read = read_fleet(document)
    chosen = read.swarm.seed if seed is None else seed
    slo = parse_slo(objective) if objective is not None else read.slo
    if slo is None:
        hint = "--slo 'ttft p99 < 2 s, misses < 1 %', or slo in [fleet]"
        raise UsageError(f"{document.name}: there is no objective to plan for", hint=hint)
    scenario = read.swarm.scenario
    chunk_key = "chunks" if document.table().table("version").has("chunks") else "chunk_size"
    cold = ColdStarts(scenario, chosen, file=document.name, settings=settings, chunk_key=chunk_key)
    if read.grid is not None and trace is None:
        if plot is not None:
            raise UsageError("--plot draws a fleet over a trace, and this file asks for a grid")
        found, lines = _grid(read, slo, chosen, cold)
    else:
        found, lines = _plan(document, read, slo, chosen, cold, trace, plot)
    if as_json:
        told = {"scenario": Path(document.name).stem, "seed": chosen, **found}
        told |= {"commit": commit_of_code(), "wall_s": round(time.monotonic() - begun, 2)}
        click.echo(json.dumps(told, allow_nan=False))
        return
    for line in lines:
        click.echo(line)
    click.echo(f"planned in {time.monotonic() - begun:.1f} s", err=True)


def _plan(
    document: Document,
    read: FleetFile,
    slo: Slo,
    seed: int,
    cold: ColdStarts,
    trace: Path | None,
    plot: Path | None,
) -> tuple[Json, list[str]]:
    """For programs and for people."""
    if trace is not None:
        requests = read_trace(trace)
        forecast = forecast_of([request.arrival_s for request in requests], TRACE_SLOT_S)
    elif read.traffic is not None:
        requests = draw_requests(read.traffic, seed)
        forecast = _forecast(read.traffic)
    else:
        hint = "--trace FILE, or a [fleet.traffic] table"
        raise UsageError(f"{document.name}: there is no traffic to plan for", hint=hint)
    if not requests:
        raise UsageError(f"{document.where('fleet.traffic')}: not one request came of it")
    case = _case(read, slo, seed, cold, requests, forecast)
    plan = make_plan(case, load_times_without_swarm(read.swarm.scenario), _Progress())
    if plot is not None:
        from simulations.fleet.plot_fleet import plot_fleet

        plot_fleet(plot, Path(document.name).stem, plan)
    arguments = (plan, read.prices.currency, cold.simulated)
    return plan_document(*arguments), plan_lines(*arguments)


def _case(
    read: FleetFile,
    slo: Slo,
    seed: int,
    cold: ColdStarts,
    requests: Sequence[Request],
    forecast: Forecast,
) -> Case:
    serving = Serving(read.hardware, read.model, read.engine, read.link)
    spot = read.spot if read.is_spot else None
    setup = Setup(
        serving, read.boot_s, read.engine_start_s, cold.load_times, read.cache, spot, seed
    )
    keys = read.scaling
    return Case(
        setup, requests, slo, FleetPrices(read.per_node_s, read.per_warm_node_s, read.cache_price),
        forecast, keys.signals, keys.shares, keys.floor, keys.warm_max, keys.replicas_max,
        keys.step, keys.interval_s, keys.calm_s,
    )  # fmt: skip


def _forecast(traffic: Traffic) -> Forecast:
    """The day as it was meant, without its bursts: nobody puts those into a schedule."""
    calm = replace(traffic, bursts=())
    slots = range(max(int(-(-traffic.for_s // MADE_UP_SLOT_S)), 1))
    middle = MADE_UP_SLOT_S / 2
    return Forecast(
        MADE_UP_SLOT_S, tuple(calm.rate_at(slot * MADE_UP_SLOT_S + middle) for slot in slots)
    )


class _Progress:
    """A line now and then on stderr."""

    def __init__(self) -> None:
        self._told_at = time.monotonic()

    def __call__(self, what: str) -> None:
        if time.monotonic() - self._told_at >= PROGRESS_S:
            self._told_at = time.monotonic()
            click.echo(what, err=True)


def _grid(read: FleetFile, slo: Slo, seed: int, cold: ColdStarts) -> tuple[Json, list[str]]:
    """For programs and for people."""
    keys = read.grid
    assert keys is not None
    cold_s = read.boot_s + cold.load_times(1)[-1] + read.engine_start_s
    engine = read.engine
    if engine.aggregate_wait_s is None:
        raise UsageError("a grid is of batches that an aggregator makes", hint="fleet.engine.wait")
    case = GridCase(
        read.hardware, read.model, engine, read.back_ends, keys.batches, keys.hit_rates,
        keys.waits_s, keys.observed, keys.prompt_tokens, keys.output_tokens, keys.reuse_s, slo,
        read.per_node_s, read.per_spot_node_s, read.spot.interruptions_per_hour, cold_s, seed,
    )  # fmt: skip
    grid = run_grid(case, _Progress())
    currency = read.prices.currency
    return grid_document(grid, currency), grid_lines(grid, currency)
