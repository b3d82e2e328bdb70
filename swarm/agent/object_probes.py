"""One read asks first: whether an object answers is found out by one request, not by all of them.

Many chunks of a file are read at the same time. If the object is gone, or access to it is refused,
each of them would ask, fail and say so; a hundred requests that a store may count, bill and
throttle tell what one does. So while nothing is known of an object, one read goes ahead, and the
others wait until its first bytes arrive (a round trip) or share its failure. A failure later on
makes the object unknown again. Wrong answers prove that it answers; each read deals with its own.
That an object is gone or refused holds for `REFUSAL_S`: until whoever reads has given up or waits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from swarm.errors import AuthError, NotFoundError, OriginAnswerError, OriginError, SwarmError

REFUSAL_S = 2.0  # Credentials that were renewed or an object that came back are noticed so late.


class _Probe:
    """The read that goes ahead, and what became of it."""

    def __init__(self) -> None:
        self.is_over = trio.Event()
        # Why the object does not answer; None if it does, or if the read was cancelled.
        self.failure: SwarmError | None = None


class ObjectProbes:
    """What a client knows of its objects. Bounded by the files of the versions it reads."""

    def __init__(self) -> None:
        self._answering: set[str] = set()
        self._probes: dict[str, _Probe] = {}
        # Objects that are gone or refused, and until when that is believed.
        self._refusals: dict[str, tuple[SwarmError, float]] = {}

    def note_bytes(self, key: str) -> None:
        """Bytes of the object arrived: everyone may read."""
        self._answering.add(key)
        self._refusals.pop(key, None)
        if (probe := self._probes.pop(key, None)) is not None:
            probe.is_over.set()

    @asynccontextmanager
    async def reading(self, key: str) -> AsyncIterator[None]:
        """Around one read of the object: waits while another finds out, and raises its failure."""
        while key not in self._answering and (other := self._probes.get(key)) is not None:
            await other.is_over.wait()
            if other.failure is not None:
                raise other.failure
        self._check_refusal(key)
        probe = _Probe()
        if key not in self._answering:
            self._probes[key] = probe
        try:
            yield
        except OriginAnswerError:
            self.note_bytes(key)
            raise
        except (OriginError, NotFoundError, AuthError) as error:
            self._answering.discard(key)
            probe.failure = error
            if not error.is_retryable:
                self._refusals[key] = (error, trio.current_time() + REFUSAL_S)
            raise
        finally:
            if self._probes.get(key) is probe:
                del self._probes[key]
            probe.is_over.set()

    def _check_refusal(self, key: str) -> None:
        error, until = self._refusals.get(key, (None, 0.0))
        if error is not None:
            if trio.current_time() < until:
                raise error
            del self._refusals[key]
