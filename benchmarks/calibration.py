"""`python -m benchmarks.calibration`: the lab measured with the tool that measures fleets.

Builds the lab that the simulator is compared in: an origin with SeaweedFS and nodes behind cards of
one rate. `swarm bench fleet --serve` runs on all nodes but the first, which measures with
`swarm bench fleet --peer … --origin …` what the simulator reckons with. One thing is added: what
frames, headers and acknowledgements take of a card, from the token buckets, as a virtual card
counts packets before they are cut into frames.

The profile is printed, or written with `--output`; `simulations/profiles/` keeps dated ones. No
number of it comes from a cold start of a fleet, which is what it is to predict. Needs root.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
import trio

from benchmarks.arena import BUCKET, Arena, RaceError, open_arena, place_for
from benchmarks.lab import LabError
from benchmarks.race_swarm import BIN
from benchmarks.scenario import MIB, Scenario
from swarm.bench.payload import make_payload
from swarm.capacity.profile import Profile, format_profile, parse_profile

PORT = 7001
LIMIT_S = 12  # Of each measurement: a little more than 32 MiB take at 24 Mbit/s.
SERVE_S = 300


def calibrate_lab(scenario: Scenario, parent: Path) -> Profile:
    """Raises RaceError, LabError."""
    with open_arena(scenario, parent) as arena:
        fetcher, *servers = scenario.node_names()
        store = arena.start_object_store()
        size = f"{scenario.file_mib}MiB"
        key = arena.work / "cluster.key"
        arena.run("origin", [str(BIN / "swarm"), "keys", "new", str(key)])
        arena.run("origin", _publish(arena), store.environment())
        for node in servers:
            listen = f"{arena.lab.addresses[node]}:{PORT}"
            argv = [*_bench(arena, node, key, size), "--serve", "--listen", listen]
            arena.start(node, [*argv, "--for", f"{SERVE_S}s"])
        for node in servers:
            arena.wait_until(partial(_is_serving, arena, node), f"{node} serves")
        peers = [word for node in servers for word in ("--peer", _place(arena, node))]
        # Before anything else, whose last packets may still be on their way.
        headers, acknowledgements = _card_shares(arena, fetcher, key, peers)
        output = arena.work / "profile.json"
        argv = _bench(arena, fetcher, key, size) + peers
        argv += ["--origin", f"s3://{BUCKET}/race", "--limit", f"{LIMIT_S}s"]
        argv += ["--output", str(output)]
        _run(arena, fetcher, argv, store.environment())
        profile = parse_profile(output.read_text(), str(output))
    return replace(
        profile,
        command="python -m benchmarks.calibration",
        network=replace(
            profile.network, header_share=headers, acknowledgement_share=acknowledgements
        ),
        notes=(
            f"a lab of {scenario.nodes} nodes with cards of {scenario.node_mbit:g} Mbit/s, "
            f"origin {scenario.origin_mbit:g} Mbit/s",
            "network.header_share, acknowledgement_share: bytes of the token buckets over payload",
        ),
    )


def _card_shares(arena: Arena, node: str, key: Path, peers: list[str]) -> tuple[float, float]:
    """(headers, acknowledgements) over payload, while one node pulls from all others; what came
    twice in the end is payload too."""
    with tempfile.TemporaryDirectory(dir=arena.work) as work:
        payload = trio.run(make_payload, Path(work), arena.scenario.file_bytes)
    argv = [str(BIN / "swarm"), "pull", payload.large.hex(), str(arena.work / "pulled")]
    argv += ["--cluster-key-file", str(key), "--json", *peers]
    before = arena.lab.wire_bytes(node)
    told = json.loads(arena.run(node, argv))
    after = arena.lab.wire_bytes(node)
    got = int(told["bytes"]) + int(told["wasted_bytes"])
    return (after[1] - before[1]) / got - 1, (after[0] - before[0]) / got


def _run(arena: Arena, host: str, argv: list[str], environment: dict[str, str]) -> None:
    """A command that takes as long as the rate of the lab makes it."""
    bytes_per_s = arena.scenario.node_mbit * 1e6 / 8
    timeout_s = 60 + 8 * LIMIT_S + 3 * arena.scenario.file_bytes / bytes_per_s
    process = arena.start(host, argv, environment)
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{argv[1]} takes longer than {timeout_s:.0f} s") from error
    if code:
        raise LabError(f"{' '.join(argv)} ended with {code}\n{arena.log_tail()}")


def _publish(arena: Arena) -> list[str]:
    argv = [str(BIN / "swarm"), "publish", str(arena.source), "--json"]
    return [*argv, "--origin", f"s3://{BUCKET}/race"]


def _bench(arena: Arena, node: str, key: Path, size: str) -> list[str]:
    argv = [str(BIN / "swarm"), "bench", "fleet", "--cluster-key-file", str(key)]
    argv += ["--nic-rate", f"{arena.scenario.node_mbit:g}Mbit/s"]
    return [*argv, "--cache", str(arena.node_directory(node)), "--size", size]


def _place(arena: Arena, node: str) -> str:
    return f"{arena.lab.addresses[node]}:{PORT}"


def _is_serving(arena: Arena, node: str) -> bool:
    """Its line says so; a port that answers may still be loading."""
    return f"at {_place(arena, node)};" in Path(arena.log.name).read_text(errors="replace")


@click.command(help=__doc__)
@click.option("--nodes", default=5, show_default=True, help="One measures, the others serve.")
@click.option("--rate-mbit", default=24.0, show_default=True, help="Each card.")
@click.option("--mib", default=32, show_default=True, help="Bytes of each measurement.")
@click.option("--output", type=click.Path(path_type=Path), help="Write the profile here.")
@click.option("--json", "as_json", is_flag=True, help="Print the profile as one JSON document.")
def main(nodes: int, rate_mbit: float, mib: int, output: Path | None, as_json: bool) -> None:
    scenario = Scenario(nodes=nodes, node_mbit=rate_mbit, origin_mbit=rate_mbit, file_mib=mib)
    try:
        profile = calibrate_lab(scenario, place_for(mib * MIB * 4 * nodes))
    except (LabError, RaceError) as error:
        raise click.ClickException(str(error)) from error
    text = format_profile(profile)
    if output is not None:
        output.write_text(text)
    if as_json or output is None:
        click.echo(json.dumps(json.loads(text)) if as_json else text)


if __name__ == "__main__":
    main()
