"""The decider's turns: one decision for all that is queued, and for what waits on the links."""

from __future__ import annotations

import random

import trio
import trio.testing

from swarm.agent.decider import Decider
from swarm.policy.commands import Command, RequestChunk, SendBitfield
from swarm.policy.events import BitfieldReceived, Event, HavesReceived, PeerConnected, VersionAdded
from swarm.policy.node import Node
from tests.support.story import CHUNK_BYTES, VERSION, default_settings, peer_id, peer_info


class Turns:
    """A decider over a real node, what it observed and what it ordered."""

    def __init__(self) -> None:
        self.unread: list[Event] = []
        self.observed: list[Event] = []
        self.ordered: list[Command] = []
        node = Node(default_settings(), peer_id("me"), random.Random(1))
        self.decider = Decider(node, self._listen, self.observed.append, self.ordered.append)

    def _listen(self) -> None:
        while self.unread:
            self.decider.emit(self.unread.pop(0))


async def test_a_turn_takes_along_what_neighbours_have_said() -> None:
    turns = Turns()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.decider.run)
        turns.decider.emit(PeerConnected(peer_info("B"), 0, is_outgoing=True, rtt_s=0.001))
        turns.decider.emit(VersionAdded(VERSION, (CHUNK_BYTES,) * 2, 0))
        turns.decider.emit(BitfieldReceived(peer_id("B"), VERSION, 0, 0))
        await trio.testing.wait_all_tasks_blocked()
        assert any(isinstance(order, SendBitfield) for order in turns.ordered)
        turns.unread.append(HavesReceived(peer_id("B"), VERSION, 0b10, 0))
        turns.decider.emit(HavesReceived(peer_id("B"), VERSION, 0b01, 0))
        await trio.testing.wait_all_tasks_blocked()
        assert any(isinstance(order, RequestChunk) for order in turns.ordered)
        nursery.cancel_scope.cancel()
    assert not turns.unread
    assert [type(event) for event in turns.observed[-2:]] == [HavesReceived, HavesReceived]
