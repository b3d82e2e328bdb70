"""Which source, then which chunk of it.

Source first: of the neighbours that have something useful the one with the least known load for its
size, ties at random. Then its rarest useful chunk, counted over our neighbours, ties at random.
Choosing the chunk first and then a holder of it ends later (p99 1.058 against 1.048 of the bound),
because rare chunks pull everybody to the same few holders. Rarest against random is worth 0.3 to
0.6 %; ties at random matter more, or all nodes would ask for the same chunk.

Neighbours that were cut as slow are asked in a second pass only, so that a slow sole holder is
still a holder.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

from swarm.policy.download import Download
from swarm.policy.peers import Neighbour
from swarm.policy.transfers import Transfer
from swarm.protocol.availability import Availability
from swarm.protocol.chunk_set import pick_bit
from swarm.protocol.ids import ChunkIndex

AVOIDED_WAIT_S = 1.0
"""A slow source is worth it only if nobody else can be asked for so long. Asked whenever all others
were busy for a moment, one at a twentieth of the common rate held a session for seconds again and
again."""


def pick_rarest(availability: Availability, useful: int, rng: random.Random) -> ChunkIndex:
    """A random one of the rarest chunks in `useful`, which must not be empty."""
    rarest = availability.rarest(useful)
    if not rarest & (rarest - 1):
        return ChunkIndex(rarest.bit_length() - 1)
    return pick_bit(rarest, rng)


def pick_chunk(download: Download, link: Neighbour, useful: int, rng: random.Random) -> ChunkIndex:
    """The rarest of `useful` at a neighbour that has some of it; a rack mate's by how many of the
    rack hold it, for there it is to spread."""
    holders = download.rack_availability if link.is_mate else download.availability
    return pick_rarest(holders, link.announced[download.version] & useful, rng)


def other_sources(transfer: Transfer, links: Iterable[Neighbour]) -> list[Neighbour]:
    """Those of `links` that hold a transfer's chunk too and are no slow sources themselves."""
    version, chunk, peer = transfer.download.version, transfer.chunk, transfer.peer
    return [
        link
        for link in links
        if link.announced.get(version, 0) >> chunk & 1
        and link.info.node_id != peer
        and not link.is_avoided
    ]


@dataclass(slots=True)
class Survey:
    """What a look over the neighbours found."""

    # The least loaded neighbours with something useful; any of them will do.
    best: list[Neighbour]
    # When the first neighbour that is resting or busy may be asked; infinite if there is none.
    ask_at: float


def survey_sources(
    download: Download,
    useful: int,
    links: Iterable[Neighbour],
    load_age_s: float,
    now: float,
) -> Survey:
    """Find who could give a chunk of `useful`.

    A neighbour whose known load fills all its places (slots and queue) is passed over while that
    knowledge is younger than `load_age_s`; older knowledge only orders the candidates, because a
    node that has everything announces nothing and would seem busy for ever.
    """
    version = download.version
    best: list[Neighbour] = []
    avoided: list[Neighbour] = []
    least = math.inf
    ask_at = math.inf
    for link in links:
        if not link.announced.get(version, 0) & useful:
            continue
        if link.rest_until > now:
            ask_at = min(ask_at, link.rest_until)
        elif link.load >= link.places and link.load_at + load_age_s > now:
            ask_at = min(ask_at, link.load_at + load_age_s)
        elif link.is_avoided and link.avoided_until > now:
            avoided.append(link)
        elif (load := link.load / link.places) < least:
            least = load
            best = [link]
        elif load == least:
            best.append(link)
    if not best and ask_at > now + AVOIDED_WAIT_S:
        best = avoided
    return Survey(best, ask_at)
