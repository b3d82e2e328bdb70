"""``swarm pull``: one version into one directory, then the end."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from swarm.cli.agent_options import agent_options, agent_settings
from swarm.cli.interrupts import Interrupts
from swarm.cli.logs import start_logging
from swarm.cli.options import common, progress_option, setting, together
from swarm.cli.output import emit
from swarm.cli.progress import TransferProgress, format_sources
from swarm.cli.progress_printer import Printer, open_printer
from swarm.http.messages import Json
from swarm.units import format_duration, format_rate, format_size, parse_duration

if TYPE_CHECKING:
    from swarm.agent.agent import Agent
    from swarm.agent.status import VersionStatus


@click.command()
@click.argument("reference", metavar="REF")
@click.argument("directory", metavar="DIR", type=Path)
@agent_options
@together(
    setting(
        "seed-for",
        "Serve others for so long after the version is whole.",
        parse=parse_duration,
        metavar="SECONDS",
        default="0",
    ),
    setting(
        "stall-timeout",
        "Give up after so long without one verified byte.",
        parse=parse_duration,
        metavar="SECONDS",
        default="120",
    ),
    progress_option,
)
@common
@click.pass_context
def pull(
    context: click.Context,
    /,
    reference: str,
    directory: Path,
    seed_for: float,
    stall_timeout: float,
    progress: str,
    as_json: bool,
    **_flags: object,
) -> None:
    """Fetch the version REF into DIR and verify every byte.

    REF is 64 hex digits, a unique prefix of 12 or more, NAME@TAG or channel:NAME; without
    --tracker only 64 hex digits. A pull that was stopped goes on where it ended.
    """
    start_logging("warning")
    settings = replace(agent_settings(context, directory), stall_timeout_s=stall_timeout)
    interrupts = context.find_object(Interrupts)
    assert interrupts is not None
    from swarm.agent.run import pull as run_pull

    with open_printer(progress) as printer:
        printer.show(TransferProgress("resolving", waiting=f"the version of {reference}"))
        status = interrupts.run(
            partial(
                run_pull,
                settings,
                reference,
                directory,
                watch=partial(_show, printer),
                seed_for_s=seed_for,
            )
        )
    emit(
        pull_document(status),
        as_json=as_json,
        data=str(directory),
        summary=_summary(status),
    )


def pull_document(status: VersionStatus) -> dict[str, Json]:
    """The JSON of a pull."""
    return {
        "version": status.version.hex(),
        "ready": status.is_ready,
        "directory": status.directory,
        "seconds": round(status.seconds, 3),
        "bytes": status.bytes,
        "bytes_by_source": {source.value: n for source, n in status.bytes_by_source.items()},
        "wasted_bytes": status.wasted_bytes,
        "chunks": status.chunks,
    }


def _show(printer: Printer, agent: Agent, status: VersionStatus | None, waiting: str) -> None:
    """One look at the running pull."""
    if status is None:
        printer.show(TransferProgress("manifest", peers=agent.neighbour_count, waiting=waiting))
        return
    printer.show(
        TransferProgress(
            phase="ready" if status.is_ready else "fetching",
            done_bytes=status.bytes_held,
            total_bytes=status.bytes,
            bytes_by_source={source.value: n for source, n in status.bytes_by_source.items()},
            wasted_bytes=status.wasted_bytes,
            peers=agent.neighbour_count,
            waiting=waiting,
        )
    )


def _summary(status: VersionStatus) -> str:
    sources = {source.value: count for source, count in status.bytes_by_source.items()}
    seconds = max(status.seconds, 1e-3)
    return (
        f"{status.version.hex()[:12]} is ready in {status.directory}: {format_size(status.bytes)}"
        f" in {format_duration(status.seconds)} ({format_rate(status.bytes / seconds)}), "
        f"{format_sources(sources) or 'nothing to fetch'}"
    )
