"""What an agent tells about itself: one record for the local API, `swarm status`, progress and
`pull`.

The reason for waiting is part of it, because a download that stands still without saying why was
the commonest complaint about every comparable tool."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from swarm.agent.accounting import Source
from swarm.http.messages import Json
from swarm.protocol.ids import VersionId

if TYPE_CHECKING:
    from swarm.agent.agent import Agent


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """How far one version has come."""

    version: VersionId
    # Where its files are, "" in a memory store.
    directory: str
    is_ready: bool
    chunks: int
    chunks_held: int
    # Unique bytes, and how many of them are verified, by where they came from.
    bytes: int
    bytes_by_source: dict[Source, int]
    wasted_bytes: int
    # Seconds since it was opened here, until READY.
    seconds: float
    # Seconds since the last chunk was verified.
    idle_s: float
    # What it waits for, in words; "" when it moves or is whole.
    waiting: str
    # The latest fault, in words.
    problem: str

    @property
    def bytes_held(self) -> int:
        return sum(self.bytes_by_source.values())


def version_status(agent: Agent, version: VersionId) -> VersionStatus | None:
    """The status of an open version; None while its manifest is still being fetched."""
    held = agent.shelf.held.get(version)
    account = agent.ledger.accounts.get(version)
    if held is None or account is None:
        return None
    now = trio.current_time()
    problem = agent.shelf.problems.get(version)
    return VersionStatus(
        version=version,
        directory=held.store.directory,
        is_ready=held.is_ready,
        chunks=len(held.manifest.lengths),
        chunks_held=held.bits.bit_count(),
        bytes=account.total_bytes,
        bytes_by_source=dict(account.by_source),
        wasted_bytes=account.wasted_bytes,
        seconds=(account.ready_at or now) - account.started_at,
        idle_s=now - account.progressed_at,
        waiting="" if held.is_whole else waiting_reason(agent, version),
        problem=problem.message if problem is not None else "",
    )


def waiting_reason(agent: Agent, version: VersionId) -> str:
    """One line that names what is being waited for; always something an operator can check."""
    held = agent.shelf.held.get(version)
    if held is None:
        problem = agent.shelf.problems.get(version)
        if problem is None:
            return "fetching the manifest"
        if version not in agent.shelf.wanted:
            return f"refused: {problem.code}: {problem.message}"
        return f"waiting for the manifest: {problem.code}: {problem.message}"
    if held.is_whole:
        return "being made ready"
    missing = len(held.manifest.lengths) - held.bits.bit_count()
    senders = Counter(
        transfer.sender for transfer in agent.ledger.live.values() if transfer.version == version
    )
    parts = [f"{count} chunk(s) on their way from {sender}" for sender, count in senders.items()]
    asked = sum(senders.values())
    if missing > asked:
        parts.append(f"{missing - asked} chunk(s) wait for {_source_wanted(agent)}")
    return "; ".join(parts)


def _source_wanted(agent: Agent) -> str:
    peers = agent.neighbour_count
    wanted = f"a free slot or an announcement at {peers} neighbour(s)" if peers else "a neighbour"
    if agent.session is None:
        turn = "a turn at the origin"
        if not agent.settings.origin:
            return wanted
        return f"{wanted} or {turn}" if peers or agent.settings.peers else turn
    if agent.session.is_lost:
        return f"{wanted} (the tracker does not answer: {agent.session.failure})"
    return f"{wanted} or an origin lease"


def unready_reasons(agent: Agent) -> list[str]:
    """Why the agent is not ready; empty when every channel serves and every version is READY."""
    reasons = [
        f"channel {channel} is not served yet"
        for channel in agent.follower.channels
        if channel not in agent.follower.served and channel not in agent.follower.unset()
    ]
    reasons += [_unset_reason(agent, channel) for channel in agent.follower.unset()]
    reasons += [f"version {name}: {reason}" for name, reason in agent.unresolved.items()]
    reasons += [
        version_reason(agent, version)
        for version in agent.shelf.missing()
        if not agent.follower.is_in_transit(version)
    ]
    return reasons


def transit_reasons(agent: Agent) -> list[str]:
    """Why channels that serve an older version do not serve their target yet: no reason to be
    unready, but one to be told."""
    return [
        version_reason(agent, version)
        for version in agent.shelf.missing()
        if agent.follower.is_in_transit(version)
    ]


def version_reason(agent: Agent, version: VersionId) -> str:
    """How far a version that is not READY has come, and what it waits for."""
    account = agent.ledger.accounts.get(version)
    share = ""
    if account is not None and account.total_bytes:
        percent = 100 * min(account.verified_bytes, account.total_bytes) // account.total_bytes
        share = f" {percent}%"
    return f"version {version.hex()[:12]}{share}: {waiting_reason(agent, version)}"


def _unset_reason(agent: Agent, channel: str) -> str:
    """A channel of which nothing is known is not an unset one."""
    session = agent.session
    if session is not None and session.failure and not agent.follower.is_confirmed(channel):
        return f"channel {channel}: {session.failure}"
    return f"channel {channel} is not set"


def status_document(agent: Agent) -> dict[str, Json]:
    """The JSON of /v1/status and of `swarm status --json`."""
    statuses = [version_status(agent, version) for version in agent.shelf.held]
    return {
        "node": agent.identity.node_id.hex(),
        "generation": agent.identity.generation,
        "cache": str(agent.settings.cache),
        "zone": agent.settings.zone,
        "neighbours": agent.neighbour_count,
        "nic_bytes_per_s": agent.facts.nic_bytes_per_s(),
        "sent_bytes": agent.ledger.sent_bytes,
        "tracker": _tracker_document(agent),
        "origin": _origin_document(agent),
        "channels": [_channel_document(agent, channel) for channel in agent.follower.channels],
        "versions": [_version_document(status) for status in statuses if status is not None],
        "opening": [v.hex() for v in agent.shelf.wanted if v not in agent.shelf.held],
        "waiting": unready_reasons(agent) + transit_reasons(agent),
        "problems": [
            {"version": version.hex(), "class": error.code, "message": error.message}
            for version, error in agent.shelf.problems.items()
        ],
        "names": {version.hex(): list(names) for version, names in agent.names.names.items()},
    }


def _tracker_document(agent: Agent) -> Json:
    if agent.session is None:
        return None
    return {"lost": agent.session.is_lost, "failure": agent.session.failure}


def _origin_document(agent: Agent) -> Json:
    """What reads of the origin showed of it; instants in seconds since 1970."""
    if not agent.settings.origin:
        return None
    now = trio.current_time()
    # The health keeps monotonic instants; people and scrapers want dates.
    clock = time.time() - now
    return {
        "url": agent.settings.origin,
        "degraded": [
            {
                "reason": trouble.fault.value,
                "since": round(clock + trouble.since, 3),
                "last_at": round(clock + trouble.last_at, 3),
                "failures": trouble.failures,
                "message": trouble.message,
            }
            for trouble in agent.origin_health.degradations(now=now)
        ],
    }


def _channel_document(agent: Agent, channel: str) -> Json:
    target = agent.follower.targets.get(channel)
    served = agent.follower.served.get(channel)
    return {
        "channel": channel,
        "target": target.version.hex() if target is not None and target.version else None,
        "serves": served[0].hex() if served is not None else None,
        "revision": served[1] if served is not None else 0,
        "confirmed": agent.follower.is_confirmed(channel),
    }


def _version_document(status: VersionStatus) -> Json:
    return {
        "version": status.version.hex(),
        "directory": status.directory,
        "ready": status.is_ready,
        "chunks": status.chunks,
        "chunks_held": status.chunks_held,
        "seconds": round(status.seconds, 3),
        "bytes": status.bytes,
        "bytes_held": status.bytes_held,
        "bytes_by_source": {source.value: n for source, n in status.bytes_by_source.items()},
        "wasted_bytes": status.wasted_bytes,
        "idle_s": round(status.idle_s, 3),
        "waiting": status.waiting,
        "problem": status.problem,
    }
