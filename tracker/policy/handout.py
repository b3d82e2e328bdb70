"""Whom an agent is told to connect to.

**Rule.** Up to 33 agents everybody knows everybody. Above, a joiner is given K/2 random live
agents, seven eighths of them in its own zone, and edges count for both ends, so that the mean
degree becomes K. An agent whose edges fell below K/2 (its neighbours died, or it came first) is
given more. Nobody takes more than 3K edges, and the newest join with the least, so places for
newcomers are always left.

**Racks.** An agent whose rack is known is given all its rack mates (up to 40), and of others what
is missing to K/2, two at least: mates fetch from each other, and what a rack lacks comes in through
the few links to others (`swarm.policy.racks`).

The joiner dials; the other end learns of the edge when it is dialled. So a boot of thousands of
agents tells each of them once, and not once for each joiner.

A random graph of degree 16 is connected and a few hops wide at any size of interest; the study
found no gain in a better one (tracker-directed matching: 1.030 against 1.030).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from swarm.protocol.ids import NodeId
from tracker.policy.settings import HandoutSettings


@dataclass(slots=True)
class Place:
    """An agent's place in the graph of one version."""

    node_id: NodeId
    zone: str
    # Zone and rack; None: no rack is known.
    rack: tuple[str, str] | None
    # Both directions; a dict for its order.
    edges: dict[NodeId, None] = field(default_factory=dict)
    # The edges that this agent is told to open.
    told: dict[NodeId, None] = field(default_factory=dict)
    # Where it stands in the two lists below.
    index: int = 0
    zone_index: int = 0


class Handouts:
    """The graph of one version. Every method returns the agents whose handout changed."""

    def __init__(self, settings: HandoutSettings, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self._places: dict[NodeId, Place] = {}
        self._everyone: list[Place] = []
        self._zones: dict[str, list[Place]] = {}
        # Racks of different zones may have the same name. Dicts for their order.
        self._racks: dict[tuple[str, str], dict[NodeId, Place]] = {}

    def told(self, node_id: NodeId) -> tuple[NodeId, ...]:
        """Whom this agent shall connect to."""
        return tuple(self._places[node_id].told)

    def is_member(self, node_id: NodeId) -> bool:
        return node_id in self._places

    def degree(self, node_id: NodeId) -> int:
        return len(self._places[node_id].edges)

    def join(self, node_id: NodeId, zone: str, rack: str = "") -> list[NodeId]:
        """Give a joiner its place; an empty `rack` is an unknown one."""
        place = Place(node_id, zone, (zone, rack) if rack else None, index=len(self._everyone))
        if place.rack is not None:
            self._racks.setdefault(place.rack, {})[node_id] = place
        self._places[node_id] = place
        self._everyone.append(place)
        zone_members = self._zones.setdefault(zone, [])
        place.zone_index = len(zone_members)
        zone_members.append(place)
        self.top_up(node_id)
        return [node_id]

    def leave(self, node_id: NodeId) -> list[NodeId]:
        """Take an agent out of everybody's handout and give its neighbours others where needed."""
        place = self._places.pop(node_id)
        _remove_at(self._everyone, place.index, "index")
        zone_members = self._zones[place.zone]
        _remove_at(zone_members, place.zone_index, "zone_index")
        if not zone_members:
            del self._zones[place.zone]
        if place.rack is not None:
            mates = self._racks[place.rack]
            del mates[node_id]
            if not mates:
                del self._racks[place.rack]
        changed = []
        for neighbour_id in place.edges:
            neighbour = self._places[neighbour_id]
            was_told = _drop_edge(neighbour, node_id)
            if self.top_up(neighbour_id) or was_told:
                changed.append(neighbour_id)
        return changed

    def replace(self, node_id: NodeId, useless: NodeId) -> list[NodeId]:
        """`node_id` cannot reach `useless`: drop the edge, give another."""
        place = self._places.get(node_id)
        other = self._places.get(useless)
        if place is None or other is None or useless not in place.edges:
            return []
        was_told = _drop_edge(place, useless)
        other_was_told = _drop_edge(other, node_id)
        changed = [node_id] if self.top_up(node_id, avoid=useless) or was_told else []
        return [*changed, useless] if other_was_told else changed

    def neighbours_told_of(self, node_id: NodeId) -> list[NodeId]:
        """Agents that are told to connect to this one."""
        edges = self._places[node_id].edges
        return [other for other in edges if node_id in self._places[other].told]

    def top_up(self, node_id: NodeId, *, avoid: NodeId | None = None) -> bool:
        """Give an agent as many edges as it should have; True if there were any to give."""
        place = self._places[node_id]
        if len(self._everyone) <= self._settings.full_mesh_agents:
            chosen = [
                other
                for other in self._everyone
                if other is not place
                and other.node_id not in place.edges
                and other.node_id != avoid
            ]
        else:
            chosen = self._choose_mates(place, avoid)
            outside_count = self._outside_count(place)
            mate_count = len(place.edges) - outside_count + len(chosen)
            wanted = max(self._settings.neighbours // 2 - mate_count, self._settings.outside_rack)
            chosen += self._choose(place, wanted - outside_count, avoid)
        for other in chosen:
            place.edges[other.node_id] = None
            place.told[other.node_id] = None
            other.edges[node_id] = None
        return bool(chosen)

    def _choose_mates(self, place: Place, avoid: NodeId | None) -> list[Place]:
        """All agents of its rack, as far as there is room."""
        if place.rack is None:
            return []
        room = self._settings.mates_max - (len(place.edges) - self._outside_count(place))
        ready = [
            mate
            for mate in self._racks[place.rack].values()
            if mate is not place and mate.node_id not in place.edges and mate.node_id != avoid
        ]
        return ready[: max(room, 0)]

    def _choose(self, place: Place, wanted: int, avoid: NodeId | None) -> list[Place]:
        """Random agents with room that are no rack mates, most of them in the agent's own zone."""
        if wanted <= 0:
            return []
        chosen: dict[NodeId, Place] = {}
        near_wanted = round(wanted * self._settings.own_zone_share)
        near = self._zones[place.zone]
        for source, count in ((near, near_wanted), (self._everyone, wanted)):
            # Four draws for each place: enough unless nearly all are full or known.
            sample = self._rng.sample(source, min(len(source), 4 * count + 1))
            for other in sample:
                if len(chosen) >= count:
                    break
                if self._has_room(other, place) and other.node_id != avoid:
                    chosen[other.node_id] = other
        return list(chosen.values())

    def _has_room(self, other: Place, place: Place) -> bool:
        settings = self._settings
        limit = settings.degree_factor * settings.neighbours
        is_mate = other.rack is not None and other.rack == place.rack
        is_new = other is not place and other.node_id not in place.edges and not is_mate
        return is_new and self._outside_count(other) < limit

    def _outside_count(self, place: Place) -> int:
        """Edges that leave the agent's rack."""
        if place.rack is None:
            return len(place.edges)
        mates = self._racks[place.rack]
        return sum(other not in mates for other in place.edges)


def _drop_edge(place: Place, node_id: NodeId) -> bool:
    """Remove an edge at one end; True if this end was told to open it."""
    del place.edges[node_id]
    was_told = node_id in place.told
    place.told.pop(node_id, None)
    return was_told


def _remove_at(places: list[Place], index: int, attribute: str) -> None:
    """Remove in O(1): the last takes the place of the removed."""
    last = places.pop()
    if index < len(places):
        places[index] = last
        setattr(last, attribute, index)
