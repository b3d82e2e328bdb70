"""A tracker and some agents, without clock or network: stories are told with literal times.

`Fleet` owns the `Tracker` and the time; a `FakeAgent` keeps what a real one keeps between calls
(its sequence number, the leases it was given, what it holds) and says what the story makes it say.
"""

from __future__ import annotations

import random
from dataclasses import replace

from swarm.protocol.chunk_set import bits_of
from swarm.protocol.ids import Address, ChunkIndex, Identity, LeaseId, NodeId, VersionId
from swarm.protocol.tracker_api import (
    Lease,
    LeaseEnd,
    LeaseOutcome,
    LeaseProgress,
    Listen,
    ListenReply,
    Mode,
    PublishRecord,
    Report,
    ReportReply,
    VersionReport,
    VersionState,
)
from tracker.policy.catalog import Catalog
from tracker.policy.channels import ChannelBook
from tracker.policy.settings import ControllerSettings, TrackerSettings
from tracker.policy.tracker import Tracker
from tracker.policy.version_swarm import VersionSwarm

VERSION = VersionId(b"v" * 32)
CHUNK_BYTES = 256 << 10


def publish_record(
    version: VersionId = VERSION,
    *,
    chunks: int = 16,
    chunk_bytes: int = CHUNK_BYTES,
    name: str = "",
    tag: str = "",
    published_at: float = 0.0,
    names: tuple[str, ...] = (),
) -> PublishRecord:
    """A record whose sums fit a version of one file."""
    total = chunks * chunk_bytes
    return PublishRecord(
        version=version,
        name=name,
        tag=tag,
        origin="s3://models/w",
        files=1,
        bytes=total,
        unique_bytes=total,
        chunks=chunks,
        chunk_bytes=chunk_bytes,
        published_at=published_at,
        published_by="ci",
        is_validated=True,
        contains_code=False,
        warnings=(("W1", "a warning"),),
        names=names,
    )


AT_ONCE = TrackerSettings(controller=ControllerSettings(blind_first_leases=8))
"""The first agent may hold all leases of the start, so that stories need no second moment."""


class Fleet:
    """One tracker, one version, and the time."""

    def __init__(
        self,
        *,
        chunks: int = 16,
        chunk_bytes: int = CHUNK_BYTES,
        settings: TrackerSettings | None = None,
        seed: int = 1,
    ) -> None:
        self.now = 100.0
        self.chunks = chunks
        self.chunk_bytes = chunk_bytes
        self.settings = settings or AT_ONCE
        self._seed = seed
        self._epoch = 0
        self.restart()

    def restart(self) -> None:
        """A tracker with the same catalog and no soft state."""
        self._epoch += 1
        catalog = Catalog()
        catalog.load([publish_record(chunks=self.chunks, chunk_bytes=self.chunk_bytes)], [])
        self.tracker = Tracker(
            self.settings,
            epoch=self._epoch,
            rng=random.Random(self._seed),
            catalog=catalog,
            channels=ChannelBook(),
            modes={},
            started_at=self.now,
        )

    def agent(self, name: str, *, generation: int = 1, **place: str) -> FakeAgent:
        """An agent that has said nothing yet."""
        return FakeAgent(self, name, generation, zone=place.get("zone", ""))

    def joined(self, name: str, held: str | int = 0, *, nic: int = 0, zone: str = "") -> FakeAgent:
        """An agent that reported what it holds (a picture such as ``##..``, or bits) and
        listens."""
        agent = self.agent(name, zone=zone)
        agent.nic = nic
        agent.held = held if isinstance(held, int) else bits_of_picture(held)
        agent.listen()
        agent.report()
        agent.listen()
        return agent

    def at(self, now: float) -> Fleet:
        """Let time pass to `now` (seconds since the story began), with the ticks on the way."""
        end = 100.0 + now
        while True:
            deadline = self.tracker.next_deadline()
            if deadline is None or deadline >= end:
                break
            # A deadline that stays due is looked at again after a pause, as the shell does.
            self.now = max(deadline, self.now + 0.02)
            if self.now >= end:
                break
            self.tracker.tick(now=self.now)
        self.now = end
        self.tracker.tick(now=end)
        return self

    def live(self, until: float, *agents: FakeAgent) -> Fleet:
        """Let time pass while these agents report and listen every half second, as agents do."""
        while self.now < 100.0 + until:
            self.at(min(self.now - 99.5, until))
            for agent in agents:
                agent.report()
                agent.listen()
        return self

    @property
    def swarm(self) -> VersionSwarm:
        return self.tracker.swarms.by_version[VERSION]

    @property
    def leased(self) -> int:
        return self.swarm.leases.leased

    def check(self) -> None:
        """Invariants over everything."""
        for swarm in self.tracker.swarms:
            swarm.leases.check()
            held = 0
            for member in swarm.members.values():
                assert member.count == member.bits.bit_count()
                assert len(member.leases) <= member.peer.lease_count
                held |= member.bits if member.is_counted else 0
            assert held == swarm.availability.held


