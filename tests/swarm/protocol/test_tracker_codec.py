"""Every record comes back as it went out; garbage raises one thing only."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TypeVar

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.errors import (
    AuthError,
    ConflictError,
    NotFoundError,
    PeerProtocolError,
    SwarmError,
    TrackerError,
)
from swarm.protocol.ids import Address, ChunkIndex, LeaseId, NodeId, VersionId
from swarm.protocol.messages import PeerInfo
from swarm.protocol.operator_api import RegisterVersion, SetChannel
from swarm.protocol.tracker_api import (
    Lease,
    LeaseEnd,
    LeaseOutcome,
    LeaseProgress,
    Listen,
    ListenReply,
    Mode,
    PublishRecord,
    Report,
    ReportReply,
    VersionReport,
    VersionState,
)
from swarm.protocol.tracker_codec import (
    decode,
    decode_error,
    encode,
    encode_error,
    encode_json,
    pack_plain,
)

_Record = TypeVar("_Record")

VERSION = VersionId(bytes(range(32)))
NODE = NodeId(bytes(range(16)))

_ints = st.integers(0, 2**63 - 1)
_text = st.text(max_size=20)
_versions = st.binary(min_size=32, max_size=32).map(VersionId)
_nodes = st.binary(min_size=16, max_size=16).map(NodeId)
_chunks = st.integers(0, 2**18).map(ChunkIndex)
_leases = _ints.map(LeaseId)
_floats = st.floats(0, 1e9)
_addresses = st.builds(Address, _text, st.integers(0, 65535))


def _tuples(items: st.SearchStrategy[_Record]) -> st.SearchStrategy[tuple[_Record, ...]]:
    return st.lists(items, max_size=3).map(tuple)


_version_reports = st.builds(
    VersionReport,
    version=_versions,
    bits=st.none() | st.binary(max_size=9),
    added=_tuples(_chunks),
    removed=_tuples(_chunks),
    is_ready=st.booleans(),
    chunk_count=_ints,
    chunk_bytes=_ints,
)
_ends = st.builds(
    LeaseEnd,
    _leases,
    _versions,
    _chunks,
    st.sampled_from(LeaseOutcome),
    st.none() | _nodes,
    st.none() | _floats,
)
_progress = st.builds(LeaseProgress, _leases, _ints, st.none() | _versions, st.none() | _chunks)
_reports = st.builds(
    Report,
    sequence=_ints,
    address=_addresses,
    zone=_text,
    rack=_text,
    nic_bytes_per_s=_ints,
    versions=_tuples(_version_reports),
    leases=_tuples(_progress),
    ended=_tuples(_ends),
    unreachable=_tuples(_nodes),
    channels=_tuples(st.tuples(_text, _ints)),
    problem=_text,
    is_leaving=st.booleans(),
)
_peer_infos = st.builds(PeerInfo, _nodes, _ints, _addresses, _text, _text)
_states = st.builds(
    VersionState,
    _versions,
    _tuples(_peer_infos),
    _tuples(st.builds(Lease, _leases, _chunks, st.integers(1, 32))),
    st.sampled_from(Mode),
)


@settings(max_examples=40, deadline=None)
@given(_reports)
def test_reports_round_trip(report: Report) -> None:
    assert decode(Report, encode(report)) == report


@settings(max_examples=40, deadline=None)
@given(st.builds(ListenReply, st.tuples(_ints, _ints), _tuples(_states), st.just(())))
def test_listen_replies_round_trip(reply: ListenReply) -> None:
    assert decode(ListenReply, encode(reply)) == reply


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=200))
def test_garbage_raises_one_thing_only(raw: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        decode(Report, raw)


_values: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(Report.__slots__), _values))
def test_wrong_values_in_right_places_raise_it_too(fields: dict[str, object]) -> None:
    whole = msgpack.unpackb(encode(a_report()))
    with suppress(PeerProtocolError):
        decode(Report, msgpack.packb({**whole, **fields}))


def a_report() -> Report:
    return Report(
        sequence=1,
        address=Address("10.0.0.7", 7000),
        zone="a",
        rack="",
        nic_bytes_per_s=0,
        versions=(VersionReport(VERSION, None, (ChunkIndex(3),), (), is_ready=False),),
        leases=(LeaseProgress(LeaseId(1), 5),),
        ended=(),
        unreachable=(NODE,),
        channels=(("prod", 3),),
        problem="",
        is_leaving=False,
    )


@pytest.mark.parametrize(
    ("field", "value", "place"),
    [
        ("sequence", -1, "Report.sequence"),
        ("sequence", True, "Report.sequence"),
        ("sequence", 2**63, "Report.sequence"),
        ("zone", "z" * 5000, "Report.zone"),
        ("is_leaving", 1, "Report.is_leaving"),
        ("unreachable", [b"short"], "Report.unreachable"),
        ("channels", [["prod"]], "Report.channels"),
        ("versions", {}, "Report.versions"),
        ("address", None, "Report.address"),
    ],
)
def test_the_message_names_the_field(field: str, value: object, place: str) -> None:
    fields = msgpack.unpackb(encode(a_report()))
    with pytest.raises(PeerProtocolError, match=place):
        decode(Report, msgpack.packb({**fields, field: value}))


def test_a_missing_field_is_named_and_an_unknown_one_ignored() -> None:
    fields = msgpack.unpackb(encode(a_report()))
    assert decode(Report, msgpack.packb({**fields, "later": [1]})) == a_report()
    del fields["sequence"]
    with pytest.raises(PeerProtocolError, match="sequence is missing"):
        decode(Report, msgpack.packb(fields))


def test_fields_with_a_default_may_be_missing() -> None:
    """An agent of an earlier release says nothing of chunk counts."""
    fields = msgpack.unpackb(encode(a_report()))
    del fields["versions"][0]["chunk_count"]
    del fields["leases"][0]["version"]
    assert decode(Report, msgpack.packb(fields)) == a_report()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, "soon"])
def test_floats_are_finite(bad: object) -> None:
    with pytest.raises(PeerProtocolError, match="interval_s"):
        decode(ReportReply, msgpack.packb({"needs_resync": False, "interval_s": bad}))


def test_a_bomb_of_maps_is_defused() -> None:
    bomb = msgpack.packb({"sequence": [{}] * 200_000})
    with pytest.raises(PeerProtocolError, match="too many maps"):
        decode(Report, bomb)


def test_a_deep_nest_is_refused() -> None:
    with pytest.raises(PeerProtocolError):
        decode(Report, b"\x91" * 100_000)


def test_a_manifest_travels_whole() -> None:
    record = PublishRecord(
        VERSION, "m", "v1", "s3://b/p", 1, 10, 10, 1, 65536, 1.5, "ci", True, False, (("W", "x"),)
    )
    asked = RegisterVersion(record, b"m" * 3_000_000)
    assert decode(RegisterVersion, encode(asked)) == asked


def test_json_shows_bytes_as_hex() -> None:
    shown = json.loads(encode_json(Listen((1, 2), (VERSION,), ("prod",))))
    assert shown == {"seen": [1, 2], "versions": [VERSION.hex()], "channels": ["prod"]}


def test_null_and_text_are_told_apart() -> None:
    change = SetChannel(None, "rollback", None, "me")
    assert decode(SetChannel, encode(change)) == change


@pytest.mark.parametrize("kind", [NotFoundError, ConflictError, AuthError, TrackerError])
def test_errors_keep_their_class(kind: type[SwarmError]) -> None:
    error = kind("what", object_name="it", hint="do that", is_retryable=True)
    raw = pack_plain(encode_error(error, server_time_ms=77), as_json=False)
    told, server_time_ms = decode_error(raw)
    assert type(told) is kind
    assert (told.message, told.object_name, told.hint) == ("what", "it", "do that")
    assert told.is_retryable
    assert server_time_ms == 77


def test_an_error_of_a_later_release_is_a_tracker_error() -> None:
    raw = msgpack.packb({"error": {"code": "E_NEW", "message": "m"}})
    assert type(decode_error(raw)[0]) is TrackerError


@pytest.mark.parametrize("raw", [b"", b"\xc0", b"<html>", msgpack.packb({"error": {"code": 3}})])
def test_other_bodies_tell_of_no_error(raw: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        decode_error(raw)
