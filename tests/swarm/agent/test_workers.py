"""Lanes: order within, parallel between; segments: bounded, shared, given back."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from swarm.agent.segments import SEGMENTS_PER_LINK, Holder, SegmentPool
from swarm.agent.workers import Workers


@asynccontextmanager
async def workers(count: int) -> AsyncIterator[Workers]:
    made = Workers(count, trio.lowlevel.current_trio_token())
    try:
        yield made
    finally:
        await made.close()


def _discard(_: object) -> None:
    return


async def test_jobs_of_a_lane_run_in_order() -> None:
    async with workers(4) as crew:
        lane = crew.lane()
        done: list[int] = []

        def job(number: int) -> Callable[[], None]:
            return lambda: done.append(number)

        for number in range(1000):
            lane.submit(job(number))
    assert done == list(range(1000))


async def test_lanes_run_side_by_side() -> None:
    """Two jobs that wait for each other end only if both run."""
    async with workers(2) as crew:
        barrier = threading.Barrier(2, timeout=5)
        for _ in range(2):
            crew.lane().submit(lambda: _discard(barrier.wait()))
    assert barrier.n_waiting == 0
    assert not barrier.broken


async def test_busy_lane_starves_no_other() -> None:
    """One thread, a lane that refills itself: the other lane gets its turn."""
    async with workers(1) as crew:
        busy, other = crew.lane(), crew.lane()
        has_run = threading.Event()

        def refill() -> None:
            if not has_run.is_set():
                busy.submit(refill)

        busy.submit(refill)
        other.submit(has_run.set)
        assert await trio.to_thread.run_sync(has_run.wait, 5)


async def test_close_waits_for_what_was_submitted() -> None:
    done: list[int] = []
    async with workers(1) as crew:
        for _ in range(50):
            crew.lane().submit(lambda: done.append(1))
    assert len(done) == 50


async def test_job_tells_the_loop() -> None:
    async with workers(1) as crew:
        heard = trio.Event()
        crew.lane().submit(lambda: crew.call_soon(heard.set))
        with trio.fail_after(5):
            await heard.wait()


async def test_link_holds_only_so_many_segments() -> None:
    async with workers(1) as crew:
        pool = SegmentPool(100, crew)
        holder = Holder()
        held = [await pool.take(holder) for _ in range(SEGMENTS_PER_LINK)]
        with trio.move_on_after(0.02) as waited:
            await pool.take(holder)
        assert waited.cancelled_caught
        await pool.take(Holder())  # Another link is not held up.
        crew.lane().submit(lambda: pool.give(held[0], holder))
        with trio.fail_after(5):
            await pool.take(holder)


async def test_pool_is_bounded_and_waiters_are_woken() -> None:
    async with workers(1) as crew:
        pool = SegmentPool(2, crew)
        first, second, third = Holder(), Holder(), Holder()
        segment = await pool.take(first)
        await pool.take(second)
        got: list[memoryview] = []

        async def wait() -> None:
            got.append(await pool.take(third))

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await wait_all_tasks_blocked()
                assert not got
                crew.lane().submit(lambda: pool.give(segment, first))
        # The same memory, not more of it.
        assert got[0] is segment


async def test_segment_given_back_unused_wakes_a_waiter() -> None:
    async with workers(1) as crew:
        pool = SegmentPool(1, crew)
        holder = Holder()
        segment = await pool.take(holder)
        pool.give_back(segment, holder)
        assert holder.held_count == 0
        with trio.fail_after(5):
            assert await pool.take(Holder()) is segment


async def test_waiter_that_is_cancelled_passes_its_turn_on() -> None:
    """Cancelled in the moment in which it would have been woken."""
    async with workers(1) as crew:
        pool = SegmentPool(1, crew)
        holder = Holder()
        segment = await pool.take(holder)
        got: list[memoryview] = []
        impatient = trio.CancelScope()

        async def give_up() -> None:
            with impatient:
                got.append(await pool.take(Holder()))

        async def wait() -> None:
            got.append(await pool.take(Holder()))

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(give_up)
                await wait_all_tasks_blocked()
                nursery.start_soon(wait)
                await wait_all_tasks_blocked()
                impatient.cancel()
                pool.give_back(segment, holder)
        assert impatient.cancelled_caught
        assert len(got) == 1


@pytest.mark.parametrize("count", [0, -1])
async def test_pool_without_segments_is_a_bug(count: int) -> None:
    async with workers(1) as crew:
        with pytest.raises(AssertionError):
            SegmentPool(count, crew)
