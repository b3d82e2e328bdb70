"""How far a transfer has come, as numbers, as a line and as JSON. Pure: no clock, no terminal.

The caller reports a `TransferProgress` as often as it likes; `ProgressTrack` turns it into what a
person wants to know. Three rules come from other tools' bug reports. A percentage stays within
0 … 100 and never falls within a run, even when a held chunk turns out damaged and is fetched
again. A rate is that of the last ten seconds: the average since the start hides a stall, the last
sample jumps. And whoever waits is told for what, from the first line on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from swarm.cli.output import one_line
from swarm.http.messages import Json
from swarm.units import format_duration, format_rate, format_size

RATE_WINDOW_S = 10.0
"""Over which a rate is taken: a few chunk times on the slowest useful link."""
SILENCE_S = 10.0
"""Without a verified byte for so long, a line says so."""
ETA_AFTER_S = 2.0
"""Of a phase: a rate of its first moments (bytes that were there already, empty pipes) says nothing
of the rest."""
_SAMPLES_MAX = 64
"""Samples kept for the rate; older ones are thinned by the window first."""

SOURCE_WORDS = {
    "origin": "origin",
    "peer_same_zone": "peers",
    "peer_other_zone": "peers in other zones",
    "local": "local",
}
"""The sources of bytes as JSON names them, and as people read them."""


@dataclass(frozen=True, slots=True)
class TransferProgress:
    """One look at a running transfer."""

    # What goes on: resolving, fetching, hashing, uploading, ready.
    phase: str
    # Bytes that are done for good (verified, hashed, uploaded), of how many; 0: not known yet.
    done_bytes: int = 0
    total_bytes: int = 0
    # Of the done bytes, by source; {} where there is only one.
    bytes_by_source: Mapping[str, int] = field(default_factory=dict)
    # Bytes that arrived and were of no use; not part of the done bytes.
    wasted_bytes: int = 0
    # Peers connected; None where there are none by nature.
    peers: int | None = None
    # What the transfer waits for, in words; "" when it moves.
    waiting: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A look with what follows from the looks before it."""

    progress: TransferProgress
    # 0 … 100, never falling within a phase.
    percent: float
    bytes_per_s: float
    # None: no telling, or too early.
    eta_s: float | None
    # Seconds since the phase began.
    age_s: float
    # Seconds since the done bytes last grew.
    silent_s: float


class ProgressTrack:
    """Remembers the last ten seconds and the highest percentage of one transfer."""

    def __init__(self) -> None:
        self._phase = ""
        self._percent = 0.0
        # (now, done bytes), oldest first.
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES_MAX)
        self._began_at = self._grew_at = 0.0
        self._most_done = 0

    def observe(self, progress: TransferProgress, *, now: float) -> Snapshot:
        """Take one look into account."""
        if progress.phase != self._phase or not self._samples:
            self._start(progress, now)
        if progress.done_bytes > self._most_done:
            self._most_done, self._grew_at = progress.done_bytes, now
        if progress.total_bytes:
            share = 100 * progress.done_bytes / progress.total_bytes
            self._percent = min(100.0, max(self._percent, share))
        rate = self._rate(progress.done_bytes, now)
        missing = max(0, progress.total_bytes - progress.done_bytes)
        age_s = now - self._began_at
        is_told = progress.total_bytes and rate > 0 and age_s >= ETA_AFTER_S
        return Snapshot(
            progress=progress,
            percent=self._percent,
            bytes_per_s=rate,
            eta_s=missing / rate if is_told else None,
            age_s=age_s,
            silent_s=now - self._grew_at,
        )

    def _start(self, progress: TransferProgress, now: float) -> None:
        self._phase, self._percent = progress.phase, 0.0
        self._began_at = self._grew_at = now
        self._most_done = progress.done_bytes
        self._samples.clear()
        self._samples.append((now, progress.done_bytes))

    def _rate(self, done_bytes: int, now: float) -> float:
        # Samples closer together than this would only push older ones out of the bounded queue.
        if now - self._samples[-1][0] >= RATE_WINDOW_S / _SAMPLES_MAX:
            self._samples.append((now, done_bytes))
        while len(self._samples) > 2 and self._samples[1][0] <= now - RATE_WINDOW_S:
            self._samples.popleft()
        since, before = self._samples[0]
        return max(0.0, (done_bytes - before) / (now - since)) if now > since else 0.0


def format_line(snapshot: Snapshot) -> str:
    """All there is to know, on one line without control characters."""
    progress = snapshot.progress
    parts = [progress.phase]
    if progress.total_bytes:
        parts[0] += f" {snapshot.percent:.0f}%"
        done, total = min(progress.done_bytes, progress.total_bytes), progress.total_bytes
        parts.append(f"{format_size(done)} of {format_size(total)}")
        parts.append(format_rate(snapshot.bytes_per_s))
    if sources := format_sources(progress.bytes_by_source):
        parts.append(f"from {sources}")
    if progress.wasted_bytes:
        parts.append(f"wasted {format_size(progress.wasted_bytes)}")
    if progress.peers is not None:
        parts.append(f"{progress.peers} peers")
    if snapshot.percent < 100 and progress.total_bytes and snapshot.age_s >= ETA_AFTER_S:
        eta = format_duration(snapshot.eta_s) if snapshot.eta_s is not None else "unknown"
        parts.append(f"eta {eta}")
    if reason := format_reason(snapshot):
        parts.append(reason)
    return one_line(" | ".join(parts))


def format_reason(snapshot: Snapshot) -> str:
    """Why it does not move, or what it waits for next; "" when there is nothing to say."""
    waiting = snapshot.progress.waiting
    if snapshot.silent_s >= SILENCE_S and snapshot.percent < 100:
        reason = waiting or "no reason known"
        return f"no progress for {format_duration(snapshot.silent_s)}: {reason}"
    return f"waiting: {waiting}" if waiting else ""


def format_sources(bytes_by_source: Mapping[str, int]) -> str:
    """``origin 1.20 GB, peers 3.40 GB``, without the sources that gave nothing."""
    return ", ".join(
        f"{SOURCE_WORDS.get(source, source)} {format_size(count)}"
        for source, count in bytes_by_source.items()
        if count
    )


def as_json(snapshot: Snapshot) -> dict[str, Json]:
    """One object of ``--progress json``."""
    progress = snapshot.progress
    return {
        "phase": progress.phase,
        "percent": round(snapshot.percent, 2),
        "bytes_done": progress.done_bytes,
        "bytes": progress.total_bytes,
        "bytes_by_source": dict(progress.bytes_by_source),
        "wasted_bytes": progress.wasted_bytes,
        "bytes_per_s": round(snapshot.bytes_per_s),
        "eta_s": None if snapshot.eta_s is None else round(snapshot.eta_s, 1),
        "peers": progress.peers,
        "silent_s": round(snapshot.silent_s, 1),
        "waiting": progress.waiting,
    }
