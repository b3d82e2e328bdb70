"""The data links of one node: a session needs one, and opening it takes a handshake.

As in the agent, the link of a session that ended waits for the next session with the same peer, and
a link that was broken is gone.
"""

from __future__ import annotations

from swarm.protocol.ids import NodeId, SessionId


class DataLinks:
    """Stripes of a session open their links together and count as one."""

    def __init__(self, handshake_s: float | None) -> None:
        """None: a link takes no time."""
        self._handshake_s = handshake_s or 0.0
        self._open: dict[SessionId, None] = {}
        self._idle_counts: dict[NodeId, int] = {}

    def wait_s(self, peer: NodeId, session: SessionId) -> float:
        """How long a request on this session waits for its link."""
        if not self._handshake_s or session in self._open:
            return 0.0
        self._open[session] = None
        idle = self._idle_counts.get(peer, 0)
        if idle:
            self._idle_counts[peer] = idle - 1
            return 0.0
        return self._handshake_s

    def ended(self, peer: NodeId, session: SessionId) -> None:
        """The session is over and leaves its link."""
        if session in self._open:
            del self._open[session]
            self._idle_counts[peer] = self._idle_counts.get(peer, 0) + 1

    def broken(self, session: SessionId) -> None:
        self._open.pop(session, None)
