"""Key files as text: one line ``swarm-KIND-key:1:<64 hex>``.

The kind stands in the line so that a key of one kind is not taken for another; the number allows
another format later. What makes a file safe to read is decided here, for agents and tracker alike;
opening it is the work of either's configuration. No message here or raised from here repeats any
digit of a key.
"""

from __future__ import annotations

import enum

from swarm.errors import AuthError, UsageError

KEY_BYTES = 32
"""The size of a BLAKE3 key."""
KEY_FORMAT = 1
KEY_FILE_BYTES_MAX = 4096
"""A key file is one line of about 90 bytes; of another file no more is read than this."""


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


def unreadable_key(kind: KeyKind, source: str, reason: str) -> AuthError:
    """The error for a key file that cannot be opened."""
    return AuthError(
        f"cannot read the {kind.value} key file {source}: {reason}",
        object_name=source,
        hint="name the file that `swarm keys new` wrote",
    )


def check_key_mode(kind: KeyKind, *, mode: int, owner: int, reader: int, source: str) -> None:
    """Refuse a key file that others can use; raises AuthError. `mode` as in stat, `owner` and
    `reader` are user ids.

    The group may read a file that is not ours: that is how a secret volume hands a key to a
    process without root.
    """
    forbidden = 0o077 if owner == reader else 0o037
    if mode & forbidden:
        raise AuthError(
            f"the {kind.value} key file {source} has mode {mode & 0o7777:04o}: others can use it",
            object_name=source,
            hint=f"chmod 600 {source}",
        )


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
