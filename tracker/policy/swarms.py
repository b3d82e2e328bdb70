"""All versions that somebody takes part in, and which agent is in which of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from swarm.protocol.ids import LeaseId, VersionId
from swarm.protocol.tracker_api import Mode, VersionReport
from tracker.policy.catalog import Catalog
from tracker.policy.controller import OriginThrottle
from tracker.policy.members import Member
from tracker.policy.membership import Peer
from tracker.policy.settings import TrackerSettings
from tracker.policy.version_swarm import VersionSwarm

EPOCH_SHIFT = 40
"""A lease id is its tracker's epoch and a counter: unique over restarts within 63 bits."""
CHUNK_COUNT_MAX = 1 << 18
"""As many chunks as a manifest may have."""


class Swarms:
    """Makes and drops `VersionSwarm`s; a version with no member has no soft state."""

    def __init__(
        self,
        settings: TrackerSettings,
        rng: random.Random,
        catalog: Catalog,
        modes: Mapping[VersionId, Mode],
        *,
        epoch: int,
    ) -> None:
        assert 0 < epoch < 1 << (63 - EPOCH_SHIFT), epoch
        self.by_version: dict[VersionId, VersionSwarm] = {}
        self._settings = settings
        self._rng = rng
        self._catalog = catalog
        self._modes = dict(modes)
        self._throttles: dict[str, OriginThrottle] = {}
        self._epoch = epoch
        self._lease_count = 0

    def of(self, peer: Peer) -> list[tuple[VersionSwarm, Member]]:
        """Where an agent takes part."""
        return [
            (self.by_version[version], self.by_version[version].members[peer.node_id])
            for version in peer.joined
        ]

    def find(
        self, version: VersionId, peer: Peer
    ) -> tuple[VersionSwarm, Member] | tuple[None, None]:
        """An agent's membership in one version, if it has one."""
        if version not in peer.joined:
            return None, None
        swarm = self.by_version[version]
        return swarm, swarm.members[peer.node_id]

    def join(
        self, peer: Peer, version: VersionId, said: VersionReport | None, *, now: float
    ) -> tuple[VersionSwarm, Member]:
        """The agent takes part from now on, if it did not before."""
        swarm = self._swarm(version, said)
        member = swarm.members.get(peer.node_id)
        if member is None:
            member = swarm.join(peer, now=now)
            peer.joined[version] = None
        return swarm, member

    def leave(self, peer: Peer, version: VersionId, *, now: float) -> None:
        swarm = self.by_version[version]
        swarm.leave(peer.node_id, now=now)
        del peer.joined[version]
        if not swarm.members:
            del self.by_version[version]

    def chunk_count(self, said: VersionReport) -> int:
        """Chunks of a version: by the catalog, by what was said first, or by this report; 0 when
        nobody knows."""
        record = self._catalog.get(said.version)
        if record is not None:
            return record.chunks
        swarm = self.by_version.get(said.version)
        if swarm is not None and swarm.chunk_count:
            return swarm.chunk_count
        return said.chunk_count if said.chunk_bytes else 0

    def mode(self, version: VersionId) -> Mode:
        return self._modes.get(version, Mode.AUTO)

    def set_mode(self, version: VersionId, mode: Mode) -> None:
        self._modes[version] = mode
        if version in self.by_version:
            self.by_version[version].set_mode(mode)

    def registered(self, version: VersionId) -> None:
        """The catalog learned of a version that agents may be asking for already."""
        if version in self.by_version:
            self._swarm(version, None)

    def is_of_this_epoch(self, lease: LeaseId) -> bool:
        return lease >> EPOCH_SHIFT == self._epoch

    def __iter__(self) -> Iterator[VersionSwarm]:
        return iter(self.by_version.values())

    def _swarm(self, version: VersionId, said: VersionReport | None) -> VersionSwarm:
        """The swarm of a version: made when first spoken of, and made anew once somebody knows how
        many chunks there are. Its members then report their bits into the new one."""
        swarm = self.by_version.get(version)
        if swarm is not None and swarm.chunk_count:
            return swarm
        record = self._catalog.get(version)
        count, chunk_bytes = (record.chunks, record.chunk_bytes) if record else (0, 0)
        if record is None and said is not None:
            count, chunk_bytes = self.chunk_count(said), said.chunk_bytes
        if swarm is None or count:
            fresh = self._make(version, count, chunk_bytes, record.origin if record else "")
            for member in swarm.members.values() if swarm else ():
                fresh.join(member.peer, now=member.joined_at)
            swarm = self.by_version[version] = fresh
        return swarm

    def _make(
        self, version: VersionId, chunk_count: int, chunk_bytes: int, origin: str
    ) -> VersionSwarm:
        throttle = self._throttles.setdefault(origin, OriginThrottle(self._settings.controller))
        swarm = VersionSwarm(
            version,
            self._settings,
            self._rng,
            chunk_count=chunk_count,
            chunk_bytes=chunk_bytes,
            origin=origin,
            throttle=throttle,
            new_lease_id=self._new_lease_id,
        )
        swarm.mode = self.mode(version)
        return swarm

    def _new_lease_id(self) -> LeaseId:
        self._lease_count += 1
        return LeaseId(self._epoch << EPOCH_SHIFT | self._lease_count)
