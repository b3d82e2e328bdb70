"""`python -m benchmarks.race`: the swarm, libtorrent and plain S3 on the same shaped network.

Prints one row per race: the time at which half of the nodes and the last node had the whole
verified file, both as a ratio to the bound of `benchmarks.scenario`; the copies that left the
origin's card; the CPU seconds of all node processes together. With `--json` the rows are one list
on standard output.

`--control-cpu` races the swarm alone, in chunks of 64 KiB and of 256 KiB. The payload is the same,
so the difference in CPU over the difference in chunks is what one chunk costs beside its bytes:
messages, picking, bookkeeping. It prints `control_ms_per_chunk` with the rows.

Needs root. On two cores twelve nodes are the most whose own work does not disturb the network.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import click

from benchmarks.arena import Contestant, RaceError, Result, open_arena, place_for, race
from benchmarks.lab import LabError
from benchmarks.race_libtorrent import Libtorrent
from benchmarks.race_s3 import PlainS3
from benchmarks.race_swarm import Swarm
from benchmarks.scenario import MIB, Scenario
from swarm.errors import UsageError
from swarm.units import parse_size

CONTESTANTS: dict[str, Callable[[], Contestant]] = {
    "swarm": Swarm,
    "libtorrent": Libtorrent,
    "s3": PlainS3,
}
# Everybody from the origin takes N times the file over the origin's card; no system is worse.
LIMIT_FACTOR = 1.5
LIMIT_S_MIN = 60.0
CONTROL_CHUNK_BYTES = (64 * 1024, 256 * 1024)


def run_race(name: str, scenario: Scenario, parent: Path) -> Result:
    everybody_s = scenario.nodes * scenario.file_bytes * 8 / 1e6 / scenario.origin_mbit
    limit_s = max(LIMIT_S_MIN, LIMIT_FACTOR * max(everybody_s, scenario.bound_s))
    with open_arena(scenario, parent) as arena:
        return race(CONTESTANTS[name](), arena, limit_s=limit_s)


def control_ms_per_chunk(small: Result, large: Result, scenario: Scenario) -> float:
    """CPU milliseconds of a node per chunk beside its payload, from the same file in two sizes."""
    chunks = [scenario.file_bytes / chunk_bytes for chunk_bytes in CONTROL_CHUNK_BYTES]
    return 1e3 * (small.cpu_s - large.cpu_s) / scenario.nodes / (chunks[0] - chunks[1])


def work_directory(scenario: Scenario) -> Path:
    """With room for twice of everything."""
    return place_for(2 * (scenario.nodes + 3) * scenario.file_mib * MIB)


def print_row(result: Result) -> None:
    click.echo(
        f"{result.system:<12}{result.nodes:>6}{result.p50_ratio:>10.3f}{result.last_ratio:>10.3f}"
        f"{result.origin_copies:>10.3f}{result.cpu_s:>10.2f}",
        err=True,
    )


def run_races(names: list[str], scenarios: list[Scenario], repeat: int) -> list[Result]:
    """Systems take turns, so that a slow minute of the machine hits all of them."""
    click.echo(f"the bound is {scenarios[0].bound_s:.2f} s", err=True)
    click.echo(
        f"{'system':<12}{'nodes':>6}{'p50/T*':>10}{'last/T*':>10}{'copies':>10}{'cpu s':>10}",
        err=True,
    )
    results = []
    for _ in range(repeat):
        for scenario in scenarios:
            for name in names:
                results.append(run_race(name, scenario, work_directory(scenario)))
                print_row(results[-1])
    return results


@click.command(help=__doc__)
@click.option("--nodes", default=12, show_default=True)
@click.option("--rate-mbit", default=64.0, show_default=True, help="Each node's card.")
@click.option("--origin-mbit", default=64.0, show_default=True, help="The origin's card.")
@click.option("--mib", default=96, show_default=True, help="Size of the file.")
@click.option("--systems", default=",".join(CONTESTANTS), show_default=True)
@click.option("--flow-cap-mbit", type=float, help="Limit of each TCP connection.")
@click.option("--disk-mib-s", type=float, help="Write rate of each node's disk.")
@click.option("--chunk-size", default="256KiB", show_default=True, help="The swarm's chunks.")
@click.option("--repeat", default=1, show_default=True)
@click.option("--control-cpu", is_flag=True, help="Derive the swarm's CPU per chunk.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def main(
    nodes: int,
    rate_mbit: float,
    origin_mbit: float,
    mib: int,
    systems: str,
    flow_cap_mbit: float | None,
    disk_mib_s: float | None,
    chunk_size: str,
    repeat: int,
    control_cpu: bool,
    as_json: bool,
) -> None:
    names = systems.split(",")
    if unknown := sorted(set(names) - set(CONTESTANTS)):
        raise click.BadParameter(f"{unknown}; there are {list(CONTESTANTS)}", param_hint="systems")
    try:
        scenario = Scenario(
            nodes=nodes,
            node_mbit=rate_mbit,
            origin_mbit=origin_mbit,
            file_mib=mib,
            chunk_bytes=parse_size(chunk_size),
            flow_cap_mbit=flow_cap_mbit,
            disk_mib_per_s=disk_mib_s,
        )
    except (UsageError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    # Leaving by SystemExit lets the lab stop what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        report = (
            _control_report(scenario, repeat)
            if control_cpu
            else _rows(run_races(names, [scenario], repeat))
        )
    except (RaceError, LabError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(report))


def _rows(results: list[Result]) -> list[dict[str, str | int | float]]:
    return [asdict(result) for result in results]


def _control_report(
    scenario: Scenario, repeat: int
) -> dict[str, float | list[dict[str, str | int | float]]]:
    scenarios = [replace(scenario, chunk_bytes=size) for size in CONTROL_CHUNK_BYTES]
    results = run_races(["swarm"], scenarios, repeat)
    per_chunk = [
        control_ms_per_chunk(small, large, scenario)
        for small, large in zip(results[::2], results[1::2], strict=True)
    ]
    median = sorted(per_chunk)[len(per_chunk) // 2]
    click.echo(f"control CPU: {median:.3f} ms per chunk and node", err=True)
    return {"control_ms_per_chunk": round(median, 3), "runs": _rows(results)}


if __name__ == "__main__":
    main()
