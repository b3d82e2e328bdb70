"""A profile: what was measured of a fleet's machines, dated, in a file that tools exchange.

`swarm bench fleet` and `benchmarks.calibration` write profiles, `swarm-sim calibrate` and
`swarm-sim replay` read them. Each number carries its unit in its key, and what was not measured is
absent. The schema's number goes up with every change that an older reader would misunderstand; a
reader refuses every other number, for a guess about units is worse than an error.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TypeVar, cast

from swarm.errors import UsageError

SCHEMA = "weightswarm-profile"
SCHEMA_VERSION = 1
_HINT = "measure anew with `swarm bench fleet`"


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it was measured."""

    host: str = ""
    cpu_count: int = 0
    kernel: str = ""
    python: str = ""


@dataclass(frozen=True, slots=True)
class NetworkProfile:
    """Between two machines, payload unless it says otherwise."""

    # What one agent takes in over many flows, and over one.
    receive_bytes_per_s: float | None = None
    flow_bytes_per_s: float | None = None
    rtt_s: float | None = None
    # What a card carries beside payload, over payload: with it, headers and what was sent twice;
    # against it, acknowledgements.
    header_share: float | None = None
    acknowledgement_share: float | None = None
    # How unevenly flows that share a link fare: the ratio of a flow's rate to the mean of those
    # beside it is spread over [1 / (1 + u), 1 + u]. See `links.unevenness` of a scenario.
    unevenness: float | None = None


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """What our own program costs there."""

    # From the first byte out to the end of the handshake, on an open connection.
    handshake_s: float | None = None
    # In one session: from the last byte of a chunk to the first of the next.
    chunk_gap_s: float | None = None
    # From the last byte of a chunk to its place in the store.
    verify_s: float | None = None
    # Processor time of a chunk beside its bytes, and of a byte.
    chunk_core_s: float | None = None
    payload_core_s_per_gb: float | None = None
    # From the start of the process to its first answer.
    process_start_s: float | None = None


@dataclass(frozen=True, slots=True)
class DiskProfile:
    """Of the file system that holds the cache, one file, past the page cache."""

    write_bytes_per_s: float | None = None
    read_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class HashingProfile:
    """BLAKE3 on one processor, from memory."""

    bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class OriginProfile:
    """The object store as one machine sees it."""

    # One connection, and `connection_count` of them together.
    connection_bytes_per_s: float | None = None
    total_bytes_per_s: float | None = None
    connection_count: float | None = None
    # From a request on an open connection to its first byte.
    first_byte_s_min: float | None = None
    first_byte_s_median: float | None = None
    first_byte_s_max: float | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """One measurement of one machine, or what several come to."""

    # ISO 8601, UTC.
    measured_at: str
    command: str = ""
    machine: Machine = field(default_factory=Machine)
    network: NetworkProfile = field(default_factory=NetworkProfile)
    agent: AgentProfile = field(default_factory=AgentProfile)
    disk: DiskProfile = field(default_factory=DiskProfile)
    hashing: HashingProfile = field(default_factory=HashingProfile)
    origin: OriginProfile = field(default_factory=OriginProfile)
    # What a reader should know of how it was measured.
    notes: tuple[str, ...] = ()


_SECTIONS = ("network", "agent", "disk", "hashing", "origin")
_Section = TypeVar("_Section", NetworkProfile, AgentProfile, DiskProfile, HashingProfile,
                   OriginProfile)  # fmt: skip


def measurements(profile: Profile) -> dict[str, float]:
    """What was measured, by dotted key."""
    found = {}
    for section in _SECTIONS:
        part = getattr(profile, section)
        for entry in fields(part):
            value = getattr(part, entry.name)
            if value is not None:
                found[f"{section}.{entry.name}"] = float(value)
    return found


def median_profile(profiles: Iterable[Profile]) -> Profile:
    """Several machines as one: of each number the median over those that measured it."""
    given = list(profiles)
    found = [measurements(profile) for profile in given]
    keys = sorted({key for each in found for key in each})
    middle = {key: statistics.median(each[key] for each in found if key in each) for key in keys}
    return Profile(
        measured_at=max(profile.measured_at for profile in given),
        command=given[0].command,
        machine=given[0].machine,
        network=_section(NetworkProfile, "network", middle),
        agent=_section(AgentProfile, "agent", middle),
        disk=_section(DiskProfile, "disk", middle),
        hashing=_section(HashingProfile, "hashing", middle),
        origin=_section(OriginProfile, "origin", middle),
        notes=tuple(note for profile in given for note in profile.notes),
    )


