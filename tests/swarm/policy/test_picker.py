"""Pictures: rows are peers, columns chunks."""

from __future__ import annotations

import math
import random

from swarm.policy.download import Download
from swarm.policy.peers import Neighbour
from swarm.policy.picker import pick_rarest, survey_sources
from swarm.protocol.availability import Availability
from tests.support.story import (
    CHUNK_BYTES,
    VERSION,
    bits,
    default_settings,
    peer_info,
    picture,
)


def neighbours(text: str) -> tuple[Download, dict[str, Neighbour]]:
    rows = picture(text)
    mine = rows.pop("me")
    lengths = (CHUNK_BYTES,) * len(mine)
    download = Download(VERSION, lengths, bits(mine), default_settings(), 0.0)
    links = {}
    for name, row in rows.items():
        links[name] = Neighbour(peer_info(name), 0, is_outgoing=True, useful_at=0.0, places=3)
        links[name].announced[VERSION] = bits(row)
        download.availability.add(bits(row))
    return download, links


def sources(download: Download, links: dict[str, Neighbour], now: float = 0.0) -> str:
    survey = survey_sources(download, download.wanted, links.values(), 1.0, now)
    return "".join(chr(link.info.node_id[0]) for link in survey.best)


def test_rarest_chunk_is_picked_first() -> None:
    download, links = neighbours("""
        me  #.....
        B   ######
        C   ####..
        D   #####.
    """)
    useful = links["B"].announced[VERSION] & download.wanted
    assert pick_rarest(download.availability, useful, random.Random(1)) == 5
    assert pick_rarest(download.availability, bits("..####"), random.Random(1)) == 5
    assert pick_rarest(download.availability, bits("..#.#."), random.Random(1)) == 4


def test_ties_between_chunks_are_broken_at_random() -> None:
    availability = Availability()
    availability.add(bits("####"))
    rng = random.Random(1)
    picks = {int(pick_rarest(availability, bits(".###"), rng)) for _ in range(100)}
    assert picks == {1, 2, 3}


def test_only_peers_with_something_wanted_are_sources() -> None:
    download, links = neighbours("""
        me  ##..
        B   ##..
        C   #.#.
        D   ....
    """)
    assert sources(download, links) == "C"


def test_the_least_loaded_sources_are_best() -> None:
    download, links = neighbours("""
        me  ....
        B   ####
        C   ####
        D   ####
    """)
    links["B"].load = 2
    assert sources(download, links) == "CD"
    links["D"].load = 1
    assert sources(download, links) == "C"


def test_load_is_judged_by_the_size_of_the_peer() -> None:
    download, links = neighbours("""
        me  ....
        B   ####
        C   ####
    """)
    links["B"].load, links["B"].places = 3, 9
    links["C"].load, links["C"].places = 2, 3
    assert sources(download, links) == "B"


def test_a_full_peer_is_passed_over_until_its_load_is_old() -> None:
    download, links = neighbours("""
        me  ....
        B   ####
    """)
    links["B"].hear_load(3, 10.0)
    survey = survey_sources(download, download.wanted, links.values(), 0.5, 10.25)
    assert not survey.best
    assert survey.ask_at == 10.5
    assert sources(download, links, now=11.0) == "B"


def test_a_resting_peer_is_passed_over() -> None:
    download, links = neighbours("""
        me  ....
        B   ####
        C   ....
    """)
    links["B"].rest_until = 5.0
    survey = survey_sources(download, download.wanted, links.values(), 0.5, 4.0)
    assert (survey.best, survey.ask_at) == ([], 5.0)
    assert sources(download, links, now=5.0) == "B"


def test_an_avoided_peer_is_asked_only_when_nobody_else_has_anything() -> None:
    download, links = neighbours("""
        me  ....
        B   ####
        C   #...
    """)
    links["B"].avoid(0.0)
    assert sources(download, links) == "C"
    download.in_flight = bits("#...")
    assert sources(download, links) == "B"


def test_a_moment_is_waited_for_others_before_an_avoided_peer_is_asked() -> None:
    download, links = neighbours("""
        me  ....
        B   ####
        C   ####
    """)
    links["B"].avoid(1.0)
    links["C"].rest_until = 2.5
    survey = survey_sources(download, download.wanted, links.values(), 0.5, 1.6)
    assert (survey.best, survey.ask_at) == ([], 2.5)
    assert sources(download, links, now=1.4) == "B"


def test_an_avoided_peer_gets_another_chance_later_after_each_cut() -> None:
    download, links = neighbours("""
        me  ....
        B   ####
        C   ####
    """)
    links["C"].hear_load(1, 0.0)
    links["B"].avoid(1.0)
    assert sources(download, links, now=10.9) == "C"
    assert sources(download, links, now=11.0) == "B"
    links["B"].avoid(11.0)
    assert sources(download, links, now=30.9) == "C"
    assert sources(download, links, now=31.0) == "B"


def test_nobody_to_ask_means_no_instant_to_wait_for() -> None:
    download, links = neighbours("""
        me  ....
        B   ....
    """)
    survey = survey_sources(download, download.wanted, links.values(), 0.5, 0.0)
    assert (survey.best, survey.ask_at) == ([], math.inf)
