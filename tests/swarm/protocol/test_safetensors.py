"""Strict safetensors headers."""

from __future__ import annotations

import json
import time

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from swarm.protocol.safetensors import (
    HEADER_BYTES_MAX,
    SafetensorsError,
    SafetensorsHeader,
    TensorEntry,
    header_length,
    parse_header,
)
from tests.support.models import MIB, SAFETENSORS, raw_safetensors, safetensors_bytes, tensor

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]


def read(raw: bytes) -> SafetensorsHeader:
    length = header_length(raw[:8], len(raw))
    return parse_header(raw[8 : 8 + length], len(raw))


def with_header(header: str, body: bytes = bytes(16)) -> bytes:
    return raw_safetensors(header.encode(), body)


@pytest.mark.parametrize("name", [name for name in SAFETENSORS if name.startswith("ok")])
def test_whole_files_are_accepted(name: str) -> None:
    raw = SAFETENSORS[name]
    header = read(raw)
    assert header.data_start == 8 + int.from_bytes(raw[:8], "little")
    ends = [entry.end for entry in header.tensors.values()]
    assert header.data_start + max(ends, default=0) == len(raw)


@pytest.mark.parametrize("name", [name for name in SAFETENSORS if not name.startswith("ok")])
def test_broken_files_are_refused(name: str) -> None:
    with pytest.raises(SafetensorsError):
        read(SAFETENSORS[name])


@pytest.mark.parametrize("name", [name for name in SAFETENSORS if name != "ok_unknown_dtype"])
def test_the_reference_reader_agrees(name: str) -> None:
    try:
        # The package ships no types for this function.
        safetensors.deserialize(SAFETENSORS[name])  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError:
        accepted = False
    else:
        accepted = True
    assert accepted == name.startswith("ok")


def test_tensors_are_in_the_order_of_their_offsets() -> None:
    tensors = {"z": tensor(0, 4), "a": tensor(4, 8), "m": tensor(8, 8)}
    raw = safetensors_bytes(dict(reversed(tensors.items())), bytes(8))
    header = read(raw)
    assert list(header.tensors) == ["z", "a", "m"]
    assert header.tensors["a"] == TensorEntry("a", "F32", (1,), 4, 8)


def test_metadata_is_a_map_of_strings() -> None:
    header = read(with_header('{"__metadata__":{"format":"pt"}}', b""))
    assert header.metadata == {"format": "pt"}
    assert not header.tensors


def test_truncation_names_both_sizes() -> None:
    raw = SAFETENSORS["truncated_body"]
    with pytest.raises(SafetensorsError, match="shorter than its header says") as caught:
        read(raw)
    assert str(len(raw)) in str(caught.value)
    assert str(len(raw) + 1) in str(caught.value)


def test_a_length_past_the_end_is_named_before_anything_is_read() -> None:
    with pytest.raises(SafetensorsError, match="header length 1048576 > file"):
        header_length(SAFETENSORS["length_past_end"][:8], 100)


def test_the_reference_readers_limit_is_named() -> None:
    first = (HEADER_BYTES_MAX + 1).to_bytes(8, "little")
    with pytest.raises(SafetensorsError, match="official reader stops at 100,000,000 bytes"):
        header_length(first, 101 * MIB)
    assert header_length(HEADER_BYTES_MAX.to_bytes(8, "little"), 101 * MIB) == HEADER_BYTES_MAX


def test_an_unknown_dtype_warns_once_and_keeps_its_bounds() -> None:
    tensors = {"a": tensor(0, 3, [4], "Q99"), "b": tensor(3, 6, [4], "Q99")}
    header = read(safetensors_bytes(tensors, bytes(6)))
    assert len(header.warnings) == 1
    assert "Q99" in header.warnings[0]
    tensors["b"] = tensor(4, 7, [4], "Q99")
    with pytest.raises(SafetensorsError, match="follows a hole"):
        read(safetensors_bytes(tensors, bytes(7)))