class FakeAgent:
    """What an agent remembers between two calls."""

    def __init__(self, fleet: Fleet, name: str, generation: int, *, zone: str = "") -> None:
        self._fleet = fleet
        self.name = name
        self.node_id = NodeId(name.encode().ljust(16, b"-"))
        self.identity = Identity(self.node_id, generation)
        self.zone = zone
        self.nic = 0
        self.held = 0
        self.sequence = 0
        self.leases: dict[LeaseId, Lease] = {}
        self.progress: dict[LeaseId, int] = {}
        self.handout: tuple[str, ...] = ()
        self.mode = Mode.AUTO
        self.seen = (0, 0)
        self.channels: tuple[str, ...] = ()

    def report(self, **changes: object) -> ReportReply:
        """A report of all that is held; `changes` replace fields of it."""
        self.sequence += 1
        fleet = self._fleet
        whole = VersionReport(
            version=VERSION,
            bits=self.held.to_bytes((fleet.chunks + 7) // 8, "little"),
            added=(),
            removed=(),
            is_ready=self.held == (1 << fleet.chunks) - 1,
        )
        report = Report(
            sequence=self.sequence,
            address=Address(f"{self.name}.test", 7000),
            zone=self.zone,
            rack="",
            nic_bytes_per_s=self.nic,
            versions=(whole,),
            leases=tuple(
                LeaseProgress(lease.lease, self.progress.get(lease.lease, 0), VERSION, lease.chunk)
                for lease in self.leases.values()
            ),
            ended=(),
            unreachable=(),
            channels=(),
            problem="",
            is_leaving=False,
        )
        # dataclasses.replace knows no types; the stories give fields their own.
        report = replace(report, **changes)  # type: ignore[arg-type]
        return fleet.tracker.report(self.identity, report, now=fleet.now)

    def listen(self) -> ListenReply | None:
        """One look at what is new; remembers it."""
        listen = Listen(self.seen, (VERSION,), self.channels)
        reply = self._fleet.tracker.listen(self.identity, listen, now=self._fleet.now)
        if reply is not None:
            self.seen = reply.seen
            for state in reply.versions:
                self._heard(state)
        return reply

    def _heard(self, state: VersionState) -> None:
        self.leases = {lease.lease: lease for lease in state.leases}
        self.handout = tuple(peer.address.host.removesuffix(".test") for peer in state.handout)
        self.mode = state.mode

    def end(
        self,
        lease: Lease,
        outcome: LeaseOutcome,
        *,
        owner: NodeId | None = None,
        retry_after_s: float | None = None,
    ) -> ReportReply:
        """Say how a lease ended, and hear what follows."""
        self.leases.pop(lease.lease, None)
        if outcome is LeaseOutcome.VERIFIED:
            self.held |= 1 << lease.chunk
        end = LeaseEnd(lease.lease, VERSION, lease.chunk, outcome, owner, retry_after_s)
        reply = self.report(ended=(end,))
        self.listen()
        return reply

    def verify(self, lease: Lease) -> None:
        self.end(lease, LeaseOutcome.VERIFIED)

    def lease_of(self, chunk: int) -> Lease:
        return next(lease for lease in self.leases.values() if lease.chunk == chunk)

    @property
    def leased_chunks(self) -> set[ChunkIndex]:
        return {lease.chunk for lease in self.leases.values()}


def bits_of_picture(picture: str) -> int:
    """``#`` is a chunk held, the first character chunk 0."""
    return bits_of(index for index, character in enumerate(picture) if character == "#")
