"""Getting a version's manifest: local store, tracker, peers, origin, in the order of their price.

Whoever sends it, a manifest is believed because its digest is the version id.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import blake3
import trio

from swarm.errors import (
    AuthError,
    IntegrityError,
    NotFoundError,
    OriginError,
    SwarmError,
    TrackerError,
)
from swarm.protocol.ids import VersionId

logger = logging.getLogger(__name__)

MANIFEST_BYTES_MAX = 64 << 20
"""Room for 1.5 million chunks; a larger manifest would not fit the tracker either."""
RETRY_S_MIN = 0.5
RETRY_S_MAX = 5.0
"""Between rounds over all sources, doubled each time: a tracker or an origin that comes back is
noticed within one report interval."""

ManifestSource = tuple[str, Callable[[VersionId], Awaitable[bytes | None]]]
"""What it is called in messages, and the call; None means that this source does not have it."""


async def fetch_manifest(
    version: VersionId, sources: list[ManifestSource], *, on_wait: Callable[[SwarmError], None]
) -> bytes:
    """Ask one source after the other until one has the right bytes; never gives up on its own.

    `on_wait` hears of each fruitless round. Raises NotFoundError if every source is sure that it
    has none."""
    delay_s = RETRY_S_MIN
    while True:
        failures: list[SwarmError] = []
        for name, source in sources:
            try:
                raw = await source(version)
            except NotFoundError as error:
                failures.append(error)
            except SwarmError as error:
                logger.info("manifest of %s from %s: %s", version.hex()[:12], name, error.message)
                failures.append(error)
            else:
                if raw is not None and blake3.blake3(raw).digest() == version:
                    return raw
                if raw is not None:
                    logger.warning("%s sent a wrong manifest for %s", name, version.hex()[:12])
        if failures and all(isinstance(error, NotFoundError) for error in failures):
            raise NotFoundError(
                f"no source has the manifest of version {version.hex()}",
                object_name=version.hex(),
                hint="check the version id and the origin URL, or publish it again",
            )
        on_wait(_summary(version, failures))
        await trio.sleep(delay_s)
        delay_s = min(2 * delay_s, RETRY_S_MAX)


def _summary(version: VersionId, failures: list[SwarmError]) -> SwarmError:
    # What somebody must act on first; that a source simply lacks it says least.
    for kind in (AuthError, IntegrityError, OriginError, TrackerError):
        for error in failures:
            if isinstance(error, kind):
                return error
    return failures[0] if failures else TrackerError(f"no source for version {version.hex()} yet")
