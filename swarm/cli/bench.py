"""``swarm bench fleet``: measure on real machines what `swarm-sim` reckons with."""

from __future__ import annotations

import json
import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from swarm.agent.settings import AgentSettings
from swarm.capacity.profile import format_profile, measurements
from swarm.cli.interrupts import Interrupts
from swarm.cli.logs import start_logging
from swarm.cli.options import common, parse_listen_address, parsed, setting, together
from swarm.cli.output import note, print_json, warn
from swarm.config import read_key
from swarm.errors import PermissionDeniedError, UsageError
from swarm.protocol.ids import Address, parse_address
from swarm.protocol.keys import KeyKind
from swarm.units import format_size, parse_duration, parse_rate, parse_size

if TYPE_CHECKING:
    from swarm.agent.agent import Agent
    from swarm.bench.payload import Payload

SIZE_MIN, SIZE_MAX = 16 << 20, 4 << 30
"""Fewer bytes than four large chunks measure nothing; more only take longer."""


@click.group(no_args_is_help=False)
def bench() -> None:
    """Measure machines, networks and object stores, for `swarm-sim`."""


@bench.command()
@click.option("--serve", is_flag=True, help="Be the machine that is fetched from.")
@together(
    setting(
        "peer",
        "A machine that runs this with --serve; repeat for several.",
        parse=parse_address,
        metavar="HOST:PORT",
    ),
    setting(
        "listen",
        "Where --serve listens.",
        parse=parse_listen_address,
        metavar="HOST:PORT",
        default="0.0.0.0:7001",
    ),
    setting(
        "nic-rate",
        "What the card gives, where agents are told so; they pace themselves by it.",
        parse=parse_rate,
        metavar="RATE",
    ),
    setting("origin", "Measure this object store too.", metavar="URL"),
    setting("cluster-key-file", "The key of the cluster.", parse=Path, metavar="FILE"),
    setting(
        "cache",
        "A directory on the disk to measure [default: the current one].",
        parse=Path,
        metavar="DIR",
    ),
)
@click.option("--object", "object_key", default="", metavar="KEY",
              help="Read this object [default: the largest that is listed].")  # fmt: skip
@click.option("--size", type=parsed(parse_size), default="256MiB", metavar="SIZE",
              show_default=True,
              help="Bytes of each measurement; the same on all machines.")  # fmt: skip
@click.option("--limit", type=parsed(parse_duration), default="20s", show_default=True,
              metavar="SECONDS", help="Time of each measurement at most.")  # fmt: skip
@click.option("--for", "for_s", type=parsed(parse_duration), default="1h", show_default=True,
              metavar="SECONDS", help="How long --serve serves.")  # fmt: skip
@click.option("--output", type=Path, default=Path("profile.json"), show_default=True,
              metavar="FILE", help="Where the profile goes.")  # fmt: skip
@common
@click.pass_context
def fleet(
    context: click.Context,
    /,
    serve: bool,
    peer: tuple[Address, ...],
    listen: Address,
    nic_rate: int | None,
    origin: str | None,
    cluster_key_file: Path | None,
    cache: Path | None,
    object_key: str,
    size: int,
    limit: float,
    for_s: float,
    output: Path,
    as_json: bool,
) -> None:
    """Measure what a fleet of such machines gets, and write a profile for `swarm-sim`.

    \b
    On one machine (or several):   swarm bench fleet --serve
    On another:                    swarm bench fleet --peer HOST:7001 [--origin s3://…]

    Without --peer only this machine and the origin are measured.
    """
    if serve and peer:
        raise UsageError("--serve and --peer are for two machines", hint="run one on each")
    if not SIZE_MIN <= size <= SIZE_MAX:
        raise UsageError(
            f"--size {size} is not between {format_size(SIZE_MIN)} and {format_size(SIZE_MAX)}"
        )
    if limit <= 0 or for_s <= 0:
        raise UsageError("--limit and --for are above zero")
    if cluster_key_file is None and (serve or peer):
        warn("no-cluster-key", "the machines do not authenticate; use --cluster-key-file")
    start_logging("warning")
    settings = AgentSettings(
        cache=(cache or Path.cwd()).absolute(),
        listen=listen if serve else Address(listen.host, 0),
        peers=peer,
        nic_bytes_per_s=nic_rate,
        cluster_key=read_key(cluster_key_file, KeyKind.CLUSTER) if cluster_key_file else None,
    )
    interrupts = context.find_object(Interrupts)
    assert interrupts is not None
    if serve:
        from swarm.bench.fleet import serve as run_server

        interrupts.run(partial(run_server, settings, size, for_s, _say_ready))
        return
    from swarm.bench.fleet import BenchPlan, measure

    plan = BenchPlan(size, limit, origin or "", object_key, shlex.join(["swarm", *sys.argv[1:]]))
    profile = interrupts.run(partial(measure, settings, plan, _say_step))
    text = format_profile(profile)
    _write(output, text)
    for remark in profile.notes:
        note(f"note: {remark}")
    if as_json:
        print_json(json.loads(text) | {"file": str(output)})
        return
    note(f"wrote {output}; `swarm-sim calibrate {output}` reads it")
    for key, value in measurements(profile).items():
        print(f"{key:<34}{value:.6g}")


def _say_step(what: str) -> None:
    note(f"measuring {what}")


def _say_ready(agent: Agent, payload: Payload) -> None:
    note(
        f"serving {format_size(payload.size)} at {agent.network.desk.address}; on another machine "
        "run: swarm bench fleet --peer THIS_HOST:PORT"
    )


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text)
        draft.replace(path)
    except OSError as error:
        raise PermissionDeniedError(
            f"cannot write {path}: {error.strerror}", object_name=str(path)
        ) from error
