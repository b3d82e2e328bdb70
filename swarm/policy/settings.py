"""What an operator or the agent may set about decisions; every default is the recommended policy.

Numbers that nobody has a reason to turn stand beside the code that uses them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Fixed for a node's lifetime. Rates are bytes per second; 0 means not given."""

    # Failure and billing domain, and rack; "" means unknown. Same-zone neighbours are preferred.
    zone: str = ""
    rack: str = ""
    # NIC rate both ways. 0: learn it from the traffic.
    nic_bytes_per_s: float = 0.0
    # What the interface claims: an upper bound for the first estimate, never believed alone.
    link_bytes_per_s: float = 0.0
    # What uploads may use, so that seeding never starves inference. 0: the whole NIC.
    uplink_bytes_per_s: float = 0.0
    # Rate at which one TCP flow is capped by the fabric. 0: no cap, one stripe per chunk.
    flow_cap_bytes_per_s: float = 0.0
    # Bytes can be read from an origin at all.
    has_origin: bool = True
    # A tracker is configured; without one neighbours and rendezvous hashing decide.
    has_tracker: bool = True
    # K: links wanted in a large swarm; at most three times as many are accepted.
    neighbour_count: int = 16
    # Up to this many nodes everybody links to everybody.
    mesh_node_count: int = 33
    # D = U: sessions each way at the slowest common NIC. The study sees no difference between 2
    # and 4; with real TCP at 64 Mbit/s 4 was 8 % faster.
    session_count: int = 4
    # Q: requests that may wait at an uploader. More of them only hide a busy peer.
    upload_queue_count: int = 1
    # Between two batches of haves. None: 50 ms, 20 ms below 500 chunks, 10 ms in a rack.
    have_interval_s: float | None = None
    # Without a verified byte for so long the origin is read unasked. None: max(120 s, three times
    # the time that the bytes take at the NIC rate).
    origin_after_s: float | None = None
    # Cap of unasked origin reads. 0: three NICs shared by all nodes known.
    origin_cap_bytes_per_s: float = 0.0
    # Steps kept for a bug report.
    story_count: int = 2000
