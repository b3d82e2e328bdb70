"""What reads of the origin show of it: kinds of failure, since when, and when each is over."""

from __future__ import annotations

import pytest

from swarm.agent.documents import MISSING_RETRY_S_MAX
from swarm.agent.origin_health import (
    LOG_INTERVAL_S,
    MEMORY_S,
    Document,
    OriginFault,
    OriginHealth,
    fault_of,
)
from swarm.errors import (
    AuthError,
    IntegrityError,
    ManifestError,
    NoSpaceError,
    NotFoundError,
    OriginAnswerError,
    OriginError,
    OriginThrottledError,
    StoreError,
    SwarmError,
)
from swarm.protocol.ids import ChunkIndex, VersionId

VERSION = VersionId(bytes(32))
OTHER = VersionId(b"o" * 32)


def chunk(number: int) -> ChunkIndex:
    return ChunkIndex(number)


def faults(health: OriginHealth, now: float) -> dict[OriginFault, float]:
    """What is wrong, and since when."""
    return {found.fault: found.since for found in health.degradations(now=now)}


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (OriginThrottledError("x"), OriginFault.THROTTLED),
        (OriginError("x", is_retryable=True), OriginFault.UNREACHABLE),
        (OriginError("x", is_retryable=False), OriginFault.WRONG_ANSWER),
        (OriginAnswerError("x"), OriginFault.UNREACHABLE),
        (AuthError("x"), OriginFault.DENIED),
        (NotFoundError("x"), OriginFault.MISSING),
        (IntegrityError("x"), OriginFault.CORRUPT),
        (ManifestError("x"), OriginFault.CORRUPT),
        (StoreError("x"), None),
        (NoSpaceError("x"), None),
    ],
)
def test_each_failure_has_its_kind(error: SwarmError, fault: OriginFault | None) -> None:
    """Our own disk is none of the origin's faults."""
    assert fault_of(error) is fault
    health = OriginHealth()
    health.failed(VERSION, chunk(0), error, now=1.0)
    assert set(faults(health, 1.0)) == ({fault} if fault else set())
    assert sum(health.failure_counts.values()) == (1 if fault else 0)


@pytest.mark.parametrize(
    "error", [OriginThrottledError("x"), OriginError("x", is_retryable=True), AuthError("x")]
)
def test_the_origin_as_a_whole_is_well_with_any_read(error: SwarmError) -> None:
    health = OriginHealth()
    health.failed(VERSION, chunk(3), error, now=1.0)
    health.failed(OTHER, Document.MANIFEST, error, now=2.0)
    assert list(faults(health, 2.0).values()) == [1.0]
    assert health.degradations(now=2.0)[0].failures == 2
    health.succeeded(VERSION, chunk(4), now=3.0)
    assert faults(health, 3.0) == {}


@pytest.mark.parametrize("part", [chunk(1), Document.MANIFEST, Document.LOCATIONS])
def test_one_object_is_well_when_it_was_read_itself(part: ChunkIndex | Document) -> None:
    """A chunk whose number equals that of a document's kind is another part."""
    health = OriginHealth()
    health.failed(VERSION, part, NotFoundError("gone"), now=1.0)
    for other in {chunk(0), chunk(1), chunk(2), *Document} - {part}:
        health.succeeded(VERSION, other, now=2.0)
    health.succeeded(OTHER, part, now=2.0)
    assert faults(health, 3.0) == {OriginFault.MISSING: 1.0}
    health.succeeded(VERSION, part, now=4.0)
    assert faults(health, 4.0) == {}


def test_a_version_is_well_when_all_its_parts_are() -> None:
    health = OriginHealth()
    health.failed(VERSION, chunk(1), NotFoundError("first"), now=1.0)
    health.failed(VERSION, chunk(2), NotFoundError("second"), now=2.0)
    health.failed(OTHER, chunk(7), NotFoundError("of another"), now=1.5)
    health.succeeded(VERSION, chunk(1), now=3.0)
    (found,) = health.degradations(now=3.0)
    assert (found.since, found.last_at, found.failures) == (1.0, 2.0, 3)
    assert found.message == "second"
    health.succeeded(VERSION, chunk(2), now=4.0)
    assert [found.message for found in health.degradations(now=4.0)] == ["of another"]


def test_kinds_are_told_apart() -> None:
    health = OriginHealth()
    health.failed(VERSION, chunk(1), NotFoundError("gone"), now=1.0)
    health.failed(VERSION, chunk(2), OriginThrottledError("slow down"), now=2.0)
    assert faults(health, 2.0) == {OriginFault.MISSING: 1.0, OriginFault.THROTTLED: 2.0}
    health.succeeded(VERSION, chunk(2), now=3.0)
    assert faults(health, 3.0) == {OriginFault.MISSING: 1.0}


def test_trouble_begins_anew_after_it_was_over() -> None:
    health = OriginHealth()
    health.failed(VERSION, chunk(1), OriginThrottledError("x"), now=1.0)
    health.succeeded(VERSION, chunk(1), now=2.0)
    health.failed(VERSION, chunk(1), OriginThrottledError("x"), now=9.0)
    assert faults(health, 9.0) == {OriginFault.THROTTLED: 9.0}
    assert health.failure_counts[OriginFault.THROTTLED] == 2


def test_what_is_not_met_again_is_forgotten() -> None:
    """Trouble that lasts is met again; its beginning stays."""
    health = OriginHealth()
    health.failed(VERSION, chunk(1), NotFoundError("x"), now=1.0)
    health.failed(VERSION, chunk(1), NotFoundError("x"), now=50.0)
    assert faults(health, 50.0 + MEMORY_S) == {OriginFault.MISSING: 1.0}
    assert faults(health, 51.0 + MEMORY_S) == {}
    assert health.failure_counts[OriginFault.MISSING] == 2


def test_an_origin_that_asked_to_wait_is_remembered_for_as_long() -> None:
    health = OriginHealth()
    health.failed(VERSION, chunk(1), OriginThrottledError("x", retry_after_s=600.0), now=0.0)
    assert faults(health, 600.0 + MEMORY_S) == {OriginFault.THROTTLED: 0.0}
    assert faults(health, 601.0 + MEMORY_S) == {}


def test_no_search_pauses_for_longer_than_trouble_is_remembered() -> None:
    assert 2 * MISSING_RETRY_S_MAX <= MEMORY_S


def test_an_outage_is_one_line_each_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """A hundred failed reads a second for a minute."""
    caplog.set_level("INFO")
    health = OriginHealth()
    for tick in range(6000):
        health.failed(VERSION, chunk(tick), OriginThrottledError("503"), now=tick / 100)
    assert len(caplog.records) == 60 / LOG_INTERVAL_S
    health.succeeded(VERSION, chunk(1), now=60.0)
    assert "well again after 60 s" in caplog.text
    health.failed(VERSION, chunk(1), OriginThrottledError("once more"), now=61.0)
    assert "once more" in caplog.text


def test_an_origin_that_comes_and_goes_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every second read fails for a minute: two lines each ten seconds."""
    caplog.set_level("INFO")
    health = OriginHealth()
    for tick in range(6000):
        health.failed(VERSION, chunk(1), OriginThrottledError("503"), now=tick / 100)
        health.succeeded(VERSION, chunk(1), now=tick / 100)
    assert len(caplog.records) == 2 * 60 / LOG_INTERVAL_S
