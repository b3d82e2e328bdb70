"""Records of the tracker's calls to bytes and back: msgpack between programs, JSON for people.

The schema is the dataclasses themselves: a body is a map of their field names, nested records are
nested maps, tuples are arrays, enums are their values. A decoder for each class is composed once,
from its annotations. So a field that is added to a record is on the wire without another line, an
unknown key is ignored, and a field with a default may be missing: mixed versions upgrade.

Strictness is in the types: ids have their exact length, numbers are never negative, floats are
finite, texts and tuples are bounded. Whatever does not fit raises PeerProtocolError with the path
of the field, and nothing else. A map costs fifty times its bytes in memory, so they are counted
while the document is parsed.
"""

from __future__ import annotations

import enum
import json
import types
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import NewType, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgpack

from swarm.errors import PeerProtocolError, SwarmError, TrackerError
from swarm.protocol.ids import DIGEST_BYTES, NODE_ID_BYTES
from swarm.protocol.manifest import MANIFEST_BYTES_MAX

MSGPACK = "application/msgpack"

TEXT_CHARACTERS_MAX = 4096
"""Reasons, problems, origin URLs; names have rules of their own in the catalog."""
ITEMS_MAX = 1 << 18
"""As many chunks as a version may have; `added` may name them all."""
BLOB_BYTES_MAX = MANIFEST_BYTES_MAX
"""The largest byte string is a manifest; a bit set of 2^18 chunks has 32 KiB."""
REQUEST_MAPS_MAX = 10_000
"""A report of 2,000 leases and 64 versions, with room."""
REPLY_MAPS_MAX = 1_000_000
"""A list of 100,000 agents; the tracker is trusted by its MAC."""
INTEGER_MAX = 2**63 - 1
"""What sqlite keeps, and what any language reads."""

_EXACT_BYTES = {"NodeId": NODE_ID_BYTES, "VersionId": DIGEST_BYTES}

_Decoder = Callable[[object, str], object]
_Record = TypeVar("_Record")


def encode(record: object) -> bytes:
    """The msgpack body of a record."""
    body: bytes = msgpack.packb(_plain(record))
    return body


def encode_json(record: object) -> bytes:
    """The same for a human: bytes as hex, indented."""
    return json.dumps(_readable(_plain(record)), indent=2).encode() + b"\n"


def decode(kind: type[_Record], raw: bytes, *, maps_max: int = REQUEST_MAPS_MAX) -> _Record:
    """Read a body as a record of class `kind`; raises PeerProtocolError."""
    return cast("_Record", _record_decoder(kind)(_unpack(raw, maps_max), kind.__name__))


def encode_error(error: SwarmError, *, server_time_ms: int | None = None) -> dict[str, object]:
    """The body of a refusal, not packed yet. `server_time_ms` tells a skewed clock the time."""
    body: dict[str, object] = {
        "error": {
            "class": type(error).__name__,
            "code": error.code,
            "message": error.message,
            "object": error.object_name,
            "hint": error.hint,
            "is_retryable": error.is_retryable,
        }
    }
    if server_time_ms is not None:
        body["server_time_ms"] = server_time_ms
    return body


def pack_plain(body: dict[str, object], *, as_json: bool) -> bytes:
    """Bytes of a map that is plain already."""
    return encode_json(body) if as_json else encode(body)


def decode_error(raw: bytes) -> tuple[SwarmError, int | None]:
    """The error that a refusal's body tells of, as an object of its class, and the server's time in
    ms since 1970 if it was told; raises PeerProtocolError when the body tells of none."""
    body = _unpack(raw, maps_max=8)
    told = body.get("error") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(told, dict):
        raise PeerProtocolError("the body of a refusal holds no error")
    words = {key: told.get(key, "") for key in ("code", "message", "object", "hint")}
    if not all(isinstance(word, str) for word in words.values()):
        raise PeerProtocolError("the error in a refusal is not made of texts")
    server_time_ms = body.get("server_time_ms")
    error_class = _error_classes().get(str(words["code"]), TrackerError)
    error = error_class(
        str(words["message"]),
        object_name=str(words["object"]),
        hint=str(words["hint"]),
        is_retryable=told.get("is_retryable") is True,
    )
    return error, server_time_ms if type(server_time_ms) is int else None


@cache
def _error_classes() -> dict[str, type[SwarmError]]:
    return {error.code: error for error in SwarmError.__subclasses__()}


# To bytes.


_field_names: dict[object, tuple[str, ...]] = {}


def _plain(value: object) -> object:
    """A record as maps, lists and scalars."""
    if isinstance(value, bool | int | bytes | str | float) or value is None:
        return value
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    names = _field_names.get(type(value))
    if names is None:
        assert is_dataclass(value), value
        names = _field_names[type(value)] = tuple(field.name for field in fields(value))
    return {name: _plain(getattr(value, name)) for name in names}


