"""``swarm-sim replay``: a fleet's cold start once more, simulated, beside what happened."""

from __future__ import annotations

import json
from pathlib import Path

import click

from simulations.agreement import Agreement, NodeAgreement, Part, compare
from simulations.cluster import Cluster
from simulations.commands.options import json_option
from simulations.profile_file import read_profiles, read_traces
from simulations.rebuild import Rebuilt, rebuild
from simulations.recording import Recording
from simulations.report import finite
from simulations.trial import simulate
from swarm.capacity.cold_start import Trace
from swarm.units import parse_rate


@click.command()
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path),
                metavar="TRACE…")  # fmt: skip
@click.option(
    "--profile", type=click.Path(path_type=Path), metavar="FILE",
    help="What was measured there, by `swarm bench fleet`.",
)  # fmt: skip
@click.option("--origin-rate", metavar="RATE", help="What the origin's link can do, headers "
              "included; without it, what the traces show.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True)
@json_option
def replay(
    traces: tuple[Path, ...],
    profile: Path | None,
    origin_rate: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Rebuild the scenario from the TRACEs of a fleet's agents (`swarm agent --trace FILE`),
    simulate it, and print what was predicted and what was, node by node.
    """
    actual = read_traces(traces)
    measured = read_profiles([profile]) if profile is not None else None
    rebuilt = rebuild(actual, measured, parse_rate(origin_rate) if origin_rate else None)
    predicted = predict(rebuilt, len(actual), seed)
    agreement = compare(predicted, actual)
    if as_json:
        click.echo(json.dumps(_document(agreement, rebuilt), allow_nan=False))
        return
    for line in _lines(agreement):
        click.echo(line)
    for note in rebuilt.notes:
        click.echo(f"note: {note}", err=True)


def predict(rebuilt: Rebuilt, count: int, seed: int) -> list[Trace]:
    """The traces of the first `count` nodes of a scenario."""
    recordings: list[Recording] = []

    def record(cluster: Cluster) -> None:
        recordings.append(Recording(cluster))

    simulate(rebuilt.scenario, seed, f"the same traces with --seed={seed}", watch=record)
    return recordings[0].traces()[:count]


def _lines(agreement: Agreement) -> list[str]:
    head = f"{'node':<14}{'start s':>9}{'predicted s':>13}{'actual s':>10}{'off':>9}"
    lines = [f"{head}{'origin, predicted':>19}{'actual':>8}"]
    lines += map(_node_line, agreement.nodes)
    lines += ["", f"{'fleet':<24}{'predicted':>15}{'actual':>15}{'off':>9}"]
    lines += map(_part_line, (*agreement.totals, *agreement.parts))
    if agreement.parts:
        worst = agreement.worst
        lines += ["", f"furthest off: {worst.name} ({_percent(worst.deviation)})"]
    return lines


def _node_line(node: NodeAgreement) -> str:
    return (
        f"{node.node[:12]:<14}{node.started_s:>9.2f}{_seconds(node.predicted_s):>13}"
        f"{_seconds(node.actual_s):>10}{_percent(node.deviation):>9}"
        f"{node.predicted_origin_share:>19.1%}{node.actual_origin_share:>8.1%}"
    )


def _part_line(part: Part) -> str:
    digits = 1 if part.unit in ("ms", "%") else 3
    told, real = (f"{value:.{digits}f} {part.unit}" for value in (part.predicted, part.actual))
    return f"{part.name:<24}{told:>15}{real:>15}{_percent(part.deviation):>9}"


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"


def _document(agreement: Agreement, rebuilt: Rebuilt) -> dict[str, object]:
    return {
        "nodes": [
            {
                "node": node.node,
                "started_s": node.started_s,
                "predicted_s": node.predicted_s,
                "actual_s": node.actual_s,
                "deviation": node.deviation,
                "predicted_origin_share": node.predicted_origin_share,
                "actual_origin_share": node.actual_origin_share,
            }
            for node in agreement.nodes
        ],
        "totals": [_part(part) for part in agreement.totals],
        "parts": [_part(part) for part in agreement.parts],
        "furthest_off": agreement.worst.name if agreement.parts else None,
        "notes": list(rebuilt.notes),
    }


def _part(part: Part) -> dict[str, object]:
    return {
        "name": part.name,
        "unit": part.unit,
        "predicted": finite(part.predicted),
        "actual": finite(part.actual),
        "deviation": part.deviation,
    }
