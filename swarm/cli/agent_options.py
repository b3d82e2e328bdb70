"""The flags of everything that runs an agent, and the settings they make."""

from __future__ import annotations

from pathlib import Path

import click

from swarm.agent.settings import AgentSettings
from swarm.cli.options import parse_listen_address, setting, together, tracker_options
from swarm.cli.output import warn
from swarm.config import read_key
from swarm.protocol.ids import parse_address
from swarm.protocol.keys import KeyKind
from swarm.units import parse_duration, parse_rate

agent_options = together(
    tracker_options,
    setting(
        "origin",
        "Where versions were published: s3://bucket/prefix, file:///dir, https://host/path.",
        metavar="URL",
    ),
    setting(
        "listen",
        "Where peers connect to.",
        parse=parse_listen_address,
        metavar="HOST:PORT",
        default="0.0.0.0:0",
    ),
    setting(
        "advertise",
        "What peers are told, where it differs from --listen (NAT, container port maps).",
        parse=parse_address,
        metavar="HOST:PORT",
    ),
    setting(
        "http",
        "Serve /healthz, /readyz, /metrics and /v1/status here.",
        parse=parse_listen_address,
        metavar="HOST:PORT",
    ),
    setting("socket", "Serve the same on a Unix socket.", parse=Path, metavar="PATH"),
    setting(
        "peer",
        "An agent to start from without a tracker; repeat for several.",
        parse=parse_address,
        metavar="HOST:PORT",
    ),
    setting("discover", "Look for a tracker on this network by mDNS."),
    setting("zone", "The failure and billing domain of this node.", default=""),
    setting(
        "rack",
        "The rack of this node, where racks share an uplink narrower than their NICs.",
        default="",
    ),
    setting(
        "nic-rate",
        "What this node's NIC can do; without it the agent learns it.",
        parse=parse_rate,
        metavar="RATE",
    ),
    setting(
        "flow-cap",
        "What one TCP flow can do on this fabric; faster nodes stripe.",
        parse=parse_rate,
        metavar="RATE",
    ),
    setting("uplink-limit", "Send at most so much.", parse=parse_rate, metavar="RATE"),
    setting("downlink-limit", "Receive at most so much.", parse=parse_rate, metavar="RATE"),
    setting(
        "store",
        "Where chunks are kept.",
        choices=("auto", "disk", "memory"),
        default="auto",
    ),
    setting(
        "origin-after",
        "Read the origin without a lease after so long without progress"
        " [default: 3 x the predicted time, 120 s at least].",
        parse=parse_duration,
        metavar="SECONDS",
    ),
    setting(
        "trace",
        "Write down the first cold start, chunk by chunk, for `swarm-sim replay`.",
        parse=Path,
        metavar="FILE",
    ),
)


def agent_settings(context: click.Context, cache: Path) -> AgentSettings:
    """The settings that the flags, variables and the file of this call make."""
    given = context.params
    key_file: Path | None = given["cluster_key_file"]
    if key_file is None and (given["tracker"] or given["peer"]):
        warn("no-cluster-key", "peers and tracker are not authenticated; use --cluster-key-file")
    return AgentSettings(
        cache=cache.absolute(),
        trackers=given["tracker"],
        origin=given["origin"] or "",
        listen=given["listen"],
        advertise=given["advertise"],
        http=given["http"],
        socket=given["socket"],
        peers=given["peer"],
        discover=given["discover"],
        zone=given["zone"],
        rack=given["rack"],
        nic_bytes_per_s=given["nic_rate"],
        flow_cap_bytes_per_s=given["flow_cap"],
        uplink_bytes_per_s=given["uplink_limit"],
        downlink_bytes_per_s=given["downlink_limit"],
        store=given["store"],
        origin_after_s=given["origin_after"],
        trace=given["trace"],
        cluster_key=read_key(key_file, KeyKind.CLUSTER) if key_file is not None else None,
    )
