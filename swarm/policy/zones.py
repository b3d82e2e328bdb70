"""What is fetched across zones: nothing, while a tracker brings chunks into our zone.

**Rule.** Sessions run with neighbours of our own zone. What the zone lacks comes by zone leases,
each to one agent of the zone, so every chunk crosses once. Links to other zones are kept all the
same: they cost some messages and are who is left when the rule's other half fails.

* **Without a tracker** nobody gives zone leases. Then rendezvous hashing of (chunk, nodes known in
  our zone) names who may fetch a chunk that no neighbour of the zone has announced; the next in
  line only after a while without a verified byte, as for reads of the origin. A node that knows
  nobody in its zone is first in every line.
* **Starved.** The tracker answers, and yet nothing came and nothing is on its way for ten seconds:
  one session goes across zones, for chunks that the zone lacks, until a neighbour of the zone has
  something for us again. The version is complete in the end whatever the tracker believes.

A tracker that knows no zone leases says so by saying nothing, and neighbours of all zones are the
same to us, as they are while everybody is in one zone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from swarm.policy.download import Download
from swarm.policy.peers import Neighbour, Neighbourhood
from swarm.policy.picker import Survey, survey_sources
from swarm.policy.rendezvous import Lines
from swarm.policy.settings import NodeSettings
from swarm.policy.transfers import Session

STARVED_S = 10.0
"""As long as the slow end of a zone lease is passed over, and longer than a tracker's restart."""


class ZoneRule:
    """Owned by the node."""

    def __init__(self, settings: NodeSettings, neighbourhood: Neighbourhood) -> None:
        self._zone = settings.zone
        self._neighbourhood = neighbourhood
        self._lines = Lines(neighbourhood.me)
        self.is_tracker_lost = not settings.has_tracker

    def is_near(self, link: Neighbour) -> bool:
        return link.info.zone == self._zone

    def is_on(self, download: Download) -> bool:
        return download.is_zoned or self.is_tracker_lost

    def near(self, download: Download) -> list[Neighbour]:
        """Whom sessions may go to for anything."""
        links = self._neighbourhood.links.values()
        return [link for link in links if self.is_near(link) or not self.is_on(download)]

    def survey(
        self,
        download: Download,
        useful: int,
        links: Iterable[Neighbour],
        sessions: Iterable[Session],
        load_age_s: float,
        now: float,
    ) -> tuple[Survey, int]:
        """Who of `links` could give one of the `useful` chunks, and which of these; looks across
        zones only where nobody near can be asked and the rule allows it."""
        if not self.is_on(download):
            return survey_sources(download, useful, links, load_age_s, now), useful
        links = list(links)
        near = [link for link in links if self.is_near(link)]
        survey = survey_sources(download, useful, near, load_age_s, now)
        if survey.best or len(near) == len(links):
            return survey, useful
        is_across = any(not session.is_same_zone for session in sessions)
        far_chunks, look_at = self._far_chunks(download, now, is_across=is_across)
        useful &= far_chunks
        far = [link for link in links if not self.is_near(link)]
        found = survey_sources(download, useful, far, load_age_s, now)
        return Survey(found.best, min(survey.ask_at, found.ask_at, look_at)), useful

    def wanted_of(self, session: Session, download: Download, now: float) -> int:
        """The wanted chunks that an open session may go on with."""
        if session.is_same_zone or not self.is_on(download):
            return download.wanted
        near = self._held_near(download)
        if self.is_tracker_lost:
            return self._mine(download, download.wanted & ~near, now)
        return 0 if near & download.wanted else download.wanted & ~near

    def _far_chunks(self, download: Download, now: float, *, is_across: bool) -> tuple[int, float]:
        """The wanted chunks that may be fetched across zones, where a session goes already or not,
        and when there may be others; infinite while only an event can change that."""
        lacking = download.wanted & ~self._held_near(download)
        if not lacking:
            return 0, math.inf
        if self.is_tracker_lost:
            return self._mine(download, lacking, now), self._lines.look_at
        if download.in_flight or is_across:
            return 0, math.inf
        starved_at = download.supplied_at + STARVED_S
        return (lacking, math.inf) if now >= starved_at else (0, starved_at)

    def _mine(self, download: Download, lacking: int, now: float) -> int:
        nodes = self._neighbourhood.known_nodes(self._zone)
        return self._lines.in_turn(download.version, lacking, nodes, download.progress_at, now)

    def _held_near(self, download: Download) -> int:
        held = 0
        for link in self._neighbourhood.links.values():
            if self.is_near(link):
                held |= link.announced.get(download.version, 0)
        return held

    def forget(self) -> None:
        """A version is gone."""
        self._lines.forget()
