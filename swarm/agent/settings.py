"""What an agent is told at its start; the command line fills it from flags, environment and file.

`node_settings` and `network_settings` hand each room its part, where 0 stands for "not given".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from swarm.agent.network_settings import NetworkSettings
from swarm.origin.origin import OriginSettings
from swarm.policy.settings import NodeSettings
from swarm.protocol.ids import Address

STALL_TIMEOUT_S = 120.0
"""Without one verified byte for this long a pull gives up; above any S3 back-off seen in public
reports, below what an operator waits before looking."""
ANY_ADDRESS = Address("0.0.0.0", 0)
LEAVE_GRACE_S = 20.0
"""How long chunks in flight may take to end after SIGTERM; two thirds of Kubernetes' default 30
s."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Everything an agent can be told. Rates are bytes/s, sizes bytes, durations seconds."""

    # Where versions lie: CACHE/versions/<id>/…
    cache: Path
    # Tracker URLs; empty means none.
    trackers: tuple[str, ...] = ()
    # Origin URL; "" means that only peers can serve.
    origin: str = ""
    # References fetched from the start, and channels followed.
    versions: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    # Where peers connect to; port 0 lets the system choose.
    listen: Address = ANY_ADDRESS
    # What peers are told; None: derived from the listening address.
    advertise: Address | None = None
    # Local API over TCP (probes, metrics); None: off.
    http: Address | None = None
    # Local API over a Unix socket; None: off.
    socket: Path | None = None
    # Neighbours to start from without a tracker.
    peers: tuple[Address, ...] = ()
    # Look for a tracker on the LAN by mDNS.
    discover: bool = False
    zone: str = ""
    rack: str = ""
    # None: learned.
    nic_bytes_per_s: int | None = None
    # Rate that one TCP flow can reach; None: no cap known.
    flow_cap_bytes_per_s: int | None = None
    uplink_bytes_per_s: int | None = None
    downlink_bytes_per_s: int | None = None
    # "disk", "memory" or "auto".
    store: str = "auto"
    # Seconds without progress after which the origin is read without a lease; None: by prediction.
    origin_after_s: float | None = None
    # 32 bytes; None: neither peers nor tracker are authenticated (loopback trials only).
    cluster_key: bytes | None = None
    # How patient and how wide to be with the origin; no flag, every default has its reason there.
    origin_settings: OriginSettings = field(default_factory=OriginSettings)
    # D = U at the slowest common card; no flag.
    session_count: int = NodeSettings().session_count
    # Write the trace of the first cold start here; None: none.
    trace: Path | None = None
    stall_timeout_s: float = STALL_TIMEOUT_S
    leave_grace_s: float = LEAVE_GRACE_S


def node_settings(settings: AgentSettings, *, has_origin: bool, has_tracker: bool) -> NodeSettings:
    """The policy's part."""
    return NodeSettings(
        nic_bytes_per_s=settings.nic_bytes_per_s or 0.0,
        uplink_bytes_per_s=settings.uplink_bytes_per_s or 0.0,
        flow_cap_bytes_per_s=settings.flow_cap_bytes_per_s or 0.0,
        has_origin=has_origin,
        has_tracker=has_tracker,
        origin_after_s=settings.origin_after_s,
        session_count=settings.session_count,
        zone=settings.zone,
        rack=settings.rack,
    )


def network_settings(settings: AgentSettings) -> NetworkSettings:
    """The peer network's part."""
    return NetworkSettings(
        listen=settings.listen,
        advertise=settings.advertise,
        zone=settings.zone,
        rack=settings.rack,
        nic_bytes_per_s=settings.nic_bytes_per_s or 0,
        uplink_bytes_per_s=settings.uplink_bytes_per_s,
        downlink_bytes_per_s=settings.downlink_bytes_per_s,
    )
