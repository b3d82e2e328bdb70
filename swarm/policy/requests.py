"""Fetching from peers: D sessions, kept full.

A session begins with a source and a chunk from the picker and goes on with the same peer for as
long as it has something rare for us: the next request leaves before the current chunk ends
(`TransferNearEnd`), because the uploader's gap between two chunks is the largest loss of all
(0.1 chunk times of gap cost 5 %). It ends when the peer refuses or yields to another, when it has
nothing more for us, or when it is cut.

**Slow sources** (`progress.py`) are cancelled and their peer avoided. Never the last holder, for
slow is better than nothing; never a peer that is already avoided, or two slow sources would be cut
in turn for ever. An avoided peer is asked for one chunk at a time when nobody else has anything,
forgiven once it delivers, and gets another chance after a while.

**End game.** When all missing chunks are on their way, the slowest one is asked for a second time
where another peer holds it and twice the usual time would not see it done. The first copy wins,
the other is cancelled and counted as waste.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping

from swarm.policy.commands import CancelTransfer, Command, EndSession, RequestChunk
from swarm.policy.download import Download
from swarm.policy.events import TransferId
from swarm.policy.nic import NicEstimate, slot_count
from swarm.policy.peers import Neighbour, Neighbourhood
from swarm.policy.picker import other_sources, pick_chunk
from swarm.policy.progress import Progress
from swarm.policy.racks import Rack
from swarm.policy.settings import NodeSettings
from swarm.policy.transfers import Session, Transfer, TransferTable
from swarm.policy.zones import ZoneRule
from swarm.protocol.ids import ChunkIndex, NodeId, SessionId, VersionId

POLL_S_MIN = 0.02
"""An idle slot looks again after this or one chunk time, whichever is longer."""
BUSY_DOUBLINGS_MAX = 3
"""A peer that keeps refusing is asked every eighth poll at least: a busy seed is not drowned in
requests."""
BACKLOG_CHUNKS_MAX = 4
"""Chunks received and not yet hashed; past it the disk or the hasher is the bottleneck and more
requests only cost memory."""
BROKEN_REST_S = 0.5
"""After a data link broke: a restarted agent answers by then, a dead one is found out meanwhile."""
BROKEN_DOUBLINGS_MAX = 6
"""Each try at a peer whose data port swallows everything holds a session until the watchdog barks,
so it is tried every half minute at most."""
LOCAL_REST_S = 1.0
"""After a failure of our own disk; doubles up to 32 s, so that a full disk does not spin."""
LOCAL_DOUBLINGS_MAX = 5


class Requests:
    """Owned by the node; the only one that keeps sessions open. Invariant: at most D are open
    beside imports, an open one has one or two live transfers."""

    def __init__(
        self,
        settings: NodeSettings,
        rng: random.Random,
        downloads: Mapping[VersionId, Download],
        neighbourhood: Neighbourhood,
        table: TransferTable,
        nic: NicEstimate,
        orders: list[Command],
    ) -> None:
        self._settings = settings
        self._rng = rng
        self._downloads = downloads
        self._neighbourhood = neighbourhood
        self._table = table
        self._nic = nic
        self._orders = orders
        self.rack = Rack(settings, neighbourhood, nic, orders)
        self.zones = ZoneRule(settings, neighbourhood)
        # D, and the open sessions.
        self.limit = settings.session_count
        self._sessions: dict[SessionId, Session] = {}
        # Those among them that fetch from outside the rack, beside the D.
        self._import_count = 0
        self._last_session = 0
        self.is_leaving = False
        # When idle slots look again; infinite while there is nothing to look for.
        self.fill_at = math.inf
        self._progress = Progress(table, nic)
        self._local_failures = 0
        # Nothing starts before this instant: our own disk failed.
        self.rest_until = -math.inf
        self.refused_count = 0
        self.cut_count = 0
        self.duplicate_count = 0

    @property
    def open_count(self) -> int:
        """Of the D."""
        return len(self._sessions) - self._import_count

    def retune(self) -> None:
        """Take in a changed NIC estimate or neighbourhood: how many sessions, whose places."""
        rate = self._nic.bytes_per_s if self._nic.is_known else 0.0
        base = self._neighbourhood.base_nic_bytes_per_s()
        usual_count = self._settings.session_count
        self.limit = slot_count(usual_count, rate, base)
        for link in self._neighbourhood.links.values():
            theirs = slot_count(usual_count, link.nic_bytes_per_s, base)
            link.places = theirs + self._settings.upload_queue_count

    def upload_slots(self) -> int:
        """U: as many as D, or the part of them that a capped uplink can feed."""
        cap = self._settings.uplink_bytes_per_s
        if not cap or cap >= self._nic.bytes_per_s:
            return self.limit
        return max(round(self.limit * cap / self._nic.bytes_per_s), 1)

    def wake(self, now: float) -> None:
        """Something changed that may fill an idle slot."""
        if self.open_count < self.limit or self._neighbourhood.mate_count:
            self.fill_at = now

    # -- opening sessions

    def fill(self, now: float) -> None:
        """Open sessions until D are open, and imports beside them, or nobody has anything for
        us."""
        self.fill_at = math.inf
        if self.is_leaving:
            return
        if self.rest_until > now:
            self.fill_at = self.rest_until
            return
        for download in self._downloads.values():
            if not download.missing or not download.takes_from_peers:
                continue
            if self._neighbourhood.mate_count:
                self._import(download, now)
            while self.open_count < self.limit:
                if download.wanted:
                    sources = self.rack.sources(download.version)
                    opened = self._open_for(download, download.wanted, sources, now)
                else:
                    opened = self._duplicate(download, now)
                if not opened:
                    break

    def _import(self, download: Download, now: float) -> None:
        """Fetch from outside the rack what nobody in it has or fetches."""
        while useful := self.rack.importable(download, self._import_count, now):
            if not self._open_for(download, useful, self.rack.outsiders(), now, is_import=True):
                break
        self.fill_at = min(self.fill_at, self.rack.look_again_at(now))

    def _open_for(
        self,
        download: Download,
        useful: int,
        links: Iterable[Neighbour],
        now: float,
        *,
        is_import: bool = False,
    ) -> bool:
        """Open a session for one of the `useful` chunks; False if nobody can be asked now."""
        survey, useful = self.zones.survey(
            download, useful, links, self._sessions.values(), self._poll_s(download), now
        )
        if not survey.best:
            self.fill_at = min(self.fill_at, survey.ask_at)
            return False
        best = survey.best
        link = best[0] if len(best) == 1 else best[self._rng.randrange(len(best))]
        chunk = pick_chunk(download, link, useful, self._rng)
        if is_import:
            self.rack.claim(download, chunk)
        session = self._open(link, now, is_import=is_import)
        self._request(session, download, chunk, now)
        return True

    def _open(self, link: Neighbour, now: float, *, is_import: bool) -> Session:
        link.is_avoided = link.is_avoided and link.avoided_until > now
        self._last_session += 1
        is_same_zone = link.info.zone == self._settings.zone
        session = Session(SessionId(self._last_session), link.info.node_id, is_same_zone, is_import)
        self._sessions[session.id] = session
        self._import_count += is_import
        link.session_count += 1
        link.load += 1
        return session

    def _request(self, session: Session, download: Download, chunk: ChunkIndex, now: float) -> None:
        transfer = self._table.begin(download, chunk, now, session=session)
        session.transfers.append(transfer)
        session.is_due = False
        peer, version = session.peer, download.version
        self._orders.append(
            RequestChunk(transfer.id, peer, session.id, version, chunk, self.stripes())
        )

    def stripes(self) -> int:
        """Data links for one chunk from a peer."""
        return self._nic.stripes(self.limit, self._settings.flow_cap_bytes_per_s)

    def _poll_s(self, download: Download) -> float:
        return max(POLL_S_MIN, download.chunk_bytes / self._nic.bytes_per_s)

    # -- going on with a session

    def near_end(self, transfer: Transfer, now: float) -> None:
        """A transfer passed its pre-send point."""
        session = transfer.session
        if session is not None and session.is_open and session.transfers[-1] is transfer:
            session.is_due = True
            self._go_on(session, now)

    def go_on_with(self, link: Neighbour, now: float) -> None:
        """A neighbour announced something: sessions that waited for it go on."""
        if link.session_count:
            for session in list(self._sessions.values()):
                if session.peer == link.info.node_id:
                    self._go_on(session, now)

    def _go_on(self, session: Session, now: float) -> None:
        """Send the next request of a session, if it is time and there is one to send."""
        if not session.is_due or len(session.transfers) > 1 or self._is_paused(now):
            return
        if session.is_import:
            return  # What the rack lacks is for any of its nodes to claim.
        link = self._neighbourhood.links[session.peer]
        if link.is_avoided:
            return  # The next chunk may come from anybody.
        for download in self._downloads.values():
            wanted = self.zones.wanted_of(session, download, now)
            useful = link.announced.get(download.version, 0) & wanted
            is_source = self.rack.is_source(link, download.version)
            if useful and download.takes_from_peers and is_source:
                chunk = pick_chunk(download, link, useful, self._rng)
                self._request(session, download, chunk, now)
                return

    def _is_paused(self, now: float) -> bool:
        return (
            self.is_leaving or self.rest_until > now or self._backlog_count() > BACKLOG_CHUNKS_MAX
        )

    def _backlog_count(self) -> int:
        """Chunks that are surely received but not yet verified: their successor nears its end."""
        return sum(
            session.is_due and len(session.transfers) > 1 for session in self._sessions.values()
        )

    def verified(self, transfer: Transfer, session: Session, now: float) -> None:
        """A peer's transfer ended well: its session goes on or is over."""
        self._local_failures = 0
        if session.is_import:
            self.rack.imported(now - transfer.begun_at)
        link = self._neighbourhood.links.get(session.peer)
        if link is not None:
            link.refusal_count = 0
            if link.is_avoided:
                heads = self._heads()
                link.is_avoided = not self._progress.is_healthy(transfer, heads, self.limit, now)
        self._advance(session, transfer, now)

    def _advance(self, session: Session, transfer: Transfer, now: float) -> None:
        """The transfer is over; the one that was asked for early comes to the head."""
        was_head = session.transfers[0] is transfer
        session.transfers.remove(transfer)
        if not session.transfers:
            session.is_due = True
        elif was_head:
            session.transfers[0].begun_at = now
        if session.is_open:
            self._go_on(session, now)
            if not session.transfers:
                self._close(session)

    def _close(self, session: Session) -> None:
        """No more requests on this session."""
        if not session.is_open:
            return
        session.is_open = False
        self._import_count -= session.is_import
        del self._sessions[session.id]
        link = self._neighbourhood.links.get(session.peer)
        if link is not None:
            link.session_count -= 1
            link.load = max(link.load - 1, 0)
        self._orders.append(EndSession(session.peer, session.id))

    # -- ends that are not good

    def failed(self, transfer: Transfer, session: Session, now: float) -> None:
        """A peer's transfer ended without a chunk: its session ends with it."""
        self._close(session)
        self._advance(session, transfer, now)

    def refused(self, link: Neighbour, download: Download, load: int, now: float) -> None:
        """The peer is busy: leave it alone for a while, longer each time, so that a busy seed is
        not drowned in requests."""
        self.refused_count += 1
        link.hear_load(load, now)
        self._rest(link, self._poll_s(download), BUSY_DOUBLINGS_MAX, now)

    def broken(self, link: Neighbour, now: float) -> None:
        """A data link broke or went silent: the next one may do no better at once."""
        self._rest(link, BROKEN_REST_S, BROKEN_DOUBLINGS_MAX, now)

    def _rest(self, link: Neighbour, unit_s: float, doublings_max: int, now: float) -> None:
        doublings = min(link.refusal_count, doublings_max)
        link.refusal_count += 1
        link.rest_until = now + unit_s * 2**doublings * self._rng.uniform(0.5, 1.5)

    def local_failure(self, now: float) -> None:
        """Our disk failed: start nothing for a while."""
        doublings = min(self._local_failures, LOCAL_DOUBLINGS_MAX)
        self._local_failures += 1
        self.rest_until = now + LOCAL_REST_S * 2**doublings

    def forget(self, version: VersionId) -> None:
        """The version is gone, and its transfers are cancelled."""
        self.rack.forget(version)
        self.zones.forget()

    def peer_gone(self, peer: NodeId) -> None:
        """The control link is gone: what runs may end, nothing follows."""
        self.rack.lost(peer)
        for session in [s for s in self._sessions.values() if s.peer == peer]:
            self._close(session)

    def leave(self) -> None:
        self.is_leaving = True

    def cancel(self, transfer: Transfer) -> None:
        """Give a transfer up, from whatever source; it still ends in its one event."""
        if not transfer.is_cancelled:
            transfer.is_cancelled = True
            self._orders.append(CancelTransfer(transfer.id))
        if transfer.session is not None:
            self._close(transfer.session)

    # -- progress and slow sources

    def sample(self, received: Iterable[tuple[TransferId, int]], now: float) -> None:
        """Take how far each live transfer has come, then cut the slow sources."""
        self._progress.sample(received, now)
        if self._sessions:
            for head, crawls in self._progress.slow_ones(self._heads(), self.limit, now):
                assert head.session is not None
                self._cut(head.session, now, crawls=crawls)

    def _heads(self) -> list[Transfer]:
        return [session.transfers[0] for session in self._sessions.values()]

    def _cut(self, session: Session, now: float, *, crawls: bool) -> None:
        """Give a slow source up, unless that would leave nobody or it was cut before."""
        link = self._neighbourhood.links[session.peer]
        if link.is_avoided:
            return
        head = session.transfers[0]
        others = other_sources(head, self.zones.near(head.download))
        if any(crawls or self._has_free_slot(other) for other in others):
            self.cut_count += 1
            link.avoid(now)
            for given_up in session.transfers:
                self.cancel(given_up)

    def _has_free_slot(self, link: Neighbour) -> bool:
        return link.load < link.places - self._settings.upload_queue_count

    # -- the end game

    def _duplicate(self, download: Download, now: float) -> bool:
        """Ask a second peer for the chunk that would be last; False if that helps nobody."""
        sources = self.rack.sources(download.version)
        usual_s = download.chunk_bytes * (len(self._sessions) + 1) / self._nic.bytes_per_s
        last = self._progress.last_to_come(download, sources, 2 * usual_s, now)
        if last is None:
            return False
        others = other_sources(last, sources)
        opened = self._open_for(download, 1 << last.chunk, others, now)
        self.duplicate_count += opened
        return opened

    def check_invariants(self) -> None:
        for session in self._sessions.values():
            assert session.is_open
            assert 1 <= len(session.transfers) <= 2
        counts = dict.fromkeys(self._neighbourhood.links, 0)
        for session in self._sessions.values():
            counts[session.peer] += 1
        for node, link in self._neighbourhood.links.items():
            assert link.session_count == counts[node]
        imports = sum(session.is_import for session in self._sessions.values())
        assert imports == self._import_count
        self.rack.check_invariants()
