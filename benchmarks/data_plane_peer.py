"""One agent's data plane as a process, for `benchmarks.data_plane`: the real peer network, disk
store and policy node, without tracker and origin.

    python -m benchmarks.data_plane_peer seed CACHE MANIFEST
    python -m benchmarks.data_plane_peer fetch CACHE MANIFEST FINISHED NODE GENERATION HOST PORT

It prints ``ready NODE GENERATION HOST PORT``, waits for a line on its input, then takes part until
it is stopped. The fetching side creates the file FINISHED when the version is READY.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

import trio

from swarm.agent.decider import Decider
from swarm.agent.network_settings import NetworkSettings
from swarm.agent.peer_network import PeerNetwork
from swarm.policy import commands as order
from swarm.policy.events import (
    ChunkVerified,
    Event,
    HandoutReceived,
    ProgressSampled,
    TrackerLost,
    VersionAdded,
)
from swarm.policy.node import Node
from swarm.policy.settings import NodeSettings
from swarm.protocol.ids import Address, NodeId
from swarm.protocol.manifest import decode_manifest
from swarm.protocol.messages import PeerInfo
from swarm.store.chunk_store import VersionStore
from swarm.store.disk import DiskStore

SAMPLE_S = 0.1
NIC_BYTES_PER_S = 2e9
"""What a loopback of two cores moves; the node would learn it within seconds, which the measurement
does not have."""


@dataclass
class BenchmarkPeer:
    """One process's agent."""

    store: DiskStore
    version: VersionStore
    manifest_bytes: bytes
    is_whole: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        identity = self.store.identity
        settings = NodeSettings(
            nic_bytes_per_s=NIC_BYTES_PER_S, has_origin=False, has_tracker=False
        )
        node = Node(settings, identity.node_id, random.Random(1))
        self.decider = Decider(node, self._listen, self._observe, self._execute)
        self.network = PeerNetwork(
            identity,
            bytes(range(32)),
            NetworkSettings(listen=Address("127.0.0.1", 0)),
            {self.version.manifest.version: self.version},
            self.decider.emit,
            lambda _, __: self.manifest_bytes,
        )

    async def run(self, source: PeerInfo | None) -> None:
        """Say ready, wait for the word to go, take part for ever."""
        async with trio.open_nursery() as nursery:
            bound: Address = await nursery.start(self.network.run)
            nursery.start_soon(self.decider.run)
            identity = self.store.identity
            print("ready", identity.node_id.hex(), identity.generation, bound.host, bound.port)
            sys.stdout.flush()
            await trio.to_thread.run_sync(sys.stdin.readline)
            manifest = self.version.manifest
            held = self.version.have.bits
            self.decider.emit(VersionAdded(manifest.version, manifest.lengths, held))
            self.decider.emit(TrackerLost())
            if source is not None:
                self.decider.emit(HandoutReceived(manifest.version, (source,)))
            nursery.start_soon(self._sample)

    async def _sample(self) -> None:
        while True:
            await trio.sleep(SAMPLE_S)
            network = self.network
            sample = ProgressSampled(network.sample(), network.bytes_in, network.bytes_out)
            self.decider.emit(sample)

    def _listen(self) -> None:
        self.network.listen()

    def _observe(self, event: Event) -> None:
        if isinstance(event, ChunkVerified) and self.version.have.is_full:
            self.is_whole.set()

    def _execute(self, command: order.Command) -> None:
        match command:
            case (
                order.FetchFromOrigin()
                | order.ReportLease()
                | order.ReportUnreachable()
                | order.HashAgain()
            ):
                raise AssertionError(command)
            case _:
                self.network.execute(command)


async def take_part(cache: str, raw: bytes, finished: Path | None, *peer: str) -> None:
    store = DiskStore.open_cache(cache)
    version = store.open_version(decode_manifest(raw), raw)
    made = BenchmarkPeer(store, version, raw)
    source = None
    if peer:
        node, generation, host, port = peer
        address = Address(host, int(port))
        source = PeerInfo(NodeId(bytes.fromhex(node)), int(generation), address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run, source)
        if finished is not None:
            await made.is_whole.wait()
            await trio.to_thread.run_sync(version.publish_ready)
            await trio.to_thread.run_sync(finished.touch)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["seed", cache, manifest]:
            trio.run(take_part, cache, Path(manifest).read_bytes(), None)
        case ["fetch", cache, manifest, finished, node, generation, host, port]:
            raw = Path(manifest).read_bytes()
            trio.run(take_part, cache, raw, Path(finished), node, generation, host, port)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
