"""Settings: what may be set, where from, and which wins. Key files: read only where safe.

Flag > environment > TOML file, setting by setting. One name has one spelling per place: the flag
``--nic-rate``, the variable ``SWARM_NIC_RATE``, the key ``nic-rate`` (or ``nic_rate``) of the file
that ``--config`` or ``SWARM_CONFIG`` names. No file is read that nobody named.

A setting that has no effect is worse than an error, so an unknown key in either place is refused
with the nearest known name. The environment has two kinds of innocents: what ``swarm run`` itself
gives to its child, and the variables that Kubernetes writes for every service in a namespace (a
service called ``swarm-tracker`` makes ``SWARM_TRACKER_PORT=tcp://…`` appear in each pod).
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from swarm.errors import UsageError
from swarm.protocol.keys import (
    KEY_FILE_BYTES_MAX,
    KeyKind,
    check_key_mode,
    parse_key,
    unreadable_key,
)

Value: TypeAlias = "str | bool | list[str]"

TEXTS = frozenset({"tracker", "version", "channel", "peer", "exclude"})
"""Settings with several values: a TOML array, or the words of a variable."""
SWITCHES = frozenset(
    {"discover", "in-place", "strict", "no-validate", "forbid-pickle", "include-hidden"}
)
"""Settings that are on or off."""
SETTINGS = (
    TEXTS
    | SWITCHES
    | {
        "advertise", "cache", "chunk-size", "cluster-key-file", "config", "downlink-limit",
        "flow-cap", "http", "listen", "log-level", "name", "nic-rate", "operator-token-file",
        "origin", "origin-after", "progress", "rack", "seed-for", "socket", "stall-timeout",
        "store", "tag", "timeout", "trace", "uplink-limit", "zone",
    }
)  # fmt: skip
"""All that a variable or a file may set; the command line builds its flags of these names."""

MODEL_DIRECTORY_VARIABLE = "SWARM_MODEL_DIR"
"""Where `swarm run` tells its child that the files are."""

_PREFIX = "SWARM_"
_KUBERNETES_SERVICE = re.compile(
    r"(.*_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return _PREFIX + name.replace("-", "_").upper()


def check_environment(environment: Mapping[str, str]) -> None:
    """Refuse a ``SWARM_…`` variable that sets nothing; raises UsageError."""
    known = {variable(name) for name in SETTINGS} | {MODEL_DIRECTORY_VARIABLE}
    for key in sorted(environment):
        if not key.startswith(_PREFIX) or key in known:
            continue
        if _KUBERNETES_SERVICE.fullmatch(key.removeprefix(_PREFIX)):
            continue
        raise UsageError(
            f"unknown setting {key} in the environment", object_name=key, hint=_nearest(key, known)
        )


def read_config(path: Path) -> dict[str, Value]:
    """The settings of a TOML file, by name; raises UsageError with the file and the key."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot read the configuration {path}: {error.strerror}", object_name=str(path)
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}", object_name=str(path)) from error
    values: dict[str, Value] = {}
    for key, raw in table.items():
        name = key.replace("_", "-")
        if name not in SETTINGS or name == "config":
            raise UsageError(
                f"unknown setting {key!r} in {path}",
                object_name=str(path),
                hint=_nearest(name, SETTINGS),
            )
        if name in values:
            raise UsageError(f"{path} sets {name!r} twice", object_name=str(path))
        values[name] = _checked(name, raw, path)
    return values


def read_key(path: Path, kind: KeyKind) -> bytes:
    """The 32 bytes of a key file; raises AuthError where the file cannot be read or others can
    read it, UsageError where it holds no such key. The mode is read from the open file, so that
    what was checked is what is used."""
    source = str(path)
    try:
        # Without O_NONBLOCK a FIFO in the file's place would hold us for ever.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            raw = file.read(KEY_FILE_BYTES_MAX)
    except OSError as error:
        raise unreadable_key(kind, source, str(error.strerror)) from error
    check_key_mode(
        kind, mode=status.st_mode, owner=status.st_uid, reader=os.geteuid(), source=source
    )
    return parse_key(kind, raw.decode("ascii", errors="replace"), source=source)


def _checked(name: str, raw: object, path: Path) -> Value:
    """A value of the type that the setting has."""
    if name in SWITCHES:
        if isinstance(raw, bool):
            return raw
        raise UsageError(f"{name} in {path} is true or false, not {raw!r}", object_name=str(path))
    if name in TEXTS:
        items = raw if isinstance(raw, list) else [raw]
        texts = [item for item in items if isinstance(item, str)]
        if len(texts) == len(items):
            return texts
        raise UsageError(f"{name} in {path} is a list of strings", object_name=str(path))
    if isinstance(raw, str):
        return raw
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        # A bare number means what it means on the command line: bytes or seconds.
        return str(raw)
    raise UsageError(f"{name} in {path} is a string, not {raw!r}", object_name=str(path))


def _nearest(name: str, known: frozenset[str] | set[str]) -> str:
    from difflib import get_close_matches  # Only on the way to an error.

    close = get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"
