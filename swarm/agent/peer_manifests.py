"""Manifests from peers: which agents were named to us, and asking a few of them.

A fleet that starts at once would storm its tracker and its origin for one document that every
warm node has. Whom to ask is a matter of luck only: the digest says whether an answer is right.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable

from swarm.errors import NotFoundError, SwarmError, TrackerError
from swarm.policy.peers import KNOWN_MAX
from swarm.protocol.ids import NodeId, VersionId
from swarm.protocol.messages import PeerInfo

ASKED_MAX = 3
"""Peers asked in one attempt: one may have gone and one may be as new as we are."""


class PeerManifests:
    """A source of manifests. Owned by the agent, which tells it of every agent it hears of."""

    def __init__(
        self,
        fetch: Callable[[PeerInfo, VersionId], Awaitable[bytes]],
        *,
        seed_count: int,
        rng: random.Random,
    ) -> None:
        """`fetch` raises NotFoundError where the peer does not have it; `seed_count` agents were
        named by the operator and are expected to call or answer."""
        self._fetch = fetch
        self._seed_count = seed_count
        self._rng = rng
        # In the order in which they were last heard of.
        self.known: dict[NodeId, PeerInfo] = {}

    def learn(self, peers: Iterable[PeerInfo]) -> None:
        """Remember these; what was heard of longest ago is forgotten first."""
        for peer in peers:
            self.known.pop(peer.node_id, None)
            self.known[peer.node_id] = peer
        while len(self.known) > KNOWN_MAX:
            del self.known[next(iter(self.known))]

    async def fetch(self, version: VersionId) -> bytes:
        """One attempt. Raises NotFoundError if nobody asked has it, another SwarmError if somebody
        could not be asked."""
        failure: SwarmError = NotFoundError("no peer has the manifest")
        if self._seed_count and not self.known:
            failure = TrackerError("none of the peers named answers", is_retryable=True)
        for peer in self._rng.sample(list(self.known.values()), min(ASKED_MAX, len(self.known))):
            try:
                return await self._fetch(peer, version)
            except NotFoundError:
                continue
            except SwarmError as error:
                failure = error
        raise failure
