"""A node's events and commands become a trace that says what they said."""

from __future__ import annotations

import json

import pytest

from swarm.capacity import cold_start
from swarm.capacity.cold_start import ColdStartRecorder, TraceSettings, parse_trace
from swarm.errors import UsageError
from swarm.policy.commands import FetchFromOrigin, RequestChunk
from swarm.policy.events import (
    ChunkVerified,
    FailureReason,
    PeerConnected,
    TransferFailed,
    TransferId,
    VersionAdded,
)
from swarm.protocol.ids import ChunkIndex, NodeId, SessionId, VersionId
from tests.support.story import peer_info

VERSION = VersionId(bytes(32))
OTHER = VersionId(bytes([1]) * 32)
PEER = NodeId(bytes([7]) * 16)
SETTINGS = TraceSettings(zone="a", nic_bytes_per_s=1e9)


def request(transfer: int, chunk: int, version: VersionId = VERSION) -> RequestChunk:
    return RequestChunk(
        TransferId(transfer), PEER, SessionId(3), version, ChunkIndex(chunk), stripes=1
    )


def read(transfer: int, chunk: int) -> FetchFromOrigin:
    return FetchFromOrigin(TransferId(transfer), VERSION, ChunkIndex(chunk), connections=1)


def verified(chunk: int, transfer: int | None) -> ChunkVerified:
    known = None if transfer is None else TransferId(transfer)
    return ChunkVerified(VERSION, ChunkIndex(chunk), known)


@pytest.fixture
def recorder() -> ColdStartRecorder:
    """A node that began with the first of three chunks, at 100 s of its clock."""
    made = ColdStartRecorder("node", SETTINGS)
    made.watch([VersionAdded(VERSION, (10, 10, 5), 0b001)], [], 100.0, 5000.0)
    return made


def test_a_chunk_is_written_with_the_times_of_its_way(recorder: ColdStartRecorder) -> None:
    recorder.watch([], [request(1, 1), read(2, 2)], 101.0, 5001.0)
    recorder.begun(TransferId(1), 101.5)
    recorder.begun(TransferId(1), 101.7)
    recorder.received(TransferId(1), 102.0)
    recorder.watch([verified(1, 1)], [], 102.25, 5002.0)
    recorder.watch([verified(2, 2)], [], 103.0, 5003.0)
    trace = parse_trace(iter(recorder.lines), "trace")
    assert trace.start.settings == SETTINGS
    assert (trace.start.started_at, trace.start.held_count) == (5000.0, 1)
    assert (trace.start.total_bytes, trace.start.chunk_bytes) == (25, 10)
    peer, origin = trace.attempts
    assert (peer.asked_s, peer.begun_s, peer.received_s, peer.done_s) == (1.0, 1.5, 2.0, 2.25)
    assert (peer.source, peer.session, peer.outcome) == (PEER.hex(), 3, "verified")
    assert origin.is_origin
    assert (origin.begun_s, origin.done_s, origin.bytes) == (None, 3.0, 5)
    assert trace.end is not None
    assert trace.end.ready_s == 3.0


def test_attempts_that_failed_say_why(recorder: ColdStartRecorder) -> None:
    recorder.watch([], [request(1, 1)], 101.0, 0.0)
    recorder.watch([TransferFailed(TransferId(1), FailureReason.REFUSED)], [], 101.5, 0.0)
    (attempt,) = parse_trace(iter(recorder.lines), "trace").attempts
    assert attempt.outcome == "refused"


def test_only_the_first_version_is_traced(recorder: ColdStartRecorder) -> None:
    recorder.watch([VersionAdded(OTHER, (9,), 0)], [request(5, 0, OTHER)], 101.0, 0.0)
    recorder.watch([ChunkVerified(OTHER, ChunkIndex(0), TransferId(5))], [], 102.0, 0.0)
    recorder.close()
    trace = parse_trace(iter(recorder.lines), "trace")
    assert trace.attempts == ()
    assert trace.end is not None
    assert trace.end.ready_s is None


def test_a_node_that_holds_everything_is_ready_at_once() -> None:
    made = ColdStartRecorder("node", SETTINGS)
    made.watch([VersionAdded(VERSION, (10,), 1)], [], 100.0, 5000.0)
    made.close()
    end = parse_trace(iter(made.lines), "trace").end
    assert end is not None
    assert end.ready_s == 0.0


def test_a_trace_is_bounded_and_says_what_is_missing(
    recorder: ColdStartRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_start, "ATTEMPTS_MAX", 2)
    for transfer in range(5):
        recorder.watch([], [request(transfer, 1)], 101.0, 0.0)
        lost = TransferFailed(TransferId(transfer), FailureReason.LOST)
        recorder.watch([lost], [], 102.0, 0.0)
    recorder.close()
    trace = parse_trace(iter(recorder.lines), "trace")
    assert len(trace.attempts) == 2
    assert trace.end is not None
    assert trace.end.dropped_count == 3


def test_a_trace_holds_no_more_handshakes_than_the_start_needs(
    recorder: ColdStartRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none after its end, though a node that serves is dialled for months."""
    monkeypatch.setattr(cold_start, "HANDSHAKES_MAX", 2)
    met = PeerConnected(peer_info("a"), 0, is_outgoing=True, rtt_s=0.5)
    recorder.watch([met] * 3, [], 101.0, 0.0)
    monkeypatch.setattr(cold_start, "HANDSHAKES_MAX", 10)
    recorder.watch([verified(1, None), verified(2, None), met], [], 102.0, 0.0)
    recorder.watch([met], [], 103.0, 0.0)
    recorder.close()
    assert json.loads(recorder.lines[-1])["kind"] == "end"
    assert parse_trace(iter(recorder.lines), "trace").handshakes_s == (0.5, 0.5)


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("start", {"schema_version": 9}, "t:1: schema 'weightswarm-trace', version 9"),
        ("start", {"held_count": 4}, "4 of 3 chunks held"),
        ("start", {"started_at": "now"}, "no number of seconds"),
        ("chunk", {"asked_s": -1}, "t:2: not a chunk line"),
        ("chunk", {"bytes": 1.5}, "no count"),
        ("chunk", {"extra": 1}, "unknown key extra"),
        ("chunk", {"kind": "piece"}, "unknown kind of line 'piece'"),
    ],
)
def test_a_line_that_is_not_right_is_named(
    recorder: ColdStartRecorder, kind: str, change: dict[str, object], said: str
) -> None:
    recorder.watch([], [request(1, 1)], 101.0, 0.0)
    recorder.watch([verified(1, 1)], [], 102.0, 0.0)
    lines = [
        json.dumps(document | change) if document["kind"] == kind else json.dumps(document)
        for document in map(json.loads, recorder.lines)
    ]
    with pytest.raises(UsageError, match=said):
        parse_trace(iter(lines), "t")


@pytest.mark.parametrize("lines", [[], ["{"], ["[]"]])
def test_what_is_no_trace_is_refused(lines: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_trace(iter(lines), "t")
