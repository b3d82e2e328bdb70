"""Which version a channel names.

A channel is created by its first set. Each change has a revision that only grows, and an agent
refuses an older one: that is what keeps a delayed answer, or a tracker restored from an old copy,
from rolling a fleet back. So the next revision is above everything stored *and* above everything
that agents report.

A change is planned here, then stored by the shell, then applied: what is told to agents is on disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swarm.errors import ConflictError, NotFoundError, UsageError
from swarm.protocol.ids import VersionId
from swarm.protocol.tracker_api import ChannelChange, ChannelTarget
from tracker.policy.catalog import check_word

REASON_CHARACTERS_MAX = 1000


@dataclass(slots=True)
class Channel:
    """One channel as it is now."""

    target: ChannelTarget
    # Tracker revision (of `listen`) at which it last changed.
    changed_at: int


class ChannelBook:
    """All channels. Small: a fleet has a handful."""

    def __init__(self) -> None:
        self._channels: dict[str, Channel] = {}
        # Highest revision that an agent says it serves.
        self._reported: dict[str, int] = {}

    def load(self, changes: Iterable[ChannelChange]) -> None:
        """The last change of each channel, at start."""
        for change in changes:
            self.apply(change, changed_at=0)

    def target(self, name: str) -> ChannelTarget:
        """Revision 0 and no version when the channel was never set."""
        channel = self._channels.get(name)
        return channel.target if channel else ChannelTarget(name, None, 0)

    def changed_at(self, name: str) -> int:
        channel = self._channels.get(name)
        return channel.changed_at if channel else 0

    def targets(self) -> tuple[ChannelTarget, ...]:
        return tuple(self._channels[name].target for name in sorted(self._channels))

    def existing(self, name: str) -> ChannelTarget:
        """Raises NotFoundError when the channel was never set."""
        if name not in self._channels:
            raise NotFoundError(
                f"channel {name[:200]} is not set",
                object_name=name[:200],
                hint="see `swarm channel list`; `swarm channel set` creates one",
            )
        return self._channels[name].target

    def reported(self, name: str, revision: int) -> None:
        """An agent serves this revision."""
        if revision > self._reported.get(name, 0) and name in self._channels:
            self._reported[name] = revision

    def plan(
        self,
        name: str,
        version: VersionId | None,
        *,
        reason: str,
        changed_by: str,
        changed_at: float,
        expected_revision: int | None,
    ) -> ChannelChange | None:
        """The change to store; None when the channel names that version already. Raises UsageError,
        and ConflictError when somebody else changed the channel since `expected_revision`."""
        check_word(name, "channel")
        if len(reason) > REASON_CHARACTERS_MAX:
            raise UsageError(f"a reason has at most {REASON_CHARACTERS_MAX} characters")
        current = self.target(name)
        if current.revision and current.version == version:
            return None
        if expected_revision is not None and expected_revision != current.revision:
            raise ConflictError(
                f"channel {name} is at revision {current.revision}, not {expected_revision}",
                object_name=name,
                hint="somebody changed it meanwhile; see `swarm channel history` and decide again",
            )
        revision = max(current.revision, self._reported.get(name, 0)) + 1
        return ChannelChange(name, revision, version, changed_at, changed_by, reason)

    def apply(self, change: ChannelChange, *, changed_at: int) -> None:
        """Take in a change that was stored."""
        target = ChannelTarget(change.channel, change.version, change.revision)
        assert target.revision > self.target(change.channel).revision, change
        self._channels[change.channel] = Channel(target, changed_at)
