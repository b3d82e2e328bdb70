"""One `RequestChunk` while it lives, on the loop's side."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from swarm.agent.incoming_chunk import IncomingChunk
from swarm.policy.commands import RequestChunk
from swarm.policy.events import FailureReason
from swarm.protocol.messages import RefuseReason

if TYPE_CHECKING:
    from swarm.agent.data_link import DataLink


@dataclass(slots=True, eq=False)
class Transfer:
    """Owned by `fetching`; its data links count bytes here."""

    order: RequestChunk
    length: int
    incoming: IncomingChunk
    # Data links that share it.
    stripes: int
    # Data links in use, one a stripe, as long as their stripe has not ended.
    links: list[DataLink] = field(default_factory=list)
    # Payload bytes read off sockets.
    received_bytes: int = 0
    # Some payload went to a lane, so the verdict comes from there.
    has_begun: bool = False
    is_near_end: bool = False
    # The first thing that went wrong.
    failure: FailureReason | None = None
    refusal: RefuseReason = RefuseReason.OTHER
    load: int = 0

    def fail(self, reason: FailureReason) -> None:
        if self.failure is None:
            self.failure = reason
