"""Whom an agent asks for a manifest, and what it makes of their answers."""

from __future__ import annotations

import random

import pytest

from swarm.agent.peer_manifests import ASKED_MAX, PeerManifests
from swarm.errors import NotFoundError, TrackerError
from swarm.policy.peers import KNOWN_MAX
from swarm.protocol.ids import Address, NodeId, VersionId
from swarm.protocol.messages import PeerInfo

VERSION = VersionId(bytes(32))


def peer(number: int) -> PeerInfo:
    return PeerInfo(NodeId(number.to_bytes(16, "big")), 1, Address("192.0.2.1", 7000), "", "")


class Swarm:
    """Peers of which some hold the manifest, some cannot be reached, and the rest have nothing."""

    def __init__(self, *, holders: set[int], unreachable: set[int], seed_count: int = 0) -> None:
        self._holders = holders
        self._unreachable = unreachable
        self.asked: list[int] = []
        self.source = PeerManifests(self.fetch, seed_count=seed_count, rng=random.Random(1))

    async def fetch(self, asked: PeerInfo, _: VersionId) -> bytes:
        number = int.from_bytes(asked.node_id, "big")
        self.asked.append(number)
        if number in self._unreachable:
            raise TrackerError("no answer", is_retryable=True)
        if number not in self._holders:
            raise NotFoundError("not here")
        return b"manifest"


async def test_another_peer_is_asked_where_one_does_not_have_it() -> None:
    swarm = Swarm(holders={1}, unreachable={2})
    swarm.source.learn([peer(1), peer(2), peer(3)])
    assert await swarm.source.fetch(VERSION) == b"manifest"
    assert swarm.asked[-1] == 1


async def test_only_some_of_many_are_asked_each_once() -> None:
    swarm = Swarm(holders=set(), unreachable=set())
    swarm.source.learn(peer(number) for number in range(20))
    with pytest.raises(NotFoundError):
        await swarm.source.fetch(VERSION)
    assert len(swarm.asked) == len(set(swarm.asked)) == ASKED_MAX


async def test_who_cannot_be_asked_may_have_it() -> None:
    swarm = Swarm(holders=set(), unreachable={2})
    swarm.source.learn([peer(1), peer(2)])
    with pytest.raises(TrackerError, match="no answer"):
        await swarm.source.fetch(VERSION)


async def test_without_a_peer_it_matters_whether_one_was_named() -> None:
    with pytest.raises(NotFoundError):
        await Swarm(holders=set(), unreachable=set()).source.fetch(VERSION)
    with pytest.raises(TrackerError, match="peers named"):
        await Swarm(holders=set(), unreachable=set(), seed_count=1).source.fetch(VERSION)


async def test_who_was_heard_of_longest_ago_is_forgotten() -> None:
    swarm = Swarm(holders={0}, unreachable=set())
    swarm.source.learn([peer(0)])
    for number in range(1, KNOWN_MAX):
        swarm.source.learn([peer(number)])
    swarm.source.learn([peer(0)])
    swarm.source.learn([peer(KNOWN_MAX), peer(KNOWN_MAX + 1)])
    assert 0 in {int.from_bytes(node, "big") for node in swarm.source.known}
    assert len(swarm.source.known) == KNOWN_MAX
