"""Whom we serve: a few slots, a short queue, and a turn for everyone.

A session takes one slot for as long as it keeps asking: its next request, sent early, waits with
the session and starts the moment the current chunk is out, so a slot never idles for a round trip.
Without fairness such sessions starve some nodes (the slowest of 1,000 ended at 1.42 times the
bound), so at each chunk end a queued peer goes first: the session that just finished yields, and
its waiting request is refused with YIELDED. A session without a waiting request holds nothing; it
may come back like any newcomer, so no idle session can hold a slot. An upload that stops moving is
the shell's to close; it ends in SessionClosed.

The queue has one place: more would only hide from others that this peer is busy.

**Racks.** A node with rack mates serves them with its U slots, and agents outside its rack with two
more, or with what its mates leave of all, each side with a queue of its own. Mates keep all U slots
busy, so without slots of their own outsiders would be refused all the time, and their racks wait
for them: p99 1.11 without, 1.08 with one, 1.07 with two (8 racks, 400 chunks, simulated). Each side
is told the load in its own terms: as many as a usual node's slots and queue when none is free.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import assert_never

from swarm.policy.commands import Command, HashAgain, RefuseRequest, StartUpload
from swarm.policy.download import Download
from swarm.policy.events import (
    BadChunkReported,
    ChunkRequested,
    RequestCancelled,
    SessionClosed,
    UploadEvent,
    UploadFinished,
)
from swarm.policy.peers import Neighbourhood
from swarm.protocol.ids import ChunkIndex, NodeId, SessionId, VersionId
from swarm.protocol.messages import RefuseReason

PACE_FACTOR = 1.5
"""One of several uploads takes at most this many equal shares of what all of them reach on a full
uplink. Left to congestion control, flows of one uplink ran at 3.5, 1.6, 0.8 and 0.7 MB/s for
seconds, and a node that had drawn the lesser flow at each of its sources fell 8 % behind the swarm.
What others cannot use may still be taken. Never less than an equal share of the NIC: paced by what
they reached alone, four uploads of which two could not take their part held an uplink at half its
rate for seconds, while a fetcher of theirs starved."""
FULL_SHARE = 0.4
"""Below this part of a NIC that is known an uplink is not full, and nothing is paced: a pace taken
from any rate held a fleet that had been idle at its idle rate, 16 s for 20 MB on loopback."""
SILENCE_S = 1.0
"""Between two samples: nothing moved for so long, or they would have come."""
PACED_CHUNK_S = 0.5
"""No pace makes a chunk take longer, so that a wrong NIC estimate is outgrown within seconds."""
RATE_MEMORY = 0.7
"""How much of the former rate counts when a sample is lower: a gap between chunks is no limit."""
HASH_AGAIN_S = 5.0
"""A doubted chunk is not served for so long; if it is damaged, that is known well before."""
HASH_AGAIN_PAUSE_S = 60.0
"""The same peer makes us hash the same chunk at most once a minute."""
DOUBTS_MAX = 32
"""Chunks that one peer can make us hash again in a minute; a disk that damages more is noticed by
others too."""

CROSSINGS_MAX = 8
"""Uploads into other zones beside the slots; the tracker spreads sixteen for each zone over all
holders. What is more waits or is refused like any other request."""
EXPORT_SLOTS = 2
"""Uploads to agents outside the rack beside U; see the module's docstring."""

SessionKey = tuple[NodeId, SessionId]


@dataclass(slots=True)
class Upload:
    """A session that is served."""

    current: ChunkRequested
    # It brings chunks into another zone and takes no slot.
    is_crossing: bool
    # The request that waits for the current chunk to end.
    following: ChunkRequested | None = None


