"""Agents without a policy: a real peer network, a memory store, and a list of what happened."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import trio

from swarm.agent.network_settings import NetworkSettings
from swarm.agent.peer_network import PeerNetwork
from swarm.errors import SwarmError
from swarm.policy import commands as order
from swarm.policy.events import ChunkRequested, Event, PeerConnected, TransferId
from swarm.protocol.ids import Address, ChunkIndex, Identity, NodeId, SessionId, VersionId
from swarm.protocol.messages import DocumentKind, PeerInfo
from swarm.store.chunk_store import VersionStore
from swarm.store.disk import DiskStore
from swarm.store.memory import MemoryStore
from tests.support.versions import MadeVersion, fill

KEY = bytes(range(32))
WAIT_S = 5.0
"""For anything to happen on loopback."""

Fact = TypeVar("Fact")


@dataclass
class PolicylessPeer:
    """One agent of a test. Serves what is asked for unless told to leave that to the test."""

    network: PeerNetwork
    stores: dict[VersionId, VersionStore]
    # Manifests that it hands out.
    documents: dict[VersionId, bytes]
    events: list[Event] = field(default_factory=list)
    # What neighbours named.
    named: list[PeerInfo] = field(default_factory=list)
    problems: list[SwarmError] = field(default_factory=list)
    address: Address = field(default_factory=lambda: Address("", 0))
    serves_at_once: bool = True
    _changed: trio.Event = field(default_factory=trio.Event)
    _seen: int = 0

    @property
    def info(self) -> PeerInfo:
        identity = self.network.identity
        return PeerInfo(identity.node_id, identity.generation, self.address)

    @property
    def node_id(self) -> NodeId:
        return self.network.identity.node_id

    def happened(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()
        if self.serves_at_once and isinstance(event, ChunkRequested):
            self.start(event)

    def start(self, event: ChunkRequested) -> None:
        self.network.execute(
            order.StartUpload(event.peer, event.session, event.version, event.chunk)
        )

    async def wait_for(
        self, kind: type[Fact], matches: Callable[[Fact], bool] = lambda _: True
    ) -> Fact:
        """The first event of this kind that no earlier call returned, now or soon."""
        with trio.fail_after(WAIT_S):
            while True:
                for index, event in enumerate(self.events):
                    if isinstance(event, kind) and matches(event):
                        del self.events[index]
                        return event
                self._changed = trio.Event()
                await self._changed.wait()

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)

    def request(
        self,
        source: PolicylessPeer,
        version: VersionId,
        chunk: int,
        *,
        transfer: int,
        session: int = 1,
        stripes: int = 1,
    ) -> TransferId:
        self.network.execute(
            order.RequestChunk(
                TransferId(transfer),
                source.node_id,
                SessionId(session),
                version,
                ChunkIndex(chunk),
                stripes,
            )
        )
        return TransferId(transfer)


def node_id(name: str) -> NodeId:
    return NodeId(name.encode().ljust(16, b"."))


@asynccontextmanager
async def peer(
    name: str,
    *versions: MadeVersion,
    holds: Iterable[int] | None = (),
    generation: int = 1,
    key: bytes = KEY,
    settings: NetworkSettings | None = None,
    host: str = "127.0.0.1",
    cache: Path | None = None,
) -> AsyncIterator[PolicylessPeer]:
    """A running agent that knows `versions` and holds these chunks of them (None: all), in memory
    or below `cache`."""
    store = MemoryStore(1 << 30) if cache is None else DiskStore.open_cache(str(cache))
    stores: dict[VersionId, VersionStore] = {}
    documents: dict[VersionId, bytes] = {}
    for version in versions:
        stores[version.manifest.version] = opened = store.open_version(
            version.manifest, version.manifest_bytes
        )
        documents[version.manifest.version] = version.manifest_bytes
        fill(opened, version, holds)

    def document(version: VersionId, kind: DocumentKind) -> bytes | None:
        return documents.get(version) if kind is DocumentKind.MANIFEST else None

    made: PolicylessPeer
    network = PeerNetwork(
        Identity(node_id(name), generation),
        key,
        dataclasses.replace(settings or NetworkSettings(), listen=Address(host, 0)),
        stores,
        lambda event: made.happened(event),
        document,
        problem=lambda _, error: made.problems.append(error),
        on_peers=lambda _, peers: made.named.extend(peers),
    )
    made = PolicylessPeer(network, stores, documents)
    async with trio.open_nursery() as nursery:
        made.address = await nursery.start(network.run)
        yield made
        nursery.cancel_scope.cancel()
    for held in stores.values():
        held.close()
    store.close()


@asynccontextmanager
async def connected_pair(
    version: MadeVersion, *, settings: NetworkSettings | None = None
) -> AsyncIterator[tuple[PolicylessPeer, PolicylessPeer]]:
    """A seed that holds everything and a neighbour that holds nothing."""
    async with (
        peer("seed", version, holds=None, settings=settings) as seed,
        peer("fetcher", version, settings=settings) as fetcher,
    ):
        await connect(fetcher, seed)
        yield seed, fetcher


async def connect(opener: PolicylessPeer, acceptor: PolicylessPeer) -> None:
    opener.network.execute(order.ConnectPeer(acceptor.info))
    await opener.wait_for(PeerConnected)
    await acceptor.wait_for(PeerConnected)
