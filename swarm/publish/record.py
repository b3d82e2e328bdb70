"""What a publication is asked for, what it tells on the way, and what it hands back."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from swarm.protocol.ids import VersionId
from swarm.protocol.tracker_api import PublishRecord
from swarm.publish.skip_rules import Skipped, SkipRules
from swarm.publish.validate import ValidationRules


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """The publisher's choice."""

    # "" publishes without a name.
    name: str = ""
    tag: str = ""
    # Overrides the choice by size; None chooses.
    chunk_bytes: int | None = None
    # The chunk size of an earlier version of the same name, kept where it still suits, so that
    # equal chunks of the two versions have equal digests.
    previous_chunk_bytes: int | None = None
    # The directory is a prefix of the origin, whose objects are published where they lie.
    is_in_place: bool = False
    skip: SkipRules = field(default_factory=SkipRules)
    validation: ValidationRules = field(default_factory=ValidationRules)
    # Who publishes, for the record; the command line fills in user@host.
    published_by: str = ""


class Phase(enum.Enum):
    """What a publication is doing, in this order."""

    SCAN = "scan"
    VALIDATE = "validate"
    HASH = "hash"
    UPLOAD = "upload"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class PublishProgress:
    """How far it has come; reported at each change of phase and ten times a second, from the loop
    that runs `publish`."""

    phase: Phase
    # Bytes of this phase; 0 of 0 where a phase is not counted in bytes.
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class PublishResult:
    """A version that exists."""

    version: VersionId
    name: str
    tag: str
    files: int
    # Over all files, and over unique chunks.
    total_bytes: int
    unique_bytes: int
    chunks: int
    chunk_bytes: int
    # Payload and documents that were stored by this run; 0 if all was there.
    uploaded_bytes: int
    # Payload that was at the store already: equal files, and parts of an interrupted upload.
    reused_bytes: int
    seconds: float
    # (stable id, text) pairs.
    warnings: tuple[tuple[str, str], ...]
    skipped: tuple[Skipped, ...]
    # For the tracker.
    record: PublishRecord
    manifest_bytes: bytes
