"""Bytes by source: every verified byte counted once, everything else is waste."""

from __future__ import annotations

import pytest

from swarm.agent.accounting import Ledger, Source, Transfer
from swarm.policy.events import TransferId
from swarm.protocol.ids import ChunkIndex, VersionId

VERSION = VersionId(b"v" * 32)
FIRST, SECOND = TransferId(1), TransferId(2)


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    ledger.open(VERSION, total_bytes=300, local_bytes=100, now=5.0)
    ledger.began(FIRST, Transfer(VERSION, ChunkIndex(1), Source.ORIGIN, "s3://b"))
    ledger.began(SECOND, Transfer(VERSION, ChunkIndex(1), Source.PEER_SAME_ZONE, "10.0.0.1:7"))
    return ledger


def test_verified_bytes_count_for_the_source_of_their_transfer(ledger: Ledger) -> None:
    ledger.verified(FIRST, VERSION, ChunkIndex(0), 100, now=7.0)
    account = ledger.accounts[VERSION]
    assert account.by_source[Source.ORIGIN] == 100
    assert account.by_source[Source.LOCAL] == 100
    assert account.verified_bytes == 200
    assert account.progressed_at == 7.0
    assert FIRST not in ledger.live


def test_the_loser_of_an_end_game_is_waste(ledger: Ledger) -> None:
    ledger.verified(FIRST, VERSION, ChunkIndex(0), 100, now=7.0)
    ledger.duplicate(SECOND, 100)
    account = ledger.accounts[VERSION]
    assert account.wasted_bytes == 100
    assert account.by_source[Source.PEER_SAME_ZONE] == 0


def test_bytes_of_a_failed_transfer_are_waste(ledger: Ledger) -> None:
    ledger.sampled(FIRST, 40)
    ledger.sampled(FIRST, 60)
    ledger.failed(FIRST)
    ledger.failed(FIRST)
    assert ledger.accounts[VERSION].wasted_bytes == 60
    assert list(ledger.live) == [SECOND]


def test_a_sample_that_comes_after_the_end_is_ignored(ledger: Ledger) -> None:
    ledger.failed(FIRST)
    ledger.sampled(FIRST, 60)
    assert ledger.received == {}


def test_a_damaged_chunk_leaves_the_account_and_comes_back(ledger: Ledger) -> None:
    """Off the account of whoever gave it, so that none ever falls below nothing."""
    ledger.verified(FIRST, VERSION, ChunkIndex(0), 100, now=7.0)
    account = ledger.accounts[VERSION]
    ledger.lost(VERSION, ChunkIndex(0), 100, now=8.0)
    ledger.lost(VERSION, ChunkIndex(2), 60, now=8.0)
    assert account.by_source[Source.ORIGIN] == 0
    assert account.by_source[Source.LOCAL] == 40
    assert account.progressed_at == 8.0
    ledger.verified(SECOND, VERSION, ChunkIndex(0), 100, now=9.0)
    assert account.by_source[Source.PEER_SAME_ZONE] == 100


def test_a_closed_version_is_counted_no_more(ledger: Ledger) -> None:
    ledger.close(VERSION)
    ledger.verified(FIRST, VERSION, ChunkIndex(0), 100, now=9.0)
    ledger.failed(SECOND)
    assert ledger.accounts == {}
