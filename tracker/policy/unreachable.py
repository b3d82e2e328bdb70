"""Agents that cannot reach others of their version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from swarm.protocol.ids import NodeId
from tracker.policy.members import Member


class CutOff:
    """Members of one version that cannot reach some other member.

    To such an agent the others' chunks are as good as absent: without a rule for it one broken link
    would starve it for ever.
    """

    def __init__(self, members: Mapping[NodeId, Member]) -> None:
        self._members = members
        # A dict for its order.
        self._nodes: dict[NodeId, None] = {}

    def add(self, node: NodeId) -> None:
        self._nodes[node] = None

    def forget(self, node: NodeId) -> None:
        self._nodes.pop(node, None)

    def all(self, now: float) -> Iterator[tuple[Member, list[int]]]:
        """Each of them, with what those hold that it cannot reach; forgets who is cut off no
        more."""
        for node in list(self._nodes):
            member = self._members[node]
            accused = [
                self._members[other].bits
                for other, until in member.peer.accused.items()
                if until > now and other in self._members and self._members[other].is_counted
            ]
            if accused:
                yield member, accused
            else:
                del self._nodes[node]