def _readable(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return [_readable(item) for item in value]
    if isinstance(value, dict):
        return {key: _readable(item) for key, item in value.items()}
    return value


# From bytes.


class _MapCounter:
    """Stops the parser at a number of maps: they are what makes a small body large."""

    def __init__(self, maximum: int) -> None:
        self._left = maximum

    def __call__(self, parsed: dict[object, object]) -> dict[object, object]:
        self._left -= 1
        if self._left < 0:
            raise ValueError("too many maps")
        return parsed


def _unpack(raw: bytes, maps_max: int) -> object:
    try:
        value: object = msgpack.unpackb(
            raw,
            object_hook=_MapCounter(maps_max),
            max_array_len=ITEMS_MAX,
            max_map_len=256,
            max_ext_len=0,
            max_bin_len=BLOB_BYTES_MAX,
            max_str_len=BLOB_BYTES_MAX,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise PeerProtocolError(f"not a msgpack body: {error}"[:200]) from error
    return value


_record_decoders: dict[object, _Decoder] = {}


def _record_decoder(kind: type) -> _Decoder:
    """The decoder of a dataclass, composed from its annotations when it is first needed."""
    known = _record_decoders.get(kind)
    if known is None:
        known = _record_decoders[kind] = _compose_record(kind)
    return known


def _compose_record(kind: type) -> _Decoder:
    hints = get_type_hints(kind)
    parts: list[tuple[str, _Decoder, bool]] = [
        (field.name, _decoder(hints[field.name]), field.default is MISSING)
        for field in fields(kind)
    ]

    def decode_record(value: object, where: str) -> object:
        if not isinstance(value, dict):
            raise _wrong(value, where, "a map")
        arguments: dict[str, object] = {}
        for name, decode_field, is_needed in parts:
            if name in value:
                arguments[name] = decode_field(value[name], f"{where}.{name}")
            elif is_needed:
                raise PeerProtocolError(f"{where}.{name} is missing")
        return kind(**arguments)

    return decode_record


def _decoder(hint: object) -> _Decoder:
    """A decoder of one annotation; every annotation in use is listed here or is a bug."""
    if isinstance(hint, NewType):
        size = _EXACT_BYTES.get(hint.__name__)
        return _exact_bytes(size) if size else _decoder(hint.__supertype__)
    # `X | None` is one kind of union for a class X and another for a NewType.
    if get_origin(hint) in (types.UnionType, Union):
        return _optional(hint)
    if get_origin(hint) is tuple:
        return _tuple(get_args(hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return _record_decoder(hint)
    scalar = _SCALARS.get(hint)
    assert scalar is not None, f"no wire form for {hint!r}"
    return scalar


def _wrong(value: object, where: str, wanted: str) -> PeerProtocolError:
    return PeerProtocolError(f"{where} is {type(value).__name__}, not {wanted}")


def _optional(hint: object) -> _Decoder:
    (inner,) = [_decoder(arm) for arm in get_args(hint) if arm is not type(None)]
    return lambda value, where: None if value is None else inner(value, where)


def _tuple(arms: tuple[object, ...]) -> _Decoder:
    if arms[-1] is Ellipsis:
        item = _decoder(arms[0])

        def decode_list(value: object, where: str) -> object:
            if not isinstance(value, list):
                raise _wrong(value, where, "a list")
            return tuple([item(member, where) for member in value])

        return decode_list
    members = [_decoder(arm) for arm in arms]

    def decode_pair(value: object, where: str) -> object:
        if not isinstance(value, list) or len(value) != len(members):
            raise _wrong(value, where, f"a list of {len(members)}")
        return tuple(
            decode_member(member, where)
            for decode_member, member in zip(members, value, strict=True)
        )

    return decode_pair


def _enum(kind: type[enum.Enum]) -> _Decoder:
    by_value = {str(member.value): member for member in kind}

    def decode_enum(value: object, where: str) -> object:
        member = by_value.get(value) if isinstance(value, str) else None
        if member is None:
            raise _wrong(value, where, f"one of {', '.join(by_value)}")
        return member

    return decode_enum


def _exact_bytes(size: int) -> _Decoder:
    def decode_id(value: object, where: str) -> object:
        if type(value) is not bytes or len(value) != size:
            raise _wrong(value, where, f"{size} bytes")
        return value

    return decode_id


def _integer(value: object, where: str) -> object:
    # bool is an int to Python and a type of its own to msgpack.
    if type(value) is not int or not 0 <= value <= INTEGER_MAX:
        raise _wrong(value, where, "a whole number of at most 63 bits")
    return value


def _number(value: object, where: str) -> object:
    if type(value) not in (int, float) or not 0 <= cast("float", value) < 1e18:
        raise _wrong(value, where, "a finite number")
    return float(cast("float", value))


def _flag(value: object, where: str) -> object:
    if type(value) is not bool:
        raise _wrong(value, where, "a boolean")
    return value


def _text(value: object, where: str) -> object:
    if type(value) is not str or len(value) > TEXT_CHARACTERS_MAX:
        raise _wrong(value, where, f"text of up to {TEXT_CHARACTERS_MAX} characters")
    return value


def _blob(value: object, where: str) -> object:
    if type(value) is not bytes or len(value) > BLOB_BYTES_MAX:
        raise _wrong(value, where, f"up to {BLOB_BYTES_MAX} bytes")
    return value


_SCALARS: dict[object, _Decoder] = {
    int: _integer,
    float: _number,
    bool: _flag,
    str: _text,
    bytes: _blob,
}
