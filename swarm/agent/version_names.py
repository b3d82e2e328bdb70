"""What the tracker calls the versions that are open here: ids are for machines.

Names are for people only and nothing waits for them. They are asked for once a version, a while
after it was opened and at a random moment, because a fleet that starts at once has better questions
for its tracker; a version that nobody registered has none.
"""

from __future__ import annotations

import logging
import random

import trio

from swarm.agent.tracker_client import TrackerClient
from swarm.errors import NotFoundError, SwarmError
from swarm.protocol.ids import VersionId

logger = logging.getLogger(__name__)

FIRST_ASKED_S = 2.0
"""At most after a version is wanted: 1,000 agents that want one together make 500 calls a
second, a tenth of what a tracker answers."""
RETRY_S = 30.0
"""Between two attempts while the tracker does not answer, at least; twice as much at most."""


class VersionNames:
    """Owned by the agent, which starts `learn` for each version that it wants. Without a
    tracker nothing has a name."""

    def __init__(self, tracker: TrackerClient | None, *, rng: random.Random) -> None:
        self._tracker = tracker
        self._rng = rng
        # NAME@TAG labels by version, in order; only of versions that have any.
        self.names: dict[VersionId, tuple[str, ...]] = {}

    async def learn(self, version: VersionId) -> None:
        """Ask until the tracker has said what it knows; returns at once if it has."""
        if self._tracker is None or version in self.names:
            return
        await trio.sleep(self._rng.uniform(0, FIRST_ASKED_S))
        while True:
            try:
                record = await self._tracker.show_version(version.hex())
            except NotFoundError:
                return
            except SwarmError as error:
                logger.debug("names of %s: %s", version.hex()[:12], error.message)
            else:
                if record.names:
                    self.names[version] = record.names
                return
            await trio.sleep(self._rng.uniform(RETRY_S, 2 * RETRY_S))