def format_profile(profile: Profile) -> str:
    """As JSON text, to be read by people too."""
    document: dict[str, object] = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "measured_at": profile.measured_at,
        "command": profile.command,
        "machine": {e.name: getattr(profile.machine, e.name) for e in fields(Machine)},
    }
    for section in _SECTIONS:
        part = getattr(profile, section)
        values = {e.name: getattr(part, e.name) for e in fields(part)}
        document[section] = {key: value for key, value in values.items() if value is not None}
    document["notes"] = list(profile.notes)
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def parse_profile(text: str, name: str) -> Profile:
    """Read a profile; raises UsageError that names the file and the key."""
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{name} is not JSON: {error}", object_name=name, hint=_HINT) from error
    if not isinstance(tree, dict) or tree.get("schema") != SCHEMA:
        raise UsageError(
            f'{name} is no profile: it has no "schema": "{SCHEMA}"', object_name=name, hint=_HINT
        )
    version = tree.get("schema_version")
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{name}: schema_version is {version!r}; this program reads {SCHEMA_VERSION}",
            object_name=name,
            hint=_HINT,
        )
    return _Reader(cast("dict[str, object]", tree), name).profile()


@dataclass(slots=True)
class _Reader:
    """One document whose schema is known."""

    tree: dict[str, object]
    name: str

    def profile(self) -> Profile:
        known = {entry.name for entry in fields(Profile)} | {"schema", "schema_version"}
        self._refuse_unknown(self.tree, known, "")
        middle = {
            f"{section}.{key}": self._number(f"{section}.{key}", value)
            for section in _SECTIONS
            for key, value in self._table(section).items()
        }
        profile = Profile(
            measured_at=self._text(self.tree, "measured_at"),
            command=self._text(self.tree, "command"),
            machine=self._machine(),
            network=_section(NetworkProfile, "network", middle),
            agent=_section(AgentProfile, "agent", middle),
            disk=_section(DiskProfile, "disk", middle),
            hashing=_section(HashingProfile, "hashing", middle),
            origin=_section(OriginProfile, "origin", middle),
            notes=self._notes(),
        )
        for section in _SECTIONS:
            part = {entry.name for entry in fields(getattr(profile, section))}
            self._refuse_unknown(self._table(section), part, f"{section}.")
        if not profile.measured_at:
            raise self._wrong("measured_at", "is missing")
        return profile

    def _machine(self) -> Machine:
        table = self._table("machine")
        self._refuse_unknown(table, {entry.name for entry in fields(Machine)}, "machine.")
        count = table.get("cpu_count", 0)
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise self._wrong("machine.cpu_count", f"is no count: {count!r}")
        return Machine(
            self._text(table, "host"),
            count,
            self._text(table, "kernel"),
            self._text(table, "python"),
        )

    def _notes(self) -> tuple[str, ...]:
        notes = self.tree.get("notes", [])
        if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
            raise self._wrong("notes", "is no list of texts")
        return tuple(cast("list[str]", notes))

    def _table(self, key: str) -> dict[str, object]:
        table = self.tree.get(key, {})
        if not isinstance(table, dict):
            raise self._wrong(key, "is no object")
        return cast("dict[str, object]", table)

    def _text(self, table: Mapping[str, object], key: str) -> str:
        text = table.get(key, "")
        if not isinstance(text, str):
            raise self._wrong(key, f"is no text: {text!r}")
        return text

    def _number(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, f"is no number: {value!r}")
        least = "zero or more" if _may_be_zero(key) else "above zero"
        if not math.isfinite(value) or value < 0 or (value == 0 and not _may_be_zero(key)):
            raise self._wrong(key, f"is {value}, not {least}")
        return float(value)

    def _refuse_unknown(self, table: Mapping[str, object], known: set[str], prefix: str) -> None:
        for key in table:
            if key not in known:
                raise self._wrong(f"{prefix}{key}", "unknown key")

    def _wrong(self, key: str, what: str) -> UsageError:
        return UsageError(f"{self.name}: {key}: {what}", object_name=key, hint=_HINT)


def _may_be_zero(key: str) -> bool:
    """Times and shares may be too small to see; a rate of nothing is a mistake."""
    return not key.endswith("bytes_per_s")


def _section(kind: type[_Section], section: str, values: Mapping[str, float]) -> _Section:
    given = {}
    for entry in fields(kind):
        key = f"{section}.{entry.name}"
        if key in values:
            given[entry.name] = values[key]
    return kind(**given)
