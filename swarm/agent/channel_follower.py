"""Following channels: which version each should serve here, and the one moment of the switch.

A target is what the tracker says; it is acted on by wanting its version, and served once that
version is READY and the channel's link was swapped. Until then the old version serves. A target
with an older revision is refused: a tracker that lost its state, or a slow second one, must not
turn a fleet back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from swarm.protocol.ids import VersionId
from swarm.protocol.tracker_api import ChannelTarget

logger = logging.getLogger(__name__)


class ChannelFollower:
    """The followed channels of one agent. Decides nothing about chunks; the agent calls it and
    acts."""

    def __init__(self, channels: Iterable[str], *, is_ready: Callable[[VersionId], bool]) -> None:
        self.channels = tuple(channels)
        self._is_ready = is_ready
        self.targets: dict[str, ChannelTarget] = {}
        # What each channel's link names, with the revision that put it there (0: from an earlier
        # run).
        self.served: dict[str, tuple[VersionId, int]] = {}
        # What they named until that version turned out damaged; linked again when it is whole.
        self._withdrawn: dict[str, tuple[VersionId, int]] = {}

    def adopt(self, channel: str, version: VersionId) -> None:
        """A link left by an earlier run: serve it, unconfirmed, until the tracker answers."""
        self.served[channel] = (version, 0)

    def aim(self, target: ChannelTarget) -> bool:
        """Take the tracker's word for a channel; True if it changed what is wanted."""
        if target.channel not in self.channels:
            return False
        known = self.targets.get(target.channel)
        if known is not None and target.revision <= known.revision:
            if target.revision < known.revision:
                logger.warning(
                    "channel %s: revision %d is older than %d, ignored",
                    target.channel,
                    target.revision,
                    known.revision,
                )
            return False
        self.targets[target.channel] = target
        if target.version is None:
            logger.info("waiting: channel %s is not set", target.channel)
        return True

    def wanted(self) -> dict[VersionId, None]:
        """Versions that channels need here: targets, and what serves until these are ready."""
        versions: dict[VersionId, None] = {}
        for target in self.targets.values():
            if target.version is not None:
                versions[target.version] = None
        for version, _ in (*self.served.values(), *self._withdrawn.values()):
            versions[version] = None
        return versions

    def due(self) -> list[tuple[str, VersionId, int]]:
        """(channel, version, revision) of each link that can be swapped now."""
        swaps = []
        for channel, (version, revision) in self._withdrawn.items():
            if self._is_ready(version):
                swaps.append((channel, version, revision))
        for channel, target in self.targets.items():
            if target.version is None or not self._is_ready(target.version):
                continue
            if self.served.get(channel) != (target.version, target.revision):
                swaps.append((channel, target.version, target.revision))
        return swaps

    def withdrawn(self, version: VersionId) -> None:
        """The version is not whole any more, and the store has taken its links away."""
        for channel, served in list(self.served.items()):
            if served[0] == version:
                logger.warning("channel %s is withdrawn: its version is damaged", channel)
                self._withdrawn[channel] = self.served.pop(channel)

    def swapped(self, channel: str, version: VersionId, revision: int) -> None:
        self._withdrawn.pop(channel, None)
        self.served[channel] = (version, revision)
        logger.info("channel %s serves %s (revision %d)", channel, version.hex()[:12], revision)

    def unset(self) -> tuple[str, ...]:
        """Channels that serve nothing here and that nothing is known of, or that are not set."""
        return tuple(
            channel
            for channel in self.channels
            if channel not in self.served
            and channel not in self._withdrawn
            and ((target := self.targets.get(channel)) is None or target.version is None)
        )

    def is_in_transit(self, version: VersionId) -> bool:
        """A channel moves to this version while an older one still serves: no reason to be
        unready."""
        return any(
            target.version == version and channel in self.served
            for channel, target in self.targets.items()
        )

    def is_confirmed(self, channel: str) -> bool:
        """The tracker has spoken since this agent started."""
        return channel in self.targets
