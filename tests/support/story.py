"""Stories for a `Node`: literal times, named peers, pictures of who holds what.

A picture has one row per peer and one column per chunk; ``#`` is held, ``.`` is not. The row `me`
is the node itself::

    story = Story.of('''
        me  ..#.
        B   ##..
    ''')
"""

from __future__ import annotations

import random

from swarm.policy.commands import (
    CancelTransfer,
    Command,
    FetchFromOrigin,
    ReportLease,
    RequestChunk,
    SendHave,
)
from swarm.policy.events import (
    BitfieldReceived,
    ChunkVerified,
    Event,
    HandoutReceived,
    HavesReceived,
    LeasesReceived,
    PeerConnected,
    PeerLost,
    ProgressSampled,
    TransferId,
    VersionAdded,
)
from swarm.policy.node import Node
from swarm.policy.settings import NodeSettings
from swarm.protocol.ids import Address, ChunkIndex, LeaseId, NodeId, VersionId
from swarm.protocol.messages import PeerInfo
from swarm.protocol.tracker_api import Lease

VERSION = VersionId(b"v" * 32)
OTHER_VERSION = VersionId(b"w" * 32)
CHUNK_BYTES = 1_000_000
NIC_BYTES_PER_S = 1e6
"""One chunk a second, so that times in stories are easy to follow."""
ME = NodeId(b"M" * 16)


def peer_id(name: str) -> NodeId:
    return NodeId(name.encode()[:1] * 16)


def peer_info(name: str, *, generation: int = 1, zone: str = "", rack: str = "") -> PeerInfo:
    address = Address("10.0.0.1", 7000 + ord(name[0]))
    return PeerInfo(peer_id(name), generation, address, zone, rack)


def bits(row: str) -> int:
    """``..#.`` → chunk 2."""
    return sum(1 << chunk for chunk, mark in enumerate(row) if mark == "#")


def picture(text: str) -> dict[str, str]:
    rows: dict[str, str] = {}
    for line in text.strip().splitlines():
        name, row = line.split()
        rows[name] = row
    return rows


class Story:
    """A node, and what happens to it; `at` moves time on."""

    def __init__(
        self,
        held: str,
        settings: NodeSettings | None = None,
        *,
        seed: int = 1,
        is_added: bool = True,
    ) -> None:
        self.node = Node(settings or default_settings(), ME, random.Random(seed))
        self.now = 0.0
        self.version = VERSION
        # What adding the version led to.
        self.first: list[Command] = []
        if is_added:
            self.add(held)

    def add(self, held: str) -> None:
        lengths = (CHUNK_BYTES,) * len(held)
        self.first = self.tell(VersionAdded(self.version, lengths, bits(held)))

    @classmethod
    def of(cls, text: str, settings: NodeSettings | None = None, *, seed: int = 1) -> Story:
        """A node among linked neighbours as in the picture, and then the version is added."""
        rows = picture(text)
        held = rows.pop("me")
        story = cls(held, settings, seed=seed, is_added=False)
        for name, row in rows.items():
            story.link(name, row)
        story.add(held)
        return story

    def tell(self, *events: Event, at: float | None = None) -> list[Command]:
        if at is not None:
            self.now = at
        commands = self.node.handle(*events, now=self.now)
        self.node.check_invariants()
        return commands

    def link(
        self,
        name: str,
        row: str = "",
        *,
        load: int = 0,
        nic: int = 0,
        zone: str = "",
        rack: str = "",
    ) -> list[Command]:
        """A neighbour appears and says what it holds; returns what is ordered for that."""
        info = peer_info(name, zone=zone, rack=rack)
        event = PeerConnected(info, nic, is_outgoing=True, rtt_s=0.001)
        commands = self.tell(event)
        return commands + self.tell(BitfieldReceived(peer_id(name), self.version, bits(row), load))

    def lose(self, name: str, *, is_clean: bool = False) -> list[Command]:
        return self.tell(PeerLost(peer_id(name), is_clean))

    def haves(
        self, name: str, row: str, *, load: int = 0, at: float | None = None
    ) -> list[Command]:
        return self.tell(HavesReceived(peer_id(name), self.version, bits(row), load), at=at)

    def know(self, *names: str, at: float | None = None) -> list[Command]:
        return self.tell(HandoutReceived(self.version, tuple(map(peer_info, names))), at=at)

    def verify(self, request: RequestChunk | FetchFromOrigin, *, at: float) -> list[Command]:
        event = ChunkVerified(request.version, request.chunk, request.transfer)
        return self.tell(event, at=at)

    def sample(self, *received: tuple[TransferId, int], at: float) -> list[Command]:
        total = sum(count for _, count in received)
        return self.tell(ProgressSampled(received, total, 0), at=at)

    def lease(self, *leases: tuple[int, int], at: float | None = None) -> list[Command]:
        """The tracker's whole list, as (lease, chunk)."""
        records = tuple(Lease(LeaseId(lease), ChunkIndex(chunk), 2) for lease, chunk in leases)
        return self.tell(LeasesReceived(self.version, records), at=at)


def default_settings() -> NodeSettings:
    return NodeSettings(nic_bytes_per_s=NIC_BYTES_PER_S, session_count=2)


def requests(commands: list[Command]) -> list[RequestChunk]:
    return [command for command in commands if isinstance(command, RequestChunk)]


def only_request(commands: list[Command]) -> RequestChunk:
    (request,) = requests(commands)
    return request


def fetches(commands: list[Command]) -> list[FetchFromOrigin]:
    return [command for command in commands if isinstance(command, FetchFromOrigin)]


def haves(commands: list[Command]) -> list[SendHave]:
    return [command for command in commands if isinstance(command, SendHave)]


def cancels(commands: list[Command]) -> list[TransferId]:
    return [command.transfer for command in commands if isinstance(command, CancelTransfer)]


def reports(commands: list[Command]) -> list[ReportLease]:
    return [command for command in commands if isinstance(command, ReportLease)]
