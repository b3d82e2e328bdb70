"""What the peer network is told at its start."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from swarm.protocol.ids import Address

SEGMENTS_MAX = 64
"""64 MiB of receive buffers: three for each of 20 links; a quarter of the smallest container we
expect to serve a GPU."""
CONNECT_TIMEOUT_S = 2.0
"""A live agent in the same region answers a SYN in milliseconds; two lost SYNs cost 3 s and are
rare enough to try again later."""
HANDSHAKE_TIMEOUT_S = 2.0
"""One and a half round trips and three hashes; anyone slower is not a useful peer."""
DATA_LINK_IDLE_S = 30.0
"""A session to the same peer soon after saves a connect, a handshake and a slow start."""
NO_PROGRESS_S = 5.0
"""A live link moves a byte, or answers a ping, well within this; below the ten seconds in which a
silent drop is to be noticed."""
QUEUE_WAIT_S = 60.0
"""Longest wait for the first byte from a peer that is alive; its queue is one place long, so more
means that it has forgotten us."""
PAYLOAD_RATE_MIN = 16 * 1024
"""In bytes/s: a payload below it after `PAYLOAD_PATIENCE_S` is a drip that keeps a link alive and
nothing else. Policy cuts slow sources far above it, but never the last holder."""
PAYLOAD_PATIENCE_S = 30.0
TICK_S = 1.0
"""Watchdogs and pings; a third of the shortest limit they watch."""
PING_INTERVAL_S = 3.0
"""Three unanswered pings are noticed within ten seconds."""


def default_worker_count() -> int:
    """Threads that hash and write: one a core, two at least so that one may wait for the disk, and
    no more than a 100 Gbit/s node can use."""
    return min(8, max(2, os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Rates in bytes/s, durations in seconds."""

    # Where peers connect to; port 0 lets the system choose.
    listen: Address = field(default_factory=lambda: Address("0.0.0.0", 0))
    # What peers are told; None: the bound address, and for an unspecified host the one they see.
    advertise: Address | None = None
    zone: str = ""
    rack: str = ""
    # Told to peers; 0 means not known.
    nic_bytes_per_s: int = 0
    # None: no limit.
    uplink_bytes_per_s: int | None = None
    downlink_bytes_per_s: int | None = None
    worker_count: int = field(default_factory=default_worker_count)
    segments_max: int = SEGMENTS_MAX
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S
    data_link_idle_s: float = DATA_LINK_IDLE_S
    no_progress_s: float = NO_PROGRESS_S
    queue_wait_s: float = QUEUE_WAIT_S
    ping_interval_s: float = PING_INTERVAL_S
    payload_patience_s: float = PAYLOAD_PATIENCE_S
    tick_s: float = TICK_S
