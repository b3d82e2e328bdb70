"""Key files as text: one line ``swarm-KIND-key:1:<64 hex>``.

The kind stands in the line so that a key of one kind is not taken for another; the number allows
another format later. Only the text is handled here; reading the file and judging its mode is the
configuration's work. No message here or raised from here repeats any digit of a key.
"""

from __future__ import annotations

import enum

from swarm.errors import UsageError

KEY_BYTES = 32
"""The size of a BLAKE3 key."""
KEY_FORMAT = 1


class KeyKind(enum.Enum):
    """What a key is for."""

    CLUSTER = "cluster"
    OPERATOR = "operator"
    SIGNING = "signing"


def format_key(kind: KeyKind, key: bytes) -> str:
    """The file's one line, newline included."""
    assert len(key) == KEY_BYTES, len(key)
    return f"swarm-{kind.value}-key:{KEY_FORMAT}:{key.hex()}\n"


def parse_key(kind: KeyKind, text: str, *, source: str) -> bytes:
    """The 32 bytes of a key of this kind; raises UsageError that names `source`."""
    label, _, rest = text.strip().partition(":")
    wanted = f"swarm-{kind.value}-key"
    if label != wanted:
        found = f"a {label}" if label in _LABELS else "no key"
        raise UsageError(
            f"{source} holds {found}, not a {wanted}",
            object_name=source,
            hint=f"make one: swarm keys new --kind {kind.value} FILE",
        )
    number, _, digits = rest.partition(":")
    if number != str(KEY_FORMAT):
        raise UsageError(
            f"{source}: key format {number[:8]!r} is not known here; this reads {KEY_FORMAT}",
            object_name=source,
        )
    return _key_of(digits, source)


def _key_of(digits: str, source: str) -> bytes:
    # bytes.fromhex forgives blanks; a key file is exact.
    if len(digits) != 2 * KEY_BYTES or not set(digits) <= set("0123456789abcdefABCDEF"):
        raise UsageError(
            f"{source}: a key has {2 * KEY_BYTES} hex digits; this one is damaged or cut",
            object_name=source,
            hint="copy the file again, or make a new key for all agents: swarm keys new FILE",
        )
    key = bytes.fromhex(digits)
    if not any(key):
        raise UsageError(f"{source}: a key of zeros protects nothing", object_name=source)
    return key


_LABELS = frozenset(f"swarm-{kind.value}-key" for kind in KeyKind)
