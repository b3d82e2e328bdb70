"""Waits for what has no event to wait for: a count that a server changes on its own."""

from __future__ import annotations

from collections.abc import Callable

import trio

_LOOK_S = 0.005


async def until(condition: Callable[[], bool], *, timeout_s: float = 5.0) -> None:
    """Look until `condition` holds; raises trio.TooSlowError."""
    with trio.fail_after(timeout_s):
        while True:
            if condition():
                return
            await trio.sleep(_LOOK_S)