def test_packed_dtypes_count_bits() -> None:
    assert read(safetensors_bytes({"a": tensor(0, 3, [6], "F4")}, bytes(3)))
    assert read(safetensors_bytes({"a": tensor(0, 3, [4], "F6_E2M3")}, bytes(3)))
    with pytest.raises(SafetensorsError, match="whole byte"):
        read(safetensors_bytes({"a": tensor(0, 3, [5], "F4")}, bytes(3)))


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ("[]", "not a JSON object"),
        (" {}", "not a JSON object"),
        ("{}\n", "not a JSON object"),
        ('{"a":', "not a JSON object"),
        ('{"a" 1}', "not JSON"),
        ('{"a":1}', "is not an object"),
        ('{"a":{"shape":[4],"data_offsets":[0,16]}}', "no dtype"),
        ('{"a":{"dtype":1,"shape":[4],"data_offsets":[0,16]}}', "no dtype"),
        ('{"a":{"dtype":"F32","data_offsets":[0,16]}}', "no valid shape"),
        ('{"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}}', "no valid shape"),
        ('{"a":{"dtype":"F32","shape":[true],"data_offsets":[0,16]}}', "no valid shape"),
        ('{"a":{"dtype":"F32","shape":4,"data_offsets":[0,16]}}', "no valid shape"),
        ('{"a":{"dtype":"F32","shape":[4]}}', "no valid data_offsets"),
        ('{"a":{"dtype":"F32","shape":[4],"data_offsets":[0]}}', "no valid data_offsets"),
        ('{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16.0]}}', "only integers"),
        ('{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,16]}}', "only integers"),
        ('{"a":{"dtype":"F32","shape":[4611686018427387904,9],"data_offsets":[0,0]}}', "large"),
        ('{"a":{"dtype":"U8","dtype":"F32","shape":[4],"data_offsets":[0,16]}}', "'dtype' twice"),
        ('{"a":{},"b":{},"b":{}}', "'b' twice"),
        ('{"__metadata__":[]}', "not an object"),
        ('{"__metadata__":{"a":1}}', "not a string"),
        ('{"a":' + "[" * 100_000 + "]}", "not JSON"),
        ('{"a":' + "9" * 5000 + "}", "not JSON"),
        ('{"a":"\udcff"}', "not UTF-8"),
    ],
)  # fmt: skip
def test_a_header_that_breaks_a_rule_is_refused(header: str, why: str) -> None:
    raw = raw_safetensors(header.encode(errors="surrogateescape"), bytes(16))
    with pytest.raises(SafetensorsError, match=why):
        read(raw)


def test_a_shape_of_a_million_dimensions_costs_no_time() -> None:
    fields: Json = {"dtype": "U8", "shape": [1 << 62] * 100_000, "data_offsets": [0, 16]}
    started_at = time.process_time()
    with pytest.raises(SafetensorsError, match="too large"):
        read(with_header(json.dumps({"a": fields})))
    assert time.process_time() - started_at < 1


def test_a_header_of_sixty_thousand_tensors_is_read_in_time() -> None:
    tensors = {
        f"model.layers.{i}.mlp.experts.{i}.down_proj.weight": tensor(8 * i, 8 * i + 8)
        for i in range(60_000)
    }
    raw = safetensors_bytes(tensors, bytes(8 * 60_000))
    assert len(raw) > 5_000_000
    started_at = time.process_time()
    assert len(read(raw).tensors) == 60_000
    assert time.process_time() - started_at < 3


@given(st.binary(max_size=64), st.integers(0, 200))
def test_garbage_is_refused_and_nothing_else_happens(raw: bytes, file_size: int) -> None:
    with pytest.raises(SafetensorsError):
        header_length(raw, 7)
    try:
        header = parse_header(raw, file_size)
    except SafetensorsError:
        return
    assert header.data_start <= file_size


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
FIELDS = st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets"]), JSON)


@given(st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), FIELDS | JSON), st.binary())
def test_any_json_is_refused_or_covers_the_file(header: dict[str, Json], body: bytes) -> None:
    raw = raw_safetensors(json.dumps(header).encode(), body)
    try:
        parsed = read(raw)
    except SafetensorsError:
        return
    assert parsed.data_start + sum(t.end - t.begin for t in parsed.tensors.values()) == len(raw)
