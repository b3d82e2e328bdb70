"""The tracker's numbers, each with its unit and where it comes from.

"Study" is the simulation study of swarm policies (discrete events, N up to 4000); "lab" is twelve
real agents behind shaped links. Frozen, handed in part by part.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from swarm.protocol.tracker_api import LEASE_REPORT_INTERVAL_S, REPORT_INTERVAL_S
from tracker.policy.prices import ZoneCopies


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """When an agent counts as there."""

    # Seconds between two reports of an agent without a lease, and with one. At least: a large fleet
    # is told to wait longer.
    report_interval_s: float = REPORT_INTERVAL_S
    lease_report_interval_s: float = LEASE_REPORT_INTERVAL_S
    # One process serves about 5,000 requests/s; a fifth leaves room for listens and for a restart.
    reports_per_s_max: float = 1000.0
    # Reports missed in a row before an agent counts as gone: one may be lost, two may be late.
    missed_reports: int = 3
    # Added to that: scheduling delay of a busy node, measured up to 0.5 s on two shared cores.
    expiry_slack_s: float = 1.0
    # How long "cannot be reached" by one agent counts; twice the TCP connect retries of a peer.
    accusation_kept_s: float = 60.0
    # How long an agent that two others could not reach is neither handed out nor counted.
    quarantine_s: float = 60.0
    # Accusers that make it a fact: one may have a broken link of its own.
    accusers_needed: int = 2
    # A listen held for this long with no successor means that nobody listens there; the longest
    # hold and a slow reconnect.
    listener_kept_s: float = 20.0


@dataclass(frozen=True, slots=True)
class HandoutSettings:
    """Whom an agent is told to connect to."""

    # K of the study: 8 costs 0.3–0.9 %, 24 and 32 gain 0.1 % and send more messages.
    neighbours: int = 16
    # Up to here everybody knows everybody; the study's small swarms ran that way.
    full_mesh_agents: int = 33
    # Edges that an agent accepts, as a multiple of K; above it newcomers go elsewhere.
    degree_factor: int = 3
    # Part of a handout that lies in the agent's own zone. Sessions stay there; the rest is who
    # could still be asked without a tracker.
    own_zone_share: float = 0.875
    # Rack mates that an agent is told of, beside its other edges, and agents outside its rack at
    # least. As many edges again come in from outside, so that a rack of 16 has 64 of them.
    mates_max: int = 40
    outside_rack: int = 2


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Who may read what from the origin."""

    # Rate of one origin connection, bytes/s, and the time to its first byte: what S3 gives.
    connection_bytes_per_s: float = 90e6
    first_byte_s: float = 0.065
    # A range should take this long on one connection, else the first byte dominates: chunk/(rate ×
    # 0.2 s) connections read one chunk.
    range_s: float = 0.2
    connections_per_chunk_max: int = 32
    # Candidates looked at for one grant; more than enough to find an idle one (study).
    candidates: int = 40
    # Overtaking: revoked when factor × live + extra later leases finished first and less than
    # `kept_share` has arrived. No clock: a slow origin slows all alike and revokes nothing.
    overtaken_factor: int = 2
    overtaken_extra: int = 4
    kept_share: float = 0.7
    # No lease is revoked before so many mean lease times; a slow origin raises the mean, and this
    # with it. In the tail, where nothing is left to overtake, this and a second decide.
    patience_factor: float = 4.0
    tail_extra_s: float = 1.0
    tail_kept_share: float = 0.5
    # How long the holder of a revoked lease counts as slow.
    slow_s: float = 10.0
    # Leases that a slow or lagging agent seems to hold beside its own. With 1.1 leases per agent at
    # most, healthy ones seldom hold as many.
    late_handicap: int = 4
    # First penalty of a holder whose read failed, doubled up to `slow_s`.
    failed_s: float = 0.5
    # A chunk that the origin does not have is asked for again after this: a publish may still be
    # under way, and an operator may put it back.
    unavailable_s: float = 10.0
    # Lagging: seconds after joining before it is judged, and the share of the mean rate.
    lagging_after_s: float = 1.0
    lagging_share: float = 0.4
    # Stalled: when first asked after a completion, how often again, and up to how many owners.
    stalled_after_s: float = 1.5
    stalled_checks: int = 4
    stalled_owners: int = 2
    # A lease that its holder does not list is sent again, then taken back after this.
    unlisted_s: float = 2.0
    # After a restart agents tell what they hold within one interval; until then nothing is granted.
    resync_s: float = REPORT_INTERVAL_S + 1.0


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """How many origin connections may be live."""

    # Origin rate aimed at, in NICs (g): 2 loses 4 % in a brown-out, 4 gains 1 % more.
    goal_nics: float = 3.0
    # No more than this for each incomplete agent, in NICs.
    goal_nics_per_agent: float = 1.1
    # For one agent alone. Reads that began together end together, so what just fills its NIC leaves
    # it idle for every first byte: 1.02–1.14 of the bound at 100 Gbit/s by luck, with 2 NICs
    # 1.013–1.016 (simulated, three seeds).
    goal_nics_alone: float = 2.0
    # Leases: fewer than twice the slots of an agent (D = 4) leave the origin idle (1.21–1.41).
    leases_min: int = 8
    connections_max: int = 2000
    # Where no NIC is known: connections per chunk and incomplete agent to start with. Simulated
    # lab, 12 agents, last node over the bound with 2 / 1 / 0.5: 1.110 / 1.068 / 1.059 where the
    # origin gives one NIC, 1.019 / 1.021 / 1.031 where it gives four.
    blind_connections_per_agent: float = 1.0
    # What one agent gets in the first moments, while others are about to join: leases for this
    # share of its NIC, or so many where no NIC is known. Simulated, 100 Gbit/s, 1,000 chunks, p99
    # over the bound without it / with all of the NIC / with a quarter: 16 agents 1.043 / 1.043 /
    # 1.028, 100 agents 1.056 / 1.056 / 1.039; 200 agents with 25 Gbit/s, 500 chunks 1.046 / 1.039 /
    # 1.034.
    first_nic_share: float = 0.25
    blind_first_leases: int = 2
    # Seconds between two looks, and the span over which the origin's rate is taken: two and a half
    # mean lease times within these bounds.
    step_s: float = 0.25
    window_s_min: float = 0.5
    window_s_max: float = 4.0
    # First and longest wait after a probe that gained nothing.
    hold_s: float = 2.0
    hold_s_max: float = 16.0
    # Probes double, then grow by a quarter.
    factor: float = 2.0
    small_factor: float = 1.25
    # Throttled: origin requests that may start each second over the whole fleet.
    throttled_starts_per_s: float = 10.0
    # Longest Retry-After that is obeyed; above it a recovered origin would stay idle.
    retry_after_s_max: float = 10.0


