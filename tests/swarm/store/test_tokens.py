"""Who may write a chunk: with real threads where waiting is the point."""

from __future__ import annotations

import threading

import pytest

from swarm.errors import StoreError
from swarm.protocol.ids import ChunkIndex
from swarm.store.tokens import Turn, WriteTokens

CHUNK = ChunkIndex(3)


def enter(tokens: WriteTokens, *, is_held: bool = False) -> Turn:
    return tokens.enter(CHUNK, is_held=is_held)


@pytest.fixture
def tokens() -> WriteTokens:
    return WriteTokens(threading.Condition())


def test_the_first_gets_the_token(tokens: WriteTokens) -> None:
    first, second = enter(tokens), enter(tokens)
    assert first.has_token
    assert not second.has_token


def test_the_token_is_free_when_its_holder_leaves(tokens: WriteTokens) -> None:
    first, second = enter(tokens), enter(tokens)
    tokens.leave(first)
    assert not second.has_token, "a transfer that began aside stays aside"
    assert enter(tokens).has_token
    assert tokens.live_count == 2


def test_a_held_chunk_has_no_token(tokens: WriteTokens) -> None:
    late = enter(tokens, is_held=True)
    assert not late.has_token
    assert not tokens.begin_write(late)
    assert not tokens.claim(late)


def test_the_winner_waits_for_a_write_under_way(tokens: WriteTokens) -> None:
    """The holder is inside a write when another transfer's digest fits: the claim returns only
    when that write did, and no later write begins."""
    holder, aside = enter(tokens), enter(tokens)
    assert tokens.begin_write(holder)
    claimed = threading.Event()

    def claim() -> None:
        assert tokens.claim(aside)
        claimed.set()

    thread = threading.Thread(target=claim)
    thread.start()
    assert not claimed.wait(0.05)
    assert not tokens.begin_write(holder), "a revoked holder writes no more"
    tokens.end_write(holder)
    assert claimed.wait(5)
    thread.join(5)
    assert aside.has_token
    assert not holder.has_token
    tokens.settle(aside, is_held=True)
    assert not tokens.claim(holder)


def test_two_claims_are_settled_one_after_the_other(tokens: WriteTokens) -> None:
    holder, aside = enter(tokens), enter(tokens)
    assert tokens.claim(holder)
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(tokens.claim(aside)))
    thread.start()
    thread.join(0.05)
    assert answers == []
    tokens.settle(holder, is_held=True)
    thread.join(5)
    assert answers == [False]


def test_when_the_winner_fails_the_other_may_still_win(tokens: WriteTokens) -> None:
    holder, aside = enter(tokens), enter(tokens)
    assert tokens.claim(holder)
    tokens.settle(holder, is_held=False)
    tokens.leave(holder)
    assert tokens.claim(aside)


def test_a_revoked_transfer_fails_when_its_winner_failed(tokens: WriteTokens) -> None:
    """Its bytes were dropped meanwhile, so it cannot go on; the chunk is fetched again."""
    holder, aside = enter(tokens), enter(tokens)
    assert tokens.claim(aside)
    tokens.settle(aside, is_held=False)
    with pytest.raises(StoreError) as caught:
        tokens.claim(holder)
    assert caught.value.is_retryable
    tokens.leave(holder)
    tokens.leave(aside)
    assert tokens.live_count == 0


def test_leaving_waits_for_the_transfers_own_writes(tokens: WriteTokens) -> None:
    """Otherwise the next holder could meet a late write of this one."""
    first = enter(tokens)
    assert tokens.begin_write(first)
    thread = threading.Thread(target=lambda: tokens.leave(first))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    assert not enter(tokens).has_token
    tokens.end_write(first)
    thread.join(5)
    assert not thread.is_alive()
    assert enter(tokens).has_token


def test_a_damaged_chunk_can_be_won_again(tokens: WriteTokens) -> None:
    first = enter(tokens)
    assert tokens.claim(first)
    tokens.settle(first, is_held=True)
    slow = enter(tokens, is_held=True)
    tokens.leave(first)
    tokens.unhold(CHUNK)
    again = enter(tokens)
    assert tokens.claim(again)
    tokens.settle(again, is_held=True)
    assert not tokens.claim(slow)
