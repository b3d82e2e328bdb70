"""One writer per chunk: who may write a chunk's final bytes, and who waits.

A chunk may be on its way twice (end game, a lease beside a peer, a retry after a watchdog), and one
of the two sources may lie. If both wrote at the final offsets, a late corrupt byte could land after
the digest was checked. So:

- The first transfer of a chunk gets the **token** and writes in place; every other one receives
  into scratch.
- The first whose digest fits **claims** the chunk. If it is not the holder, the token is revoked:
  the holder's writes that are under way are awaited (a thread cannot be stopped, and is never
  abandoned), later ones are dropped, and only then may the winner copy its bytes over.
- Once the chunk is held, no write to it is issued; the others learn that they lost.

Every method takes the version's one lock; none does IO.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from swarm.errors import StoreError
from swarm.protocol.ids import ChunkIndex

# A disk that does not finish one write of ≤ 1 MiB, or one chunk's copy, in this time is broken.
WRITE_WAIT_S_MAX = 60.0


@dataclass(eq=False, slots=True)
class Turn:
    """One transfer's part in the race for one chunk."""

    chunk: ChunkIndex
    # Its bytes go to the final offsets.
    has_token: bool = False
    # Its bytes are dropped from now on: lost, given up, or the chunk was held before.
    is_over: bool = False
    # Threads inside a write.
    active: int = 0


@dataclass(eq=False, slots=True)
class _Race:
    """All live transfers of one chunk."""

    turns: list[Turn] = field(default_factory=list)
    # Its digest fits; it is copying or setting the byte.
    winner: Turn | None = None
    is_held: bool = False


class WriteTokens:
    """The races of one version, one per chunk with a live transfer."""

    def __init__(self, condition: threading.Condition) -> None:
        self._condition = condition
        self._races: dict[ChunkIndex, _Race] = {}

    @property
    def live_count(self) -> int:
        """Transfers neither committed nor aborted."""
        return sum(len(race.turns) for race in self._races.values())

    def enter(self, chunk: ChunkIndex, *, is_held: bool) -> Turn:
        """A new transfer; the caller holds the lock and says whether the chunk is verified."""
        race = self._races.setdefault(chunk, _Race(is_held=is_held))
        is_free = race.winner is None and not any(turn.has_token for turn in race.turns)
        turn = Turn(chunk, has_token=is_free and not race.is_held, is_over=race.is_held)
        race.turns.append(turn)
        return turn

    def begin_write(self, turn: Turn) -> bool:
        """May these bytes be written? False: drop them. True: `end_write` must follow."""
        with self._condition:
            if turn.is_over:
                return False
            turn.active += 1
            return True

    def end_write(self, turn: Turn) -> None:
        with self._condition:
            turn.active -= 1
            if turn.active == 0 and turn.is_over:
                self._condition.notify_all()

    def claim(self, turn: Turn) -> bool:
        """The digest fits, or the turn was over before. True: this transfer alone may write the
        chunk now, and `settle` must follow. False: the chunk is held.

        Raises StoreError if this transfer was revoked by one that then failed.
        """
        with self._condition:
            race = self._races[turn.chunk]
            self._wait(lambda: race.winner is None)
            if race.is_held:
                return False
            if turn.is_over:
                raise StoreError(
                    f"chunk {turn.chunk}: another transfer took over and failed to write",
                    is_retryable=True,
                )
            race.winner = turn
            try:
                self._revoke_others(race, turn)
            except StoreError:
                race.winner = None
                raise
            turn.has_token = True
            return True

    def settle(self, turn: Turn, *, is_held: bool) -> None:
        """How the claim ended."""
        with self._condition:
            race = self._races[turn.chunk]
            assert race.winner is turn
            race.winner = None
            race.is_held = is_held
            if is_held:
                for other in race.turns:
                    other.is_over = True
            self._condition.notify_all()

    def leave(self, turn: Turn) -> None:
        """The transfer is over, however it ended; frees the token once its writes are done."""
        with self._condition:
            race = self._races[turn.chunk]
            turn.is_over = True
            try:
                self._wait_idle(turn)
            finally:
                # After a wait in vain the token stays taken: its thread may still write.
                if turn.active == 0:
                    race.turns.remove(turn)
                    if not race.turns:
                        del self._races[turn.chunk]

    def unhold(self, chunk: ChunkIndex) -> None:
        """A held chunk was found damaged; the caller holds the lock. Late losers of its race
        still lose."""
        race = self._races.get(chunk)
        if race is not None:
            race.is_held = False

    def _revoke_others(self, race: _Race, winner: Turn) -> None:
        for other in race.turns:
            if other is not winner and other.has_token:
                other.is_over = True
                self._wait_idle(other)
                other.has_token = False

    def _wait_idle(self, turn: Turn) -> None:
        self._wait(lambda: turn.active == 0)

    def _wait(self, is_done: Callable[[], bool]) -> None:
        if not self._condition.wait_for(is_done, timeout=WRITE_WAIT_S_MAX):
            raise StoreError(
                f"the disk did not finish a write in {WRITE_WAIT_S_MAX:.0f} s",
                hint="look at the disk (dmesg)",
                is_retryable=True,
            )
