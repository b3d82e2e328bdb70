"""The header of a safetensors file, read as strictly as the reference reader reads it.

A file is a little-endian u64 N, N bytes of JSON, then the tensors. The JSON begins with ``{`` and
may be padded with spaces; it maps each name to a dtype, a shape and ``data_offsets`` relative to
``8 + N``, and ``__metadata__`` to a map of strings. Tensors, sorted by offset, follow each other
without a hole or an overlap, and the last ends with the file: a truncated file, or one with
something hidden in it, therefore never parses. Source: the format's README and its Rust
implementation (github.com/safetensors/safetensors, 0.8.0).

Where this reader differs: a dtype it does not know is a warning, because a new dtype must not keep
a model from being published; its offsets are checked like all others, only its size in relation to
the shape is not.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

LENGTH_BYTES = 8
"""Bytes of the length in front of the header."""
HEADER_BYTES_MAX = 100_000_000
"""The reference reader's own limit."""
TENSOR_BYTES_MAX = 1 << 63
"""Past this a size overflows in every other reader."""

DTYPE_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""Bits of one value of each dtype known here."""

_METADATA = "__metadata__"
_SHOWN = 5  # Names in one message; a file may have a million.


class SafetensorsError(ValueError):
    """The bytes are not a whole, valid safetensors file; the text says why, without the file's
    name, which the caller knows."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies: bytes ``begin`` to ``end`` after `data_start`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """A header that was checked against its file's size."""

    # By name, in the order of their offsets.
    tensors: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]
    # Where the tensors begin in the file.
    data_start: int
    # What is unusual but not wrong, for a person.
    warnings: tuple[str, ...]


def header_length(first_bytes: bytes, file_size: int) -> int:
    """Bytes of JSON after the first 8; raises SafetensorsError if no such file can exist."""
    if len(first_bytes) < LENGTH_BYTES or file_size < LENGTH_BYTES:
        raise SafetensorsError(f"file of {file_size} bytes is too short for a safetensors header")
    length = int.from_bytes(first_bytes[:LENGTH_BYTES], "little")
    if length > file_size - LENGTH_BYTES:
        raise SafetensorsError(
            f"header length {length} > file of {file_size} bytes: truncated or not safetensors"
        )
    if length > HEADER_BYTES_MAX:
        raise SafetensorsError(
            f"header length {length}: the official reader stops at {HEADER_BYTES_MAX:,} bytes"
        )
    if length < len("{}"):
        raise SafetensorsError(f"header length {length}: no header (a file never written?)")
    return length


def parse_header(raw_header: bytes, file_size: int) -> SafetensorsHeader:
    """Check the JSON after the first 8 bytes against the file's size; raises SafetensorsError."""
    pairs = _load(raw_header)
    metadata: Mapping[str, str] = {}
    entries = []
    for name, value in pairs.items():
        if name == _METADATA:
            metadata = _metadata(value)
        else:
            entries.append(_tensor(name, value))
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    data_start = LENGTH_BYTES + len(raw_header)
    _check_cover(entries, data_start, file_size)
    return SafetensorsHeader(
        tensors={entry.name: entry for entry in entries},
        metadata=metadata,
        data_start=data_start,
        warnings=_unknown_dtypes(entries),
    )


def _load(raw_header: bytes) -> dict[str, object]:
    # The padding is spaces only: a reader that tolerates more lets two formats share one file.
    if not raw_header.startswith(b"{") or not raw_header.rstrip(b" ").endswith(b"}"):
        raise SafetensorsError("header is not a JSON object")
    try:
        loaded: object = json.loads(
            raw_header.decode(),
            object_pairs_hook=_object,
            parse_float=_refuse_number,
            parse_constant=_refuse_number,
        )
    except SafetensorsError:
        raise
    except UnicodeDecodeError as error:
        raise SafetensorsError(f"header is not UTF-8 at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise SafetensorsError(f"header is not JSON: {str(error)[:100]}") from None
    assert isinstance(loaded, dict)  # It begins with "{" and parsed.
    return loaded


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    loaded = dict(pairs)
    if len(loaded) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise SafetensorsError(f"header names {_show(counts.most_common(1)[0][0])} twice")
    return loaded


def _refuse_number(text: str) -> NoReturn:
    raise SafetensorsError(f"header holds the number {text[:40]}, only integers belong there")


def _metadata(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise SafetensorsError(f"{_METADATA} is not an object")
    for key, text in value.items():
        if not isinstance(text, str):
            raise SafetensorsError(f"{_METADATA} entry {_show(key)} is not a string")
    return value


def _tensor(name: str, value: object) -> TensorEntry:
    if not isinstance(value, dict):
        raise SafetensorsError(f"tensor {_show(name)} is not an object")
    dtype = value.get("dtype")
    if not isinstance(dtype, str):
        raise SafetensorsError(f"tensor {_show(name)} has no dtype")
    shape = _sizes(value.get("shape"))
    offsets = _sizes(value.get("data_offsets"))
    if shape is None:
        raise SafetensorsError(f"tensor {_show(name)} has no valid shape")
    if offsets is None or len(offsets) != 2:
        raise SafetensorsError(f"tensor {_show(name)} has no valid data_offsets")
    begin, end = offsets
    if end < begin:
        raise SafetensorsError(f"tensor {_show(name)} ends at {end}, before it begins at {begin}")
    _check_size(name, dtype, shape, end - begin)
    return TensorEntry(name, dtype, shape, begin, end)


def _sizes(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    if not all(type(size) is int and 0 <= size < TENSOR_BYTES_MAX for size in value):
        return None
    return tuple(value)


def _check_size(name: str, dtype: str, shape: tuple[int, ...], length: int) -> None:
    bits = DTYPE_BITS.get(dtype)
    if bits is None:
        return
    total_bits = bits
    for dimension in shape:
        total_bits *= dimension
        # At each step, so that a shape of a million dimensions never becomes a huge number.
        if total_bits > 8 * TENSOR_BYTES_MAX:
            raise SafetensorsError(f"tensor {_show(name)} has a shape too large for any file")
    size, rest = divmod(total_bits, 8)
    if rest:
        raise SafetensorsError(f"tensor {_show(name)} does not end on a whole byte")
    if size != length:
        raise SafetensorsError(
            f"tensor {_show(name)}: {dtype} {list(shape)[:_SHOWN]} needs {size} bytes,"
            f" its offsets give {length}"
        )


def _check_cover(entries: list[TensorEntry], data_start: int, file_size: int) -> None:
    """Sorted tensors must follow each other from `data_start` to the end of the file."""
    reached = 0
    for entry in entries:
        if entry.begin != reached:
            fault = "overlaps the tensor before it" if entry.begin < reached else "follows a hole"
            raise SafetensorsError(f"tensor {_show(entry.name)} at offset {entry.begin} {fault}")
        reached = entry.end
    needed = data_start + reached
    if file_size < needed:
        raise SafetensorsError(
            f"file shorter than its header says: {file_size} bytes of {needed}; truncated"
        )
    if file_size > needed:
        raise SafetensorsError(
            f"file longer than its header says: {file_size} bytes, {needed} belong there"
        )


def _unknown_dtypes(entries: list[TensorEntry]) -> tuple[str, ...]:
    unknown = sorted({entry.dtype for entry in entries} - DTYPE_BITS.keys())
    if not unknown:
        return ()
    names = ", ".join(_show(dtype) for dtype in unknown[:_SHOWN])
    return (f"dtype {names} is not known here; its sizes were not checked",)


def _show(name: str) -> str:
    """A name from a file, escaped and short."""
    return ascii(name[:80])
