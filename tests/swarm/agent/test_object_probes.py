"""One read asks whether an object answers; the others wait for it or share its failure."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from swarm.agent.object_probes import REFUSAL_S, ObjectProbes
from swarm.errors import NotFoundError, OriginAnswerError, OriginError, StoreError, SwarmError


class Origin:
    """Counts reads; each takes a second, brings bytes after half of it, and may fail at the end."""

    def __init__(self) -> None:
        self.probes = ObjectProbes()
        self.read_count = 0
        self.failure: SwarmError | None = None
        self.failure_count = 0

    async def read(self) -> None:
        try:
            async with self.probes.reading("key"):
                self.read_count += 1
                await trio.sleep(0.5)
                if self.failure is not None:
                    raise self.failure
                self.probes.note_bytes("key")
                await trio.sleep(0.5)
        except SwarmError:
            self.failure_count += 1

    async def read_many(self, count: int) -> float:
        started_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(self.read)
        return trio.current_time() - started_at


async def test_one_read_goes_ahead_until_its_first_bytes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    origin = Origin()
    assert await origin.read_many(100) == pytest.approx(1.5)
    assert await origin.read_many(100) == pytest.approx(1.0)
    assert origin.read_count == 200


async def test_a_failure_is_shared_and_the_next_read_asks_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    origin = Origin()
    origin.failure = OriginError("500", is_retryable=True)
    await origin.read_many(100)
    assert (origin.read_count, origin.failure_count) == (1, 100)
    origin.failure = None
    await origin.read_many(100)
    assert (origin.read_count, origin.failure_count) == (101, 100)


async def test_a_refusal_is_believed_for_a_while(autojump_clock: trio.testing.MockClock) -> None:
    origin = Origin()
    origin.failure = NotFoundError("gone")
    await origin.read_many(100)
    origin.failure = None
    await origin.read_many(100)
    assert (origin.read_count, origin.failure_count) == (1, 200)
    await trio.sleep(REFUSAL_S)
    await origin.read_many(100)
    assert (origin.read_count, origin.failure_count) == (101, 200)


async def test_an_object_that_stops_answering_is_asked_by_one_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    origin = Origin()
    await origin.read()
    origin.failure = OriginError("500", is_retryable=True)
    await origin.read()
    await origin.read_many(100)
    assert origin.read_count == 3


@pytest.mark.parametrize("failure", [OriginAnswerError("200"), StoreError("disk")])
async def test_what_does_not_speak_of_the_object_is_not_shared(
    autojump_clock: trio.testing.MockClock, failure: SwarmError
) -> None:
    origin = Origin()
    origin.failure = failure
    await origin.read_many(10)
    assert origin.read_count == 10


async def test_a_cancelled_read_leaves_the_question_to_the_next(
    autojump_clock: trio.testing.MockClock,
) -> None:
    origin = Origin()
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.2):
            nursery.start_soon(origin.read_many, 3)
            await origin.read()
    assert (origin.read_count, origin.failure_count) == (4, 0)
