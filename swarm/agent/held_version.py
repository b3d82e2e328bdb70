"""One version at this agent: its documents, its handle in the store, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from swarm.protocol.ids import ChunkIndex, VersionId
from swarm.protocol.manifest import Manifest
from swarm.store.chunk_store import VersionStore


@dataclass(slots=True)
class HeldVersion:
    """A version that is open in the store. The agent owns it; one task at a time changes it."""

    version: VersionId
    manifest: Manifest
    manifest_bytes: bytes
    store: VersionStore
    # Chunks whose verification this agent has heard of: what is announced and reported. The store's
    # own set runs ahead of it by the events in the queue.
    bits: int
    is_ready: bool
    # Set once DURABLE is written, or making it ready or durable failed (`Shelf.problems` says how).
    durable: trio.Event = field(default_factory=trio.Event)

    @property
    def is_whole(self) -> bool:
        return self.bits.bit_count() == len(self.manifest.lengths)

    def hold(self, chunk: ChunkIndex) -> bool:
        """Note a verified chunk; False if it was noted before."""
        if self.bits >> chunk & 1:
            return False
        self.bits |= 1 << chunk
        return True

    def drop(self, chunk: ChunkIndex) -> bool:
        """Note a chunk that lost its digest; False if it was not held."""
        if not self.bits >> chunk & 1:
            return False
        self.bits &= ~(1 << chunk)
        return True
