"""What a MAC covers, and what is a replay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.errors import AuthError
from swarm.protocol.ids import Identity, NodeId
from swarm.protocol.request_auth import (
    CLOCK_SKEW_MS_MAX,
    WINDOW,
    ReplayWindow,
    Role,
    Stamp,
    agent_nonce,
    format_credentials,
    is_timely,
    parse_credentials,
    reply_mac,
    request_mac,
    role_key,
)

SECRET = bytes(range(32))
KEY = role_key(SECRET, Role.AGENT)
STAMP = Stamp(Role.AGENT, Identity(NodeId(b"n" * 16), 7), 1_764_500_000_000, b"c" * 16)


def test_the_header_round_trips() -> None:
    mac = request_mac(KEY, STAMP, "POST", "/v1/report", b"body")
    credentials = parse_credentials(format_credentials(STAMP, mac))
    assert (credentials.stamp, credentials.mac) == (STAMP, mac)


def test_without_a_key_the_mac_is_empty() -> None:
    assert parse_credentials(format_credentials(STAMP, b"")).mac == b""


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer abc",
        "Swarm role=root,node=00,generation=1,time=1,nonce=00,mac=",
        format_credentials(STAMP, b"") + " ",
        format_credentials(STAMP, b"short"),
        format_credentials(replace(STAMP, sent_at_ms=10**18), b""),
    ],
)
def test_other_headers_are_refused(header: str) -> None:
    with pytest.raises(AuthError):
        parse_credentials(header)


@pytest.mark.parametrize(
    ("stamp", "method", "target", "body"),
    [
        (replace(STAMP, role=Role.OPERATOR), "POST", "/a?b", b"c"),
        (replace(STAMP, identity=Identity(NodeId(b"m" * 16), 7)), "POST", "/a?b", b"c"),
        (replace(STAMP, identity=Identity(NodeId(b"n" * 16), 8)), "POST", "/a?b", b"c"),
        (replace(STAMP, sent_at_ms=1), "POST", "/a?b", b"c"),
        (replace(STAMP, nonce=b"d" * 16), "POST", "/a?b", b"c"),
        (STAMP, "GET", "/a?b", b"c"),
        (STAMP, "POST", "/a", b"c"),
        (STAMP, "POST", "/a?b", b""),
        (STAMP, "POS", "T/a?b", b"c"),
    ],
)
def test_everything_is_covered(stamp: Stamp, method: str, target: str, body: bytes) -> None:
    mac = request_mac(KEY, STAMP, "POST", "/a?b", b"c")
    assert request_mac(KEY, stamp, method, target, body) != mac


def test_roles_have_keys_of_their_own() -> None:
    assert role_key(SECRET, Role.OPERATOR) != KEY
    assert role_key(SECRET, Role.AGENT) == KEY


def test_a_reply_answers_one_request() -> None:
    mac = reply_mac(KEY, STAMP.nonce, 200, b"body")
    assert reply_mac(KEY, b"d" * 16, 200, b"body") != mac
    assert reply_mac(KEY, STAMP.nonce, 404, b"body") != mac
    assert reply_mac(KEY, STAMP.nonce, 200, b"other") != mac


@pytest.mark.parametrize(
    ("skew_ms", "timely"), [(0, True), (1, True), (300_000, True), (300_001, False)]
)
def test_time_is_judged_both_ways(skew_ms: int, timely: bool) -> None:
    assert CLOCK_SKEW_MS_MAX == 300_000
    assert is_timely(STAMP, now_ms=STAMP.sent_at_ms + skew_ms) is timely
    assert is_timely(STAMP, now_ms=STAMP.sent_at_ms - skew_ms) is timely


def test_a_nonce_carries_its_counter() -> None:
    assert replace(STAMP, nonce=agent_nonce(12345, b"r" * 8)).counter == 12345


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 200), max_size=100))
def test_the_window_lets_each_recent_counter_in_once(counters: list[int]) -> None:
    window = ReplayWindow()
    accepted: set[int] = set()
    highest = -1
    for counter in counters:
        is_new = counter not in accepted and counter > highest - WINDOW
        assert window.accept(counter) is is_new
        if is_new:
            accepted.add(counter)
        highest = max(highest, counter)
