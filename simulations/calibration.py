"""From a profile to the keys of a scenario that it answers.

Rates of cards are set from measured payload and measured headers together, so that what a node gets
in the simulation is what was measured. A disk, a hashing rate or a flow's rate is only set where it
could limit anything: each is one more thing that every flow has to share.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarm.capacity.profile import Profile
from swarm.errors import UsageError

LIMITING_FACTOR = 2.0
"""A disk this much faster than the card never holds a flow up for long."""
CAPPED_SHARE = 0.9
"""A flow that alone gets more of the card than this is not capped."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a scenario, as ``--set`` takes it, and what it was made of."""

    key: str
    # With its unit; a plain number has none.
    value: str
    source: str

    @property
    def word(self) -> str:
        """``KEY=VALUE``."""
        return f"{self.key}={self.value}"


def calibrate(profile: Profile, group_index: int | None = 0) -> list[Setting]:
    """What a profile says about a scenario, node keys for the group of that index; None: no group's
    machines were measured."""
    found = _link_settings(profile) + _origin_settings(profile)
    if profile.agent.verify_s is not None:
        found.append(Setting("hashing.per_chunk", _duration(profile.agent.verify_s),
                             "agent.verify_s"))  # fmt: skip
    card = card_bytes_per_s(profile)
    hashing = profile.hashing.bytes_per_s
    if hashing is not None and card is not None and hashing < LIMITING_FACTOR * card:
        found.append(Setting("hashing.rate", _rate(hashing), "hashing.bytes_per_s"))
    if group_index is not None:
        found += _node_settings(profile, f"nodes.{group_index}.")
    return found


def words(settings: list[Setting]) -> tuple[str, ...]:
    """As `--set` takes them."""
    return tuple(setting.word for setting in settings)


def card_bytes_per_s(profile: Profile) -> float | None:
    """The rate of a node's card that gives the payload that was measured."""
    received = profile.network.receive_bytes_per_s
    return None if received is None else received * (1 + (profile.network.header_share or 0.0))


def group_index_of(names: list[str], wanted: str | None) -> int | None:
    """Which group of a scenario a profile's machines are: the only one, or the one that was named.
    None if that is not known. Raises UsageError for a name that is not there."""
    if wanted is None:
        return 0 if len(names) == 1 else None
    if wanted not in names:
        raise UsageError(
            f"the scenario has no group {wanted!r}",
            object_name=wanted,
            hint=f"its groups: {', '.join(names)}",
        )
    return names.index(wanted)


def _link_settings(profile: Profile) -> list[Setting]:
    network, agent = profile.network, profile.agent
    found = []
    for key, value, source, write in (
        ("rtt", network.rtt_s, "network.rtt_s", _duration),
        (
            "headers",
            beside_payload(profile),
            "network.header_share, acknowledgement_share",
            _percent,
        ),
        ("unevenness", network.unevenness, "network.unevenness", _number),
        ("handshake", link_s(profile), "network.rtt_s, agent.handshake_s", _duration),
        ("gap", agent.chunk_gap_s, "agent.chunk_gap_s", _duration),
    ):
        if value:
            found.append(Setting(f"links.{key}", write(value), source))
    return found


def beside_payload(profile: Profile) -> float:
    """What cards carry beside payload. In a swarm every node sends as much as it receives, so
    the acknowledgements of one direction take from the other."""
    network = profile.network
    return (network.header_share or 0.0) + (network.acknowledgement_share or 0.0)


def link_s(profile: Profile) -> float | None:
    """To connect and shake hands."""
    handshake_s = profile.agent.handshake_s
    return None if handshake_s is None else handshake_s + (profile.network.rtt_s or 0.0)


def _origin_settings(profile: Profile) -> list[Setting]:
    origin = profile.origin
    found = []
    if origin.connection_bytes_per_s is not None:
        value = _rate(origin.connection_bytes_per_s)
        found.append(Setting("origin.connection", value, "origin.connection_bytes_per_s"))
    if origin.first_byte_s_min is not None and origin.first_byte_s_max is not None:
        ends = f'["{_duration(origin.first_byte_s_min)}", "{_duration(origin.first_byte_s_max)}"]'
        source = "origin.first_byte_s_min, origin.first_byte_s_max"
        found.append(Setting("origin.first_byte", ends, source))
    return found


def _node_settings(profile: Profile, prefix: str) -> list[Setting]:
    found = []
    card = card_bytes_per_s(profile)
    if card is None:
        return []
    source = "network.receive_bytes_per_s, network.header_share"
    found.append(Setting(f"{prefix}nic", _rate(card), source))
    flow = profile.network.flow_bytes_per_s
    received = profile.network.receive_bytes_per_s
    if flow is not None and received is not None and flow < CAPPED_SHARE * received:
        found.append(Setting(f"{prefix}flow_cap", _rate(flow), "network.flow_bytes_per_s"))
    for key, rate in (
        ("disk_write", profile.disk.write_bytes_per_s),
        ("disk_read", profile.disk.read_bytes_per_s),
    ):
        if rate is not None and rate < LIMITING_FACTOR * card:
            found.append(Setting(f"{prefix}{key}", _rate(rate), f"disk.{key[5:]}_bytes_per_s"))
    return found


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.4f}ms"


def _rate(bytes_per_s: float) -> str:
    return f"{round(bytes_per_s)}B/s"


def _percent(share: float) -> str:
    return f"{share * 100:.4f}%"


def _number(value: float) -> str:
    return f"{value:.4f}"
