"""Getting a version's manifest from tracker, peers and origin, in the order of their price.

Whoever sends it, a manifest is believed because its digest is the version id. Each source is asked
by a task of its own, again and again, so that one that hangs keeps nobody from the others; a dearer
one begins when the cheaper ones have failed or have had a head start. The search itself never gives
up: what is missing now may be published, and who is down may come back.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Sequence

import blake3
import trio

from swarm.errors import (
    AuthError,
    IntegrityError,
    NotFoundError,
    OriginError,
    OriginThrottledError,
    SwarmError,
    TrackerError,
)
from swarm.protocol.ids import VersionId

logger = logging.getLogger(__name__)

HEAD_START_S = 1.0
"""Before a dearer source is asked beside one that does not answer: ten round trips of a tracker."""
RETRY_S_MIN = 0.5
RETRY_S_MAX = 5.0
"""Between two questions to a source, doubled each time: a tracker or an origin that comes back is
noticed within one report interval."""
MISSING_RETRY_S_MAX = 30.0
"""The same for a source that is sure: a fleet that waits for a version must not storm an origin."""

ORIGIN = "the origin"
"""The source whose word is final: a version exists when the origin has its manifest."""

ManifestSource = tuple[str, Callable[[VersionId], Awaitable[bytes | None]]]
"""What it is called in messages, and the call; None means that this source does not have it."""


async def fetch_manifest(
    version: VersionId, sources: Sequence[ManifestSource], *, on_wait: Callable[[SwarmError], None]
) -> bytes:
    """Ask until one source has the right bytes.

    `on_wait` hears of what is in the way while every source has failed, again with each failure: a
    NotFoundError when all are sure that they have none, or when the origin is sure and the others
    cannot be asked, which is then retryable."""
    assert sources
    search = _Search(version, on_wait, len(sources))
    async with trio.open_nursery() as nursery:
        for name, source in sources:
            has_failed = trio.Event()
            nursery.start_soon(search.ask, name, source, has_failed, nursery.cancel_scope)
            with trio.move_on_after(HEAD_START_S):
                await has_failed.wait()
    assert search.found is not None
    return search.found


class _Search:
    """What is known of one manifest's whereabouts."""

    def __init__(
        self, version: VersionId, on_wait: Callable[[SwarmError], None], source_count: int
    ) -> None:
        self._version = version
        self._on_wait = on_wait
        self._source_count = source_count
        # The latest failure of each source, by its name.
        self._failures: dict[str, SwarmError] = {}
        self.found: bytes | None = None

    async def ask(
        self,
        name: str,
        source: Callable[[VersionId], Awaitable[bytes | None]],
        has_failed: trio.Event,
        scope: trio.CancelScope,
    ) -> None:
        """Ask one source until anybody has found the manifest; that ends `scope`."""
        pause_s = RETRY_S_MIN
        while True:
            try:
                self.found = self._checked(name, await source(self._version))
                scope.cancel()
                return
            except SwarmError as error:
                self._failed(name, error)
                has_failed.set()
            failure = self._failures[name]
            asked_s = failure.retry_after_s if isinstance(failure, OriginThrottledError) else None
            await trio.sleep((asked_s or 0.0) + random.uniform(pause_s / 2, pause_s))
            is_missing = isinstance(failure, NotFoundError)
            pause_s = min(2 * pause_s, MISSING_RETRY_S_MAX if is_missing else RETRY_S_MAX)

    def _checked(self, name: str, raw: bytes | None) -> bytes:
        if raw is None:
            raise NotFoundError(f"{name} does not have it")
        if blake3.blake3(raw).digest() != self._version:
            logger.warning("%s sent a wrong manifest for %s", name, self._version.hex()[:12])
            raise IntegrityError(
                f"{name} sent a wrong manifest for version {self._version.hex()}",
                object_name=self._version.hex(),
                is_retryable=True,
            )
        return raw

    def _failed(self, name: str, error: SwarmError) -> None:
        former = self._failures.get(name)
        if former is None or former.message != error.message:
            # For who looks closely; what is in the way is told by whoever waits for the manifest.
            logger.debug(
                "manifest of %s from %s: %s", self._version.hex()[:12], name, error.message
            )
        self._failures[name] = error
        if len(self._failures) == self._source_count:
            self._on_wait(self._summary())

    def _summary(self) -> SwarmError:
        """What an operator should look at first, with what every source said."""
        for kind in (AuthError, IntegrityError, OriginError):
            for error in self._failures.values():
                if isinstance(error, kind):
                    return error
        silent = [error for error in self._failures.values() if isinstance(error, TrackerError)]
        if silent and not isinstance(self._failures.get(ORIGIN), NotFoundError):
            return silent[0]
        said = "; ".join(f"{name}: {error.message}" for name, error in self._failures.items())
        return NotFoundError(
            f"no source has the manifest of version {self._version.hex()} ({said})",
            object_name=self._version.hex(),
            hint="check the version id and the origin URL, or publish it again",
            is_retryable=any(error.is_retryable for error in silent),
        )
