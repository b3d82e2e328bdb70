"""The pace of uploads: even shares of an uplink that is full, and nothing else."""

from __future__ import annotations

import random

import pytest

from swarm.policy.commands import Command, StartUpload
from swarm.policy.events import ChunkRequested
from swarm.policy.peers import Neighbourhood
from swarm.policy.settings import NodeSettings
from swarm.policy.uploads import Uploads
from swarm.protocol.ids import ChunkIndex, SessionId, VersionId
from tests.support.story import peer_id

UPLINK = 8_000_000.0
CHUNK_BYTES = 262_144
HELD = 0b1111


class Seed:
    """The uploads of a node with four slots that holds everything."""

    def __init__(self) -> None:
        self.orders: list[Command] = []
        me, rng = peer_id("M"), random.Random(1)
        alone = Neighbourhood(NodeSettings(), me, rng, self.orders)
        self.uploads = Uploads(1, alone, self.orders)
        self.uploads.resize(4)

    def send(self, rate: float, uplink: float = UPLINK, *, seconds: int = 3) -> None:
        """Upload at `rate` for a while, as the samples show it."""
        for second in range(seconds + 1):
            self.uploads.sampled(int(rate * second), uplink, CHUNK_BYTES, 100.0 + second)

    def pace_of(self, *names: str) -> list[int]:
        for name in names:
            event = ChunkRequested(peer_id(name), SessionId(1), VersionId(bytes(32)), ChunkIndex(0))
            self.uploads.request(event, HELD)
        return [order.pace_bytes_per_s for order in self.orders if isinstance(order, StartUpload)]


@pytest.fixture
def seed() -> Seed:
    return Seed()


def test_uploads_of_a_full_uplink_get_even_shares_and_a_half(seed: Seed) -> None:
    seed.send(6_000_000)
    assert seed.pace_of("B", "C", "D") == [0, 4_500_000, 3_000_000]


def test_a_pace_leaves_an_equal_share_of_the_nic(seed: Seed) -> None:
    """Three flows at half the uplink may grow until it is full."""
    seed.send(0.5 * UPLINK)
    assert seed.pace_of("B", "C", "D") == [0, int(UPLINK / 2), int(UPLINK / 3)]


def test_an_uplink_that_is_not_full_paces_nothing(seed: Seed) -> None:
    """After an idle time the rates of the past say nothing: paced by them, 20 MB took 16 s."""
    seed.send(0.1 * UPLINK)
    assert seed.pace_of("B", "C") == [0, 0]


def test_a_silence_makes_the_rate_unknown(seed: Seed) -> None:
    seed.send(6_000_000)
    seed.uploads.sampled(18_000_000, 0.0, CHUNK_BYTES, 110.0)
    assert seed.pace_of("B", "C") == [0, 0]


def test_no_pace_makes_a_chunk_take_long(seed: Seed) -> None:
    seed.send(10_000.0, 10_000.0)
    assert seed.pace_of("B", "C") == [0, 2 * CHUNK_BYTES]
