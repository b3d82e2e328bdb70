"""What each agent wants to hear of, and since when there is something new for it.

One counter, the revision, grows with every change anywhere. An agent's `seen` is the revision of
its last answer; whatever changed later is news. A new epoch (the tracker started again) makes all
`seen` old.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from swarm.errors import ConflictError
from swarm.protocol.ids import Identity, NodeId, VersionId
from swarm.protocol.tracker_api import Listen


@dataclass(slots=True)
class Subscription:
    """One agent's interest."""

    generation: int
    heard_at: float
    versions: dict[VersionId, None] = field(default_factory=dict)
    # Channel → revision counter when it was subscribed to.
    channels: dict[str, int] = field(default_factory=dict)


class Subscriptions:
    """Of all agents that listen; `Tracker` alone calls it."""

    def __init__(self) -> None:
        self._by_node: dict[NodeId, Subscription] = {}
        self._followers: dict[str, dict[NodeId, None]] = {}

    def get(self, node_id: NodeId) -> Subscription | None:
        return self._by_node.get(node_id)

    def renew(
        self, identity: Identity, listen: Listen, *, revision: int, now: float
    ) -> Subscription:
        """An agent listens; raises ConflictError for a boot that has a successor."""
        known = self._by_node.get(identity.node_id)
        if known is not None and identity.generation < known.generation:
            raise ConflictError(
                f"node {identity.node_id.hex()} listens as generation {known.generation}",
                object_name=identity.node_id.hex(),
                hint="another agent runs with a copy of this cache; give each its own",
            )
        if known is None or identity.generation > known.generation:
            known = Subscription(identity.generation, now)
            self._by_node[identity.node_id] = known
        known.heard_at = now
        known.versions = dict.fromkeys(listen.versions)
        self._follow(identity.node_id, known, listen.channels, revision)
        return known

    def followers(self, channel: str) -> tuple[NodeId, ...]:
        return tuple(self._followers.get(channel, ()))

    def forget(self, node_id: NodeId) -> None:
        """The agent is gone; idempotent."""
        known = self._by_node.pop(node_id, None)
        for channel in known.channels if known else ():
            self._unfollow(node_id, channel)

    def forget_silent(self, *, before: float) -> None:
        """Drop agents that stopped listening: those that never reported have no other end."""
        silent = [node for node, known in self._by_node.items() if known.heard_at < before]
        for node_id in silent:
            self.forget(node_id)

    def _follow(
        self, node_id: NodeId, known: Subscription, channels: tuple[str, ...], revision: int
    ) -> None:
        for channel in [name for name in known.channels if name not in channels]:
            self._unfollow(node_id, channel)
            del known.channels[channel]
        for channel in channels:
            if channel not in known.channels:
                known.channels[channel] = revision
                self._followers.setdefault(channel, {})[node_id] = None

    def _unfollow(self, node_id: NodeId, channel: str) -> None:
        followers = self._followers.get(channel, {})
        followers.pop(node_id, None)
        if not followers:
            self._followers.pop(channel, None)
