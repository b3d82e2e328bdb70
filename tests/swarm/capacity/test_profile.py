"""Profiles go out and come back as they were; whatever a reader cannot trust it refuses."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from swarm.capacity.profile import (
    AgentProfile,
    DiskProfile,
    NetworkProfile,
    OriginProfile,
    Profile,
    format_profile,
    measurements,
    median_profile,
    parse_profile,
)
from swarm.errors import UsageError

PROFILE = Profile(
    measured_at="2026-12-01T02:00:00Z",
    network=NetworkProfile(receive_bytes_per_s=2.8e6, header_share=0.0),
    agent=AgentProfile(chunk_gap_s=0.0001),
    disk=DiskProfile(write_bytes_per_s=1e9),
    origin=OriginProfile(first_byte_s_min=0.03, first_byte_s_max=0.1),
    notes=("two machines",),
)


def test_a_profile_comes_back_as_it_was() -> None:
    assert parse_profile(format_profile(PROFILE), "p") == PROFILE


def test_what_was_not_measured_is_absent() -> None:
    assert "rtt_s" not in format_profile(PROFILE)
    assert set(measurements(PROFILE)) == {
        "network.receive_bytes_per_s",
        "network.header_share",
        "agent.chunk_gap_s",
        "disk.write_bytes_per_s",
        "origin.first_byte_s_min",
        "origin.first_byte_s_max",
    }


def test_several_profiles_are_their_medians() -> None:
    rates = (1e6, 5e6, 2e6)
    profiles = [
        replace(PROFILE, network=NetworkProfile(receive_bytes_per_s=rate)) for rate in rates
    ]
    profiles.append(replace(PROFILE, network=NetworkProfile(rtt_s=0.001)))
    middle = median_profile(profiles)
    assert middle.network == NetworkProfile(receive_bytes_per_s=2e6, rtt_s=0.001)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "other"}, "no profile"),
        ({"schema_version": 2}, "schema_version is 2; this program reads 1"),
        ({"schema_version": None}, "schema_version is None"),
        ({"network": {"rtt_ms": 1.0}}, "network.rtt_ms: unknown key"),
        ({"network": {"rtt_s": "1ms"}}, "network.rtt_s: is no number"),
        ({"network": {"rtt_s": True}}, "network.rtt_s: is no number"),
        ({"disk": {"write_bytes_per_s": 0}}, "is 0, not above zero"),
        ({"agent": {"verify_s": -1}}, "is -1, not zero or more"),
        ({"disk": []}, "disk: is no object"),
        ({"machine": {"cpu_count": -1}}, "machine.cpu_count: is no count"),
        ({"measured_at": ""}, "measured_at: is missing"),
        ({"measured_at": 3}, "measured_at: is no text"),
        ({"notes": "x"}, "notes: is no list"),
        ({"speed": 3}, "speed: unknown key"),
    ],
)
def test_a_profile_that_cannot_be_trusted_is_refused(change: dict[str, object], said: str) -> None:
    document = json.loads(format_profile(PROFILE)) | change
    with pytest.raises(UsageError, match=said) as caught:
        parse_profile(json.dumps(document), "profile.json")
    assert "profile.json" in caught.value.message
    assert "swarm bench fleet" in caught.value.hint


@pytest.mark.parametrize("text", ["", "[]", "{", "nan"])
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"profile\.json"):
        parse_profile(text, "profile.json")
