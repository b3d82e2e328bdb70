"""``swarm status``: what the agent on this node holds, fetches and waits for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from swarm.cli.failures import without_secrets
from swarm.cli.options import common, parse_listen_address, setting
from swarm.cli.output import emit, table
from swarm.cli.progress import format_sources
from swarm.cli.times import shown_time
from swarm.errors import UsageError
from swarm.protocol.ids import Address
from swarm.units import format_duration, format_rate, format_size

if TYPE_CHECKING:
    from swarm.cli.agent_api import OriginDocument, StatusDocument, VersionDocument


@click.command()
@setting("socket", "The agent's Unix socket.", parse=Path, metavar="PATH")
@setting("http", "The agent's --http address.", parse=parse_listen_address, metavar="HOST:PORT")
@common
def status(socket: Path | None, http: Address | None, as_json: bool) -> None:
    """Show what the agent on this node holds, fetches and waits for."""
    from swarm.cli.agent_api import AgentPlace, read_status

    if socket is None and http is None:
        raise UsageError(
            "no agent named", hint="give --socket PATH or --http HOST:PORT of the agent"
        )
    document = read_status(AgentPlace(socket) if socket is not None else AgentPlace(http=http))
    emit(document, as_json=as_json, data=format_status(document))


def format_status(document: StatusDocument) -> str:
    """The whole status for a person."""
    tracker = document["tracker"]
    state = (
        "none" if tracker is None else f"lost: {tracker['failure']}" if tracker["lost"] else "ok"
    )
    lines = [
        f"node {document['node'][:16]} generation {document['generation']}, cache "
        f"{document['cache']}",
        f"tracker {state}, {document['neighbours']} neighbours, NIC "
        f"{format_rate(document['nic_bytes_per_s'])}, sent {format_size(document['sent_bytes'])}",
    ]
    if document["origin"] is not None:
        lines += _origin_lines(document["origin"])
    names = document["names"]
    for channel in document["channels"]:
        served, target = channel["serves"], channel["target"]
        line = f"channel {channel['channel']} serves {_called(served, names) or 'nothing'}"
        if target is not None and target != served:
            line += f", on its way to {_called(target, names)}"
        lines.append(line)
    if document["versions"]:
        header = ("VERSION", "NAME", "STATE", "BYTES", "FROM", "TIME", "WASTED")
        rows = [_row(version, names) for version in document["versions"]]
        lines.append(table(header, rows))
    lines += [f"waiting: {reason}" for reason in document["waiting"]]
    lines += [
        f"last fault of {_called(fault['version'], names)}: {fault['class']}: {fault['message']}"
        for fault in document["problems"]
    ]
    return "\n".join(lines)


def _origin_lines(origin: OriginDocument) -> list[str]:
    """One line while it is well, else one for each kind of failure."""
    url = without_secrets(origin["url"])
    return [
        f"origin {url} degraded: {trouble['reason']} since {shown_time(trouble['since'])}, "
        f"{trouble['failures']} failed read(s); last: {trouble['message']}"
        for trouble in origin["degraded"]
    ] or [f"origin {url} ok"]


def _called(version: str | None, names: dict[str, list[str]]) -> str:
    """The short id with the version's names; "" for none."""
    if version is None:
        return ""
    known = names.get(version)
    return f"{version[:12]} ({', '.join(known)})" if known else version[:12]


def _row(version: VersionDocument, names: dict[str, list[str]]) -> tuple[str, ...]:
    held, total = version["bytes_held"], version["bytes"]
    percent = f"{100 * min(held, total) / total:.0f}%" if total else "100%"
    return (
        version["version"][:12],
        ", ".join(names.get(version["version"], ())) or "-",
        "ready" if version["ready"] else percent,
        format_size(total),
        format_sources(version["bytes_by_source"]) or "-",
        format_duration(version["seconds"]),
        format_size(version["wasted_bytes"]),
    )
