"""The tracker's decisions, call by call: what an agent says, what it hears, what operators set.

Plain methods with `now` (seconds, monotonic); no clock, no network, one `random.Random`. The shell
calls `report` and `listen` for agents, `tick` at `next_deadline`, and after each of them wakes the
listeners that `take_changed` names. The simulator calls the same methods from its event heap.

**Delivery** is at least once and harmless when repeated: a listen answer is state, never a delta; a
report has (generation, sequence), and one that is older than the last changes nothing. After a
restart the tracker knows nobody: reports are answered with a request for full bit sets, leases of
the former life go on if their holders still list them, and no new ones are granted until one report
interval has passed, as nobody knows yet who holds what.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from swarm.errors import UsageError
from swarm.protocol.chunk_set import bits_of
from swarm.protocol.ids import Identity, NodeId, VersionId
from swarm.protocol.tracker_api import (
    ChannelChange,
    ChannelTarget,
    LeaseEnd,
    LeaseProgress,
    Listen,
    ListenReply,
    Mode,
    Report,
    ReportReply,
    VersionState,
)
from tracker.policy.catalog import Catalog
from tracker.policy.channels import ChannelBook
from tracker.policy.members import Member
from tracker.policy.membership import Membership, Peer
from tracker.policy.settings import TrackerSettings
from tracker.policy.subscriptions import Subscription, Subscriptions
from tracker.policy.swarms import CHUNK_COUNT_MAX, Swarms
from tracker.policy.version_swarm import VersionSwarm

VERSIONS_PER_AGENT_MAX = 64
"""An agent serves a handful of versions; each costs memory here."""
_SUBSCRIPTION_KEPT_S = 60.0


@dataclass(frozen=True, slots=True)
class TrackerStatistics:
    """Sizes, for metrics."""

    peers: int
    versions: int
    leases_live: int
    lease_holders: int
    revision: int


class Tracker:
    """All soft state. One writer: the shell calls it from one task at a time."""

    def __init__(
        self,
        settings: TrackerSettings,
        *,
        epoch: int,
        rng: random.Random,
        catalog: Catalog,
        channels: ChannelBook,
        modes: Mapping[VersionId, Mode],
        started_at: float,
    ) -> None:
        self.epoch = epoch
        self.catalog = catalog
        self.channels = channels
        self.membership = Membership(settings.membership)
        self.swarms = Swarms(settings, rng, catalog, modes, epoch=epoch)
        self._settings = settings
        self._subscriptions = Subscriptions()
        self._revision = 1
        self._started_at = started_at
        self._granting_from = started_at
        self._changed: dict[NodeId, None] = {}
        # Counted at each tick: it sets the pace of reports, no more.
        self._lease_holders = 0
        self._forget_at = started_at

    # What agents say.

    def report(self, identity: Identity, report: Report, *, now: float) -> ReportReply:
        """Take in a report; raises ConflictError for a boot that has a successor, UsageError when
        the report contradicts what is known of a version."""
        self.membership.check_generation(identity)
        peer = self.membership.peers.get(identity.node_id)
        if peer is not None and identity.generation > peer.info.generation:
            self._remove(peer, now)
            peer = None
        if report.is_leaving:
            return self._bye(identity, peer, report, now)
        if peer is not None and report.sequence <= peer.sequence:
            self.membership.touch(peer, now=now)
            return ReportReply(needs_resync=False, interval_s=peer.interval_s)
        self._check(report)
        has_gap = peer is not None and report.sequence > peer.sequence + 1
        peer = self._admit_or_renew(identity, peer, report, now)
        needs_resync = self._take_versions(peer, report, now) or has_gap
        self._take_leases(peer, report, now)
        self._take_accusations(peer, report, now)
        self._take_health(peer, report)
        self._advance([swarm for swarm, _ in self.swarms.of(peer)], now)
        self.membership.set_interval(peer, now=now, lease_holders=self._lease_holders)
        return ReportReply(needs_resync=needs_resync, interval_s=peer.interval_s)

    def listen(self, identity: Identity, listen: Listen, *, now: float) -> ListenReply | None:
        """What is newer than `seen`; None when nothing is: ask again when `take_changed` names the
        node. Raises ConflictError for a boot that has a successor."""
        self.membership.check_generation(identity)
        if len(listen.versions) + len(listen.channels) > 2 * VERSIONS_PER_AGENT_MAX:
            raise UsageError(f"an agent may follow {VERSIONS_PER_AGENT_MAX} versions and channels")
        subscription = self._subscriptions.renew(
            identity, listen, revision=self._next_revision(), now=now
        )
        peer = self.membership.peers.get(identity.node_id)
        if peer is not None and peer.info.generation == identity.generation:
            was_deaf = now - peer.listened_at > self._settings.membership.listener_kept_s
            peer.listened_at = now
            self._join_wanted(peer, subscription, now)
            if was_deaf:
                self._advance([swarm for swarm, _ in self.swarms.of(peer)], now)
        epoch, revision = listen.seen
        since = revision if epoch == self.epoch else 0
        versions = self._news_of_versions(peer, subscription, since, now)
        channels = self._news_of_channels(subscription, since)
        if not versions and not channels:
            return None
        return ListenReply((self.epoch, self._revision), versions, channels)

    def stopped_listening(self, identity: Identity) -> None:
        """The connection of the node's last listen closed: no leases until it listens again."""
        peer = self.membership.peers.get(identity.node_id)
        if peer is not None and peer.info.generation == identity.generation:
            peer.listened_at = float("-inf")

    def nothing_new(self, listen: Listen) -> ListenReply:
        """The answer to a listen that was held to its end."""
        epoch, revision = listen.seen
        seen = (self.epoch, revision if epoch == self.epoch else self._revision)
        return ListenReply(seen, (), ())

    # What operators set.

    def set_mode(self, version: VersionId, mode: Mode, *, now: float) -> None:
        self.swarms.set_mode(version, mode)
        self._advance(self.swarms, now)

    def version_registered(self, version: VersionId, *, now: float) -> None:
        """The catalog knows a version now that agents may already ask for."""
        self.swarms.registered(version)
        self._advance(self.swarms, now)

    def change_channel(self, change: ChannelChange) -> None:
        """A channel's new target, stored already: its followers hear of it."""
        self.channels.apply(change, changed_at=self._next_revision())
        for node_id in self._subscriptions.followers(change.channel):
            self._changed[node_id] = None

    # What time does.

    def tick(self, *, now: float) -> None:
        """Expire, release, probe and grant whatever is due."""
        for peer in self.membership.take_expired(now=now):
            self._remove(peer, now)
        if now >= self._forget_at:
            self._forget_at = now + _SUBSCRIPTION_KEPT_S / 4
            self._subscriptions.forget_silent(before=now - _SUBSCRIPTION_KEPT_S)
        self._lease_holders = sum(1 for peer in self.membership.peers.values() if peer.lease_count)
        self._advance(self.swarms, now)

    def next_deadline(self) -> float | None:
        """When `tick` has something to do; None while nobody is there."""
        deadlines = [swarm.next_deadline() for swarm in self.swarms]
        deadlines.append(self.membership.next_deadline())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def take_changed(self) -> tuple[NodeId, ...]:
        """Agents that have something to hear since the last call."""
        changed = tuple(self._changed)
        self._changed.clear()
        return changed

    def statistics(self) -> TrackerStatistics:
        return TrackerStatistics(
            peers=len(self.membership.peers),
            versions=len(self.swarms.by_version),
            leases_live=sum(len(swarm.leases.live) for swarm in self.swarms),
            lease_holders=self._lease_holders,
            revision=self._revision,
        )

    # A report, part by part.

    def _bye(
        self, identity: Identity, peer: Peer | None, report: Report, now: float
    ) -> ReportReply:
        """The agent leaves; a second Bye, or one of an unknown agent, changes nothing."""
        if peer is not None:
            for end in report.ended:
                self._end_lease(peer, end, now)
            self._remove(peer, now)
            self._advance(self.swarms, now)
        self._subscriptions.forget(identity.node_id)
        return ReportReply(
            needs_resync=False, interval_s=self._settings.membership.report_interval_s
        )

    def _check(self, report: Report) -> None:
        """Refuse a report that cannot be true before anything of it is taken in."""
        if len(report.versions) > VERSIONS_PER_AGENT_MAX:
            raise UsageError(f"a report may name {VERSIONS_PER_AGENT_MAX} versions")
        for said in report.versions:
            count = self.swarms.chunk_count(said)
            if said.chunk_count and said.chunk_count != count:
                raise UsageError(
                    f"version {said.version.hex()} has {count} chunks, not {said.chunk_count}"
                )
            if count > CHUNK_COUNT_MAX:
                raise UsageError(f"a version has {CHUNK_COUNT_MAX} chunks at most, not {count}")
            if not count:
                continue
            if said.bits is not None:
                _check_bits(said.bits, count)
            if any(chunk >= count for chunk in (*said.added, *said.removed)):
                raise UsageError(f"version {said.version.hex()} has {count} chunks only")

    def _admit_or_renew(
        self, identity: Identity, peer: Peer | None, report: Report, now: float
    ) -> Peer:
        if peer is not None:
            if self.membership.renew(peer, report, now=now):
                for swarm, _ in self.swarms.of(peer):
                    swarm.moved(peer.node_id)
            return peer
        resync_s = self._settings.leases.resync_s
        if report.sequence > 1 and now - self._started_at < resync_s:
            # It reported to our former life: others will, and then we know who holds what.
            self._granting_from = self._started_at + resync_s
        peer = self.membership.admit(identity, report, now=now)
        subscription = self._subscriptions.get(identity.node_id)
        if subscription is not None and subscription.generation == identity.generation:
            peer.listened_at = subscription.heard_at
            self._join_wanted(peer, subscription, now)
        return peer

    def _take_versions(self, peer: Peer, report: Report, now: float) -> bool:
        """True when a full bit set is needed."""
        needs_resync = False
        peer.versions = {said.version: None for said in report.versions}
        for said in report.versions:
            swarm, member = self.swarms.join(peer, said.version, said, now=now)
            member.is_ready = said.is_ready
            if not swarm.chunk_count:
                continue
            if said.bits is not None:
                swarm.set_bits(member, int.from_bytes(said.bits, "little"), now=now)
            elif member.has_reported:
                added, removed = bits_of(said.added), bits_of(said.removed)
                swarm.change_bits(member, added, removed, now)
            else:
                needs_resync = True
        self._leave_unwanted(peer, now)
        return needs_resync

    def _take_leases(self, peer: Peer, report: Report, now: float) -> None:
        for end in report.ended:
            self._end_lease(peer, end, now)
        listed = {progress.lease for progress in report.leases}
        for progress in report.leases:
            self._adopt(peer, progress, now)
        for swarm, member in self.swarms.of(peer):
            for progress in report.leases:
                swarm.ends.progress(member, progress, now=now)
            swarm.ends.listed(member, listed, now=now)

    def _adopt(self, peer: Peer, progress: LeaseProgress, now: float) -> None:
        """Take over a lease of a former epoch."""
        if progress.version is None or self.swarms.is_of_this_epoch(progress.lease):
            return
        swarm, member = self.swarms.find(progress.version, peer)
        if swarm is not None and member is not None and progress.lease not in member.leases:
            swarm.adopt(member, progress, now=now)

    def _end_lease(self, peer: Peer, end: LeaseEnd, now: float) -> None:
        swarm, member = self.swarms.find(end.version, peer)
        if swarm is None or member is None or end.chunk >= swarm.chunk_count:
            return
        owner = swarm.members.get(end.owner) if end.owner else None
        swarm.ends.end(member, end, owner, now=now)

    def _take_accusations(self, peer: Peer, report: Report, now: float) -> None:
        for target in report.unreachable:
            accused = self.membership.peers.get(target)
            is_fact = self.membership.accuse(peer, target, now=now)
            if accused is None or target == peer.node_id:
                continue
            for swarm, _ in self.swarms.of(peer):
                if target in swarm.members:
                    swarm.cannot_reach(peer.node_id, target)
            if is_fact:
                self._remove(accused, now)

    def _take_health(self, peer: Peer, report: Report) -> None:
        peer.problem = report.problem
        peer.channels = dict(report.channels)
        for channel, revision in report.channels:
            self.channels.reported(channel, revision)

    # Who is in which swarm.

    def _join_wanted(self, peer: Peer, subscription: Subscription, now: float) -> None:
        for version in subscription.versions:
            self.swarms.join(peer, version, None, now=now)
        self._leave_unwanted(peer, now)
        self._collect()

    def _leave_unwanted(self, peer: Peer, now: float) -> None:
        """Take the agent out of versions that it neither reports nor listens for."""
        subscription = self._subscriptions.get(peer.node_id)
        wanted = subscription.versions if subscription else {}
        for version in list(peer.joined):
            if version not in peer.versions and version not in wanted:
                self.swarms.leave(peer, version, now=now)

    def _remove(self, peer: Peer, now: float) -> None:
        for version in list(peer.joined):
            self.swarms.leave(peer, version, now=now)
        self.membership.remove(peer)

    # What agents hear.

    def _advance(self, swarms: Iterable[VersionSwarm], now: float) -> None:
        """Let these swarms do what is due, and collect who must hear of it."""
        for swarm in swarms:
            swarm.step(now=now)
            if now >= self._granting_from:
                swarm.grant(now=now)
        self._collect()

    def _collect(self) -> None:
        for swarm in self.swarms:
            if not swarm.changed:
                continue
            revision = self._next_revision()
            for node_id in swarm.changed:
                swarm.members[node_id].changed_at = revision
                self._changed[node_id] = None
            swarm.changed.clear()

    def _news_of_versions(
        self, peer: Peer | None, subscription: Subscription, since: int, now: float
    ) -> tuple[VersionState, ...]:
        """Nothing for an agent that has not reported: its leases of a former life of ours would
        look revoked to it."""
        if peer is None:
            return ()
        return tuple(
            self._state(swarm, member, now)
            for swarm, member in self.swarms.of(peer)
            if member.changed_at > since
        )

    def _state(self, swarm: VersionSwarm, member: Member, now: float) -> VersionState:
        node_id = member.peer.node_id
        told = swarm.handouts.told(node_id) if swarm.handouts.is_member(node_id) else ()
        return VersionState(
            version=swarm.version,
            handout=tuple(swarm.members[other].peer.info for other in told),
            leases=swarm.leases_of(member, now=now),
            mode=swarm.mode,
            is_zoned=swarm.is_zoned,
        )

    def _news_of_channels(
        self, subscription: Subscription, since: int
    ) -> tuple[ChannelTarget, ...]:
        return tuple(
            self.channels.target(channel)
            for channel, subscribed_at in subscription.channels.items()
            if max(self.channels.changed_at(channel), subscribed_at) > since
        )

    def _next_revision(self) -> int:
        self._revision += 1
        return self._revision


def _check_bits(raw: bytes, count: int) -> None:
    if len(raw) != (count + 7) // 8 or int.from_bytes(raw, "little") >> count:
        raise UsageError(f"a bit set of {len(raw)} bytes does not fit {count} chunks")
