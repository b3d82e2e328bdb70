"""The neighbourhood: whom we know, whom we are linked to, whom we dial and whom we let go.

Up to 33 nodes everybody links to everybody. Beyond, each node dials K/2 = 8 others at random and is
dialled by as many, which gives a random graph of degree K = 16 with room (3K) for newcomers; more
neighbours gain less than 0.1 % and cost messages in proportion, 8 lose up to 1 %. A link that could
serve neither side for ten seconds makes room for another. Most of a node's dials go to its own
zone, some outside so that no zone becomes an island.

Two agents that learn of each other at the same time would both dial. The network keeps one of two
links; to make that rare the one with the higher id waits a few round trips first. A failed dial is
not repeated for 30 s, doubling, and the tracker hears of an address that does not answer.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from swarm.policy.commands import Command, ConnectPeer, DisconnectPeer, ReportUnreachable
from swarm.policy.events import ConnectFailed, PeerConnected, PeerLost
from swarm.policy.settings import NodeSettings
from swarm.protocol.ids import ChunkIndex, NodeId, VersionId
from swarm.protocol.messages import PeerInfo

DIAL_HOLD_S = 0.05
"""The higher id waits so long for the lower one's dial: some round trips within a region."""
DIALS_MAX = 16
"""Dials under way at once: twenty black holes of 2 s each cost five seconds, not forty."""
REDIAL_S = 30.0
"""After a failed dial; doubles with each further one."""
REDIAL_S_MAX = 480.0
RECONNECT_S = 0.5
"""After a link broke: a restarted agent answers by then."""
MATES_MAX = 40
"""Links to rack mates, beside the 3K places for others; a rack has no more nodes than that."""
OUTSIDE_RACK = 2
"""Links that a node with many rack mates opens to others; as many come in. With four of each the
same time (1.050 and 1.049 at p50) and a tenth more messages (16 racks of 16, simulated)."""
KNOWN_MAX = 1024
"""Agents remembered; far more than are ever linked, far less than a fleet."""
DEGREE_FACTOR_MAX = 3
"""Links accepted, as a multiple of K: newcomers find a place even when all dial the same node."""
OUTSIDE_SHARE = 0.25
"""Part of the dials that ignores zones."""
REWIRE_S = 5.0
"""Between two looks at useless links, one of which is exchanged at a time."""
USELESS_S = 10.0
"""A link is useless when neither side could serve the other for so long."""
BAN_S = 600.0
"""A dropped peer is not dialled or accepted for so long."""
AVOID_S = 10.0
"""How long a source that was cut is avoided at first; as the tracker does with slow lease holders.
Avoided for ever, a healthy node that had been cut in a crowd kept two rare chunks until its
neighbours had everything else, at 1.18 of the bound."""
AVOID_DOUBLINGS_MAX = 4
ANNOUNCED_VERSIONS_MAX = 64
"""Versions remembered per neighbour; as many as a cache holds at most."""


@dataclass(slots=True, eq=False)
class Neighbour:
    """A peer with a control link."""

    info: PeerInfo
    # Announced NIC rate in bytes/s; 0: unknown.
    nic_bytes_per_s: int
    is_outgoing: bool
    # When either side last had something for the other.
    useful_at: float
    # It is of our rack.
    is_mate: bool = False
    # What it holds, by version; a version is absent while it takes no part in it.
    announced: dict[VersionId, int] = field(default_factory=dict)
    # What our bit field told it of versions whose bit field it still owes us.
    introduced: dict[VersionId, int] = field(default_factory=dict)
    # Its uploads active and queued as last told, and our sessions begun since.
    load: int = 0
    load_at: float = -math.inf
    # Its slots and queue, as far as we can tell.
    places: int = 1
    # Not asked before this instant: it said that it is busy, or its data link broke.
    rest_until: float = -math.inf
    # Refusals and broken data links in a row.
    refusal_count: int = 0
    # It was cut as a slow source, and neither came up to its fair share nor got another chance
    # since: no alternative to anybody.
    is_avoided: bool = False
    # Until then it is asked only when nobody else has anything; then like any other, which is the
    # other chance.
    avoided_until: float = -math.inf
    # How often it was cut: each time it is left alone for longer.
    cut_count: int = 0
    # Our open sessions at it.
    session_count: int = 0
    # Wrong chunks that it sent, each with how often.
    corrupt: dict[tuple[VersionId, ChunkIndex], int] = field(default_factory=dict)
    # We are closing the link, and believe nothing that still comes.
    is_dropped: bool = False

    def avoid(self, now: float) -> None:
        """It was cut as a slow source: ask others first, for twice as long after each cut."""
        self.is_avoided = True
        self.avoided_until = now + AVOID_S * 2 ** min(self.cut_count, AVOID_DOUBLINGS_MAX)
        self.cut_count += 1

    def hear_load(self, load: int, now: float) -> None:
        """It said how busy it is."""
        self.load = load
        self.load_at = now


@dataclass(slots=True, eq=False)
class Known:
    """An agent that somebody named."""

    info: PeerInfo
    # Not dialled before.
    dial_at: float
    failure_count: int = 0
    is_dialling: bool = False
    # It sent too many wrong chunks; holds until `dial_at`.
    is_banned: bool = False
    # We closed the link ourselves: its loss says nothing about the agent.
    is_let_go: bool = False


