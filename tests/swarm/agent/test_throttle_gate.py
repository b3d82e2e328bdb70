"""An origin that said "slow down" is asked once a second, until it answers again."""

from __future__ import annotations

import trio
import trio.testing

from swarm.agent.throttle_gate import ThrottleGate


async def test_an_open_gate_lets_everyone_pass(autojump_clock: trio.testing.MockClock) -> None:
    gate = ThrottleGate()
    await gate.pass_through()
    assert trio.current_time() == 0


async def test_a_closed_gate_lets_one_a_second_pass(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """100 requests at random instants: 100 s on average, with a deviation of 6 s."""
    gate = ThrottleGate()
    gate.close(5.0)
    passed_at: list[float] = []

    async def request() -> None:
        await gate.pass_through()
        passed_at.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(request)
    assert passed_at[0] >= 5.0
    assert 70 <= passed_at[-1] <= 140


async def test_a_success_opens_the_gate_for_those_who_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
    gate = ThrottleGate()
    gate.close(None)
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(gate.pass_through)
        await gate.pass_through()
        gate.open()
    assert trio.current_time() <= 6.0