class Uploads:
    """Owned by the node. Invariant: a session is active, queued or neither; nobody is queued for
    whom a slot is free, and the queue is no longer than its bound."""

    def __init__(
        self, queue_count: int, neighbourhood: Neighbourhood, orders: list[Command]
    ) -> None:
        # U; set by `resize`.
        self.slot_count = 1
        # Rate of all uploads together, lately, and the sample that it follows from.
        self._bytes_per_s = 0.0
        # The uplink's rate, 0 while it is not known, and the largest chunk that is served.
        self._uplink_bytes_per_s = 0.0
        self._chunk_bytes = 0
        self._sample = (-math.inf, 0)
        self.is_leaving = False
        self.sent_bytes = 0
        self.finished_count = 0
        self.refused_count = 0
        self._queue_count = queue_count
        self._neighbourhood = neighbourhood
        self._orders = orders
        self._active: dict[SessionKey, Upload] = {}
        self._queue: dict[SessionKey, ChunkRequested] = {}
        # Chunks that a peer found wrong → until when they are not served, and the first of these.
        self._doubted: dict[tuple[VersionId, ChunkIndex], float] = {}
        self.doubt_ends_at = math.inf
        # (peer, chunk) → when that peer may make us hash it again.
        self._reports: dict[tuple[NodeId, VersionId, ChunkIndex], float] = {}

    @property
    def load(self) -> int:
        """Slots taken, and requests queued."""
        return sum(self._taken()) + len(self._queue)

    @property
    def active_count(self) -> int:
        return len(self._active)

    def handle(
        self, event: UploadEvent, downloads: Mapping[VersionId, Download], now: float
    ) -> None:
        """What a peer asked for or took back, or the shell has sent."""
        match event:
            case ChunkRequested():
                download = downloads.get(event.version)
                # Sessions stay within a zone, so this is a zone lease's or somebody starves.
                is_crossing = (
                    download is not None
                    and download.is_zoned
                    and event.zone not in (None, self._neighbourhood.zone)
                )
                self.request(event, download.held if download else 0, is_crossing=is_crossing)
            case UploadFinished():
                self.finish((event.peer, event.session), event.sent_bytes)
            case RequestCancelled():
                self.cancel((event.peer, event.session), event.chunk)
            case SessionClosed():
                self.close((event.peer, event.session))
            case BadChunkReported():
                download = downloads.get(event.version)
                if download is not None and download.held >> event.chunk & 1:
                    self.doubt(event.peer, event.version, event.chunk, now)
            case _:
                assert_never(event)

    # -- whose turn it is

    def load_for(self, peer: NodeId) -> int:
        """What a neighbour is told."""
        return self.loads()[self._is_outsider(peer)]

    def loads(self) -> tuple[int, int]:
        """What rack mates are told, or everybody while there are none, and what others are."""
        mates, outsiders = self._taken()
        mates_queued, outsiders_queued = self._split(self._queue)
        free = self.slot_count + EXPORT_SLOTS - mates - outsiders
        return (
            max(mates, mates + outsiders - EXPORT_SLOTS) + mates_queued,
            self.slot_count - min(max(free, 0), self.slot_count) + outsiders_queued,
        )

    def _has_slot(self, peer: NodeId) -> bool:
        mates, outsiders = self._taken()
        if mates + outsiders >= self.slot_count + EXPORT_SLOTS:
            return False
        return self._is_outsider(peer) or mates < self.slot_count

    def _has_place(self, peer: NodeId) -> bool:
        """In the queue."""
        return self._split(self._queue)[self._is_outsider(peer)] < self._queue_count

    def _taken(self) -> tuple[int, int]:
        """How many slots, as `_split` counts."""
        return self._split([key for key, upload in self._active.items() if not upload.is_crossing])

    def _split(self, keys: Collection[SessionKey]) -> tuple[int, int]:
        """How many of these sessions are of mates, or of anybody while there are none, and how many
        of others."""
        if not self._neighbourhood.mate_count:
            return len(keys), 0
        others = sum(self._is_outsider(peer) for peer, _ in keys)
        return len(keys) - others, others

    def _is_outsider(self, peer: NodeId) -> bool:
        """Not of our rack, while we are linked to some of it."""
        if not self._neighbourhood.mate_count:
            return False
        link = self._neighbourhood.links.get(peer)
        return link is None or not link.is_mate

    def resize(self, slot_count: int) -> None:
        """The NIC estimate changed; running uploads are not cut for it."""
        self.slot_count = slot_count
        self._serve_queue()

    def request(self, event: ChunkRequested, held: int, *, is_crossing: bool = False) -> None:
        """A peer asks for a chunk, perhaps to bring it into its zone; `held` is what this node has
        of the version."""
        if self.is_leaving:
            self._refuse(event, RefuseReason.LEAVING)
        elif not held >> event.chunk & 1 or self._is_doubted(event):
            self._refuse(event, RefuseReason.NOT_HELD)
        elif (upload := self._active.get(_key(event))) is not None:
            self._follow(upload, event)
        elif _key(event) in self._queue:
            if self._queue[_key(event)] != event:
                self._refuse(event, RefuseReason.BUSY)
        elif is_crossing and self._crossing_count() < CROSSINGS_MAX:
            self._start(event, is_crossing=True)
        elif self._has_slot(event.peer):
            self._start(event)
        elif self._has_place(event.peer):
            self._queue[_key(event)] = event
        else:
            self._refuse(event, RefuseReason.BUSY)

    def _crossing_count(self) -> int:
        return sum(upload.is_crossing for upload in self._active.values())

    def _follow(self, upload: Upload, event: ChunkRequested) -> None:
        """A further request of an active session: one may wait, a stripe of a known one is no
        news."""
        if upload.following is None and upload.current != event:
            upload.following = event
        elif event not in (upload.current, upload.following):
            self._refuse(event, RefuseReason.BUSY)

    def finish(self, key: SessionKey, sent_bytes: int) -> None:
        """The current chunk of a session is out: who is queued goes first, then its own next."""
        self.sent_bytes += sent_bytes
        upload = self._active.pop(key, None)
        if upload is None:
            return
        self.finished_count += 1
        following = upload.following
        if following is None:
            self._serve_queue()
        elif upload.is_crossing or self._may_go_on(following.peer):
            self._start(following, is_crossing=upload.is_crossing)
            self._serve_queue()
        else:
            self._serve_queue()
            self._refuse(following, RefuseReason.YIELDED)

    def _may_go_on(self, peer: NodeId) -> bool:
        """A session of this peer need not yield."""
        is_awaited = self._split(self._queue)[self._is_outsider(peer)] > 0
        return self._has_slot(peer) and not is_awaited

    def cancel(self, key: SessionKey, chunk: ChunkIndex) -> None:
        """A peer took back a request that had not begun."""
        queued = self._queue.get(key)
        if queued is not None and queued.chunk == chunk:
            del self._queue[key]
            return
        upload = self._active.get(key)
        if upload is None:
            return
        if upload.following is not None and upload.following.chunk == chunk:
            upload.following = None
        elif upload.current.chunk == chunk:
            self._drop(key)

    def close(self, key: SessionKey) -> None:
        """A session's links are gone: so are its slot and its place in the queue."""
        self._queue.pop(key, None)
        self._drop(key)

    def close_peer(self, peer: NodeId) -> None:
        for key in [key for key in (*self._queue, *self._active) if key[0] == peer]:
            self.close(key)
        self._serve_queue()

    def forget(self, version: VersionId, chunk: ChunkIndex | None = None) -> None:
        """Nothing of this version, or of this chunk of it, may be sent any more: refuse what
        waits. What is being sent runs out, and its reader checks the digest."""
        for event in self._take_waiting(version, chunk):
            self._refuse(event, RefuseReason.NOT_HELD)

    def _take_waiting(
        self, version: VersionId | None = None, chunk: ChunkIndex | None = None
    ) -> list[ChunkRequested]:
        """Remove and return requests that wait, in the queue or with their session."""

        def is_meant(event: ChunkRequested) -> bool:
            return version in (None, event.version) and chunk in (None, event.chunk)

        taken = [event for event in self._queue.values() if is_meant(event)]
        for event in taken:
            del self._queue[_key(event)]
        for upload in self._active.values():
            if upload.following is not None and is_meant(upload.following):
                taken.append(upload.following)
                upload.following = None
        return taken

    def leave(self) -> None:
        """Serve what runs, refuse what waits."""
        self.is_leaving = True
        for event in self._take_waiting():
            self._refuse(event, RefuseReason.LEAVING)

    def doubt(self, peer: NodeId, version: VersionId, chunk: ChunkIndex, now: float) -> None:
        """A peer got wrong bytes: do not serve the chunk until it was hashed again. Bounded per
        peer, for hashing is work that a hostile peer could ask for."""
        self._reports = {key: at for key, at in self._reports.items() if at > now}
        of_peer = [key for key in self._reports if key[0] == peer]
        if (peer, version, chunk) in of_peer or len(of_peer) >= DOUBTS_MAX:
            return
        self._reports[peer, version, chunk] = now + HASH_AGAIN_PAUSE_S
        if self._doubted.get((version, chunk), 0.0) <= now:
            self._orders.append(HashAgain(version, chunk))
        self._doubted[version, chunk] = now + HASH_AGAIN_S
        self.doubt_ends_at = min(self._doubted.values())
        self.forget(version, chunk)

    def _is_doubted(self, event: ChunkRequested) -> bool:
        return (event.version, event.chunk) in self._doubted

    def end_doubts(self, now: float) -> list[tuple[VersionId, ChunkIndex]]:
        """Chunks that were doubted and, not being reported damaged, are sound. To be announced
        again, because who asked meanwhile was told that they are not held."""
        sound = [key for key, at in self._doubted.items() if at <= now]
        for key in sound:
            del self._doubted[key]
        self.doubt_ends_at = min(self._doubted.values(), default=math.inf)
        return sound

    def _drop(self, key: SessionKey) -> None:
        if self._active.pop(key, None) is not None:
            self._serve_queue()

    def _serve_queue(self) -> None:
        """Mates first: outsiders have what they leave."""
        if not self._queue:
            return
        for key in sorted(self._queue, key=lambda key: self._is_outsider(key[0])):
            if self._has_slot(key[0]):
                self._start(self._queue.pop(key))

    def _start(self, event: ChunkRequested, *, is_crossing: bool = False) -> None:
        self._active[_key(event)] = Upload(event, is_crossing)
        pace = self._pace_bytes_per_s()
        self._orders.append(
            StartUpload(event.peer, event.session, event.version, event.chunk, pace)
        )

    def sampled(
        self, bytes_out: int, uplink_bytes_per_s: float, chunk_bytes: int, now: float
    ) -> None:
        """Payload bytes sent since the start, every few hundred milliseconds; the uplink's rate, 0
        while it is not known, and the largest chunk that is served."""
        then, before = self._sample
        if now > then:
            rate = (bytes_out - before) / (now - then)
            self._bytes_per_s = max(rate, RATE_MEMORY * self._bytes_per_s)
            if now - then > SILENCE_S:
                self._bytes_per_s = 0.0  # A mean over an idle time says nothing.
            self._sample = (now, bytes_out)
        self._uplink_bytes_per_s = uplink_bytes_per_s
        self._chunk_bytes = chunk_bytes

    def _pace_bytes_per_s(self) -> int:
        """What the next upload may take; 0: all it can."""
        count = self.active_count
        is_full = self._bytes_per_s >= FULL_SHARE * self._uplink_bytes_per_s
        if count < 2 or not self._bytes_per_s or not is_full:
            return 0
        most = max(PACE_FACTOR * self._bytes_per_s, self._uplink_bytes_per_s)
        return int(max(most / count, self._chunk_bytes / PACED_CHUNK_S))

    def _refuse(self, event: ChunkRequested, reason: RefuseReason) -> None:
        self.refused_count += 1
        load = self.load_for(event.peer)
        self._orders.append(
            RefuseRequest(event.peer, event.session, event.version, event.chunk, reason, load)
        )

    def check_invariants(self) -> None:
        assert len(self._queue) <= 2 * self._queue_count
        assert not any(self._has_slot(peer) for peer, _ in self._queue)
        assert not self._queue.keys() & self._active.keys()
        assert self._crossing_count() <= CROSSINGS_MAX
        assert self.doubt_ends_at == min(self._doubted.values(), default=math.inf)


def _key(event: ChunkRequested) -> SessionKey:
    return (event.peer, event.session)