class Neighbourhood:
    """Owned by the node. Invariant: a linked agent is known and not being dialled."""

    def __init__(
        self, settings: NodeSettings, me: NodeId, rng: random.Random, orders: list[Command]
    ) -> None:
        self._settings = settings
        self._me = me
        self._rng = rng
        self._orders = orders
        self._known: dict[NodeId, Known] = {}
        self.links: dict[NodeId, Neighbour] = {}
        # Those among them that are of our rack; kept, for each turn asks whether there are any.
        self.mate_count = 0
        self._dialling_count = 0
        self.is_leaving = False
        # When `dial` and `rewire` have something to do.
        self.dial_at = math.inf
        self.rewire_at = math.inf

    @property
    def me(self) -> NodeId:
        return self._me

    @property
    def zone(self) -> str:
        """Of this node."""
        return self._settings.zone

    @property
    def known_count(self) -> int:
        """Agents that are linked or may be reached, this node excluded."""
        return sum(not known.failure_count for known in self._known.values())

    def base_nic_bytes_per_s(self) -> int:
        """The slowest common NIC among neighbours, 0 when none is known: an eighth up from the
        slowest, past a crippled one. A quarter up, a fast node with two slow links of nine took
        them for crippled, ran 4 sessions and not 16, and ended at 1.76 of the bound, not 1.11."""
        links = self.links.values()
        announced = sorted(link.nic_bytes_per_s for link in links if link.nic_bytes_per_s)
        return announced[len(announced) // 8] if announced else 0

    def known_nodes(self, zone: str | None = None) -> list[NodeId]:
        """This node and every agent that is linked or may be reached, or those of them in one zone,
        for rendezvous hashing."""
        reachable = (known.info for known in self._known.values() if not known.failure_count)
        return [self._me, *(info.node_id for info in reachable if zone in (None, info.zone))]

    def learn(self, peers: Iterable[PeerInfo], now: float) -> None:
        """Agents named by the tracker, a seed list or a neighbour."""
        for info in peers:
            known = self._known.get(info.node_id)
            if known is not None:
                self._renew(known, info, now)
            elif info.node_id != self._me and self._has_room_to_know():
                hold_s = 0.0 if self._me < info.node_id else DIAL_HOLD_S
                self._known[info.node_id] = Known(info, now + hold_s)
        self.dial_at = now

    def _renew(self, known: Known, info: PeerInfo, now: float) -> None:
        if info.generation > known.info.generation:
            known.failure_count = 0
            known.dial_at = min(known.dial_at, now)
        if info.generation >= known.info.generation:
            known.info = info

    def _has_room_to_know(self) -> bool:
        """Make room by forgetting the agent with the most failures, if there is one."""
        if len(self._known) < KNOWN_MAX:
            return True
        worst = max(self._known.values(), key=lambda known: known.failure_count)
        if worst.failure_count and not worst.is_dialling:
            del self._known[worst.info.node_id]
            return True
        return False

    def connected(self, event: PeerConnected, now: float) -> Neighbour | None:
        """A link is up: the new neighbour, or None if it is not wanted and was told so."""
        node = event.peer.node_id
        known = self._known.get(node)
        if known is None:
            known = self._known[node] = Known(event.peer, now)
        self._dialled(known)
        known.info = event.peer
        if known.is_banned and known.dial_at > now:
            self._let_go(known, "it sent too many wrong chunks")
            return None
        known.failure_count = 0
        known.is_banned = False
        is_mate = self._is_mate(event.peer)
        if not self._has_place(is_mate):
            self._let_go(known, "no place for another link")
            return None
        self.mate_count += is_mate
        link = Neighbour(event.peer, event.nic_bytes_per_s, event.is_outgoing, now, is_mate)
        self.links[node] = link
        self.rewire_at = min(self.rewire_at, now + REWIRE_S)
        # A dial is over, so another may start.
        self.dial_at = now
        return link

    def _has_place(self, is_mate: bool) -> bool:
        if is_mate:
            return self.mate_count < MATES_MAX
        others_max = DEGREE_FACTOR_MAX * self._settings.neighbour_count
        return len(self.links) - self.mate_count < others_max

    def _is_mate(self, info: PeerInfo) -> bool:
        """Of our rack. Racks of different zones may have the same name."""
        settings = self._settings
        return bool(settings.rack) and (info.zone, info.rack) == (settings.zone, settings.rack)

    def connect_failed(self, event: ConnectFailed, now: float) -> None:
        known = self._known.get(event.peer)
        if known is None or event.peer in self.links:
            return
        self._dialled(known)
        known.failure_count += 1
        known.dial_at = now + min(REDIAL_S * 2 ** (known.failure_count - 1), REDIAL_S_MAX)
        if event.is_unreachable:
            self._orders.append(ReportUnreachable(event.peer))
        self.dial_at = now

    def lost(self, event: PeerLost, now: float) -> Neighbour | None:
        """A link is gone: the former neighbour, or None if it never was one."""
        link = self.links.pop(event.peer, None)
        self.mate_count -= link is not None and link.is_mate
        known = self._known.get(event.peer)
        if known is not None and not known.is_banned:
            known.dial_at = now + (REDIAL_S if event.is_clean else RECONNECT_S)
            known.failure_count += event.is_clean and not known.is_let_go
            known.is_let_go = False
        self.dial_at = now
        if not self.links:
            self.rewire_at = math.inf
        return link

    def _let_go(self, known: Known, detail: str) -> None:
        known.is_let_go = True
        self._orders.append(DisconnectPeer(known.info.node_id, detail))

    def _dialled(self, known: Known) -> None:
        if known.is_dialling:
            known.is_dialling = False
            self._dialling_count -= 1

    def drop(self, link: Neighbour, detail: str, now: float) -> None:
        """It sent too many wrong chunks: part for a while. What it holds is out of our reach, so
        the tracker must not count on it for us."""
        if link.is_dropped:
            return
        link.is_dropped = True
        known = self._known[link.info.node_id]
        known.is_banned = True
        known.failure_count += 1
        known.dial_at = now + BAN_S
        self._let_go(known, detail)
        self._orders.append(ReportUnreachable(link.info.node_id))

    def announce(self, link: Neighbour, version: VersionId, bits: int) -> bool:
        """Remember what a neighbour holds of a version; False if it names too many versions."""
        if version not in link.announced and len(link.announced) >= ANNOUNCED_VERSIONS_MAX:
            return False
        link.announced[version] = bits
        return True

    def dial(self, now: float) -> None:
        """Open as many links as are missing, and note when to look again."""
        self.dial_at = math.inf
        if self.is_leaving:
            return
        # The rack first, then the rest.
        for is_mate in (True, False) if self._settings.rack else (False,):
            room = min(self._missing(is_mate), DIALS_MAX - self._dialling_count)
            if room > 0:
                self._dial_some(is_mate, room, now)

    def _dial_some(self, is_mate: bool, room: int, now: float) -> None:
        ready: list[Known] = []
        for node, known in self._known.items():
            if known.is_dialling or node in self.links or self._is_mate(known.info) != is_mate:
                continue
            if known.dial_at <= now:
                ready.append(known)
            else:
                self.dial_at = min(self.dial_at, known.dial_at)
        for known in self._preferred(ready)[:room]:
            known.is_dialling = True
            known.is_banned = False
            self._dialling_count += 1
            self._orders.append(ConnectPeer(known.info))

    def _missing(self, is_mate: bool) -> int:
        """How many links to rack mates, or to others, are to be opened beside those that are being
        dialled."""
        if self._is_mesh():
            return len(self._known)
        links = [link for link in self.links.values() if link.is_mate == is_mate]
        alike = [known for known in self._known.values() if self._is_mate(known.info) == is_mate]
        dialling_count = sum(known.is_dialling for known in alike)
        if is_mate:
            return MATES_MAX - len(links) - dialling_count
        known_mate_count = len(self._known) - len(alike)
        wanted = max(self._settings.neighbour_count // 2 - known_mate_count, OUTSIDE_RACK)
        if len(links) >= 2 * wanted:
            return 0
        return wanted - sum(link.is_outgoing for link in links) - dialling_count

    def _is_mesh(self) -> bool:
        return len(self._known) < self._settings.mesh_node_count

    def _preferred(self, ready: list[Known]) -> list[Known]:
        """Random order, own zone first but for a share."""
        self._rng.shuffle(ready)
        if self._settings.zone:
            ready.sort(
                key=lambda known: (
                    known.info.zone != self._settings.zone and self._rng.random() > OUTSIDE_SHARE
                )
            )
        return ready

    def rewire(self, useless: Iterable[Neighbour], now: float) -> None:
        """Exchange one link that could serve neither side for long, if there is anybody else."""
        self.rewire_at = now + REWIRE_S
        useless_nodes = set()
        for link in useless:
            useless_nodes.add(link.info.node_id)
            is_spare = now - link.useful_at >= USELESS_S and not link.is_mate
            if is_spare and not self._is_mesh() and self._has_spare(now):
                self._let_go(self._known[link.info.node_id], "useless")
                break
        for node, link in self.links.items():
            if node not in useless_nodes:
                link.useful_at = now

    def _has_spare(self, now: float) -> bool:
        return any(
            node not in self.links and not known.is_dialling and known.dial_at <= now
            for node, known in self._known.items()
        )

    def check_invariants(self) -> None:
        dialling = [node for node, known in self._known.items() if known.is_dialling]
        assert len(dialling) == self._dialling_count <= DIALS_MAX
        assert not self.links.keys() & set(dialling)
        assert self.links.keys() <= self._known.keys()
        others_max = DEGREE_FACTOR_MAX * self._settings.neighbour_count
        assert len(self.links) - self.mate_count <= others_max
        assert self.mate_count <= MATES_MAX
        assert len(self._known) <= KNOWN_MAX + len(self.links)
        assert all(link.session_count >= 0 for link in self.links.values())
        assert self.mate_count == sum(link.is_mate for link in self.links.values())