@dataclass(frozen=True, slots=True)
class ZoneSettings:
    """How chunks come into zones."""

    copies: ZoneCopies = ZoneCopies.PEER
    # Zone leases live in one zone; the study sees no difference between 4, 16 and 48.
    leases_max: int = 16
    # Where a zone reads its own copy from the origin: at least as many as fill so many NICs.
    origin_nics: float = 1.5
    # Receivers looked at for one zone lease, and holders remembered of each chunk (study).
    candidates: int = 12
    holders: int = 6
    # Revoked below this share of the usual rate, with so many usual times still to go; and, while
    # nothing was heard of it, after so many usual times and a report.
    slow_share: float = 0.3
    slow_remaining: float = 2.0
    patience_factor: float = 4.0
    # How long the slow end of a revoked lease counts as slow.
    slow_s: float = 10.0
    # First and longest rest of a source that failed, and failures before the other way is tried.
    failed_s: float = 0.5
    failed_s_max: float = 10.0
    attempts: int = 3


@dataclass(frozen=True, slots=True)
class TrackerSettings:
    """All of them."""

    membership: MembershipSettings = field(default_factory=MembershipSettings)
    handout: HandoutSettings = field(default_factory=HandoutSettings)
    leases: LeaseSettings = field(default_factory=LeaseSettings)
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    zones: ZoneSettings = field(default_factory=ZoneSettings)
