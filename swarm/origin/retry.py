"""Repeating what may succeed next time: exponential back-off, full jitter, and a deadline.

Full jitter (any pause between nothing and the bound) keeps a fleet that failed in the same second
from coming back in the same second; see https://aws.amazon.com/builders-library/timeouts-retries-
and-backoff-with-jitter/. Payload ranges are not repeated here: their reader decides.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from swarm.errors import OriginAnswerError, OriginError, OriginThrottledError
from swarm.origin.origin import OriginSettings

T = TypeVar("T")

WRONG_ANSWERS_MAX = 4  # These come fast and rarely get better; as many as a chunk is allowed.


async def retry_transient(operation: Callable[[], Awaitable[T]], settings: OriginSettings) -> T:
    """The result of `operation`, which is called again after a retryable OriginError: a few times
    after wrong answers, until `retry_for_s` would be over after others; then the last error."""
    give_up_at = trio.current_time() + settings.retry_for_s
    bound_s = settings.retry_pause_s
    wrong_count = 0
    while True:
        try:
            return await operation()
        except OriginError as error:
            is_wrong = isinstance(error, OriginAnswerError)
            wrong_count += is_wrong
            pause_s = jittered_pause(error, bound_s)
            is_late = not is_wrong and trio.current_time() + pause_s > give_up_at
            if not error.is_retryable or is_late or wrong_count >= WRONG_ANSWERS_MAX:
                raise
        await trio.sleep(pause_s)
        bound_s = min(2 * bound_s, settings.retry_pause_s_max)


def jittered_pause(error: OriginError, bound_s: float) -> float:
    """How long to wait after `error`: at least what the origin asked for, spread over as much
    again."""
    asked_s = error.retry_after_s if isinstance(error, OriginThrottledError) else None
    if asked_s is not None:
        return asked_s + random.uniform(0, max(asked_s, bound_s))
    return random.uniform(0, bound_s)
