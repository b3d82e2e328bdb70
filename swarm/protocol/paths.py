"""Which file names a version may hold.

A path names a file inside a directory that an agent writes, so this is the wall against a manifest
that would write elsewhere. Allowed is what every Linux file system keeps byte for byte: relative
UTF-8 with ``/`` between components. A backslash, a space or a name like ``CON`` is an ordinary name
here. Refused is what could leave the directory (absolute, ``.``, ``..``), what could not exist
beside another entry (a file that is also a directory), what a terminal or a log would not show
(control characters), and our own ``.swarm``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

COMPONENT_BYTES_MAX = 255
"""NAME_MAX of ext4, xfs, btrfs and tmpfs."""
PATH_BYTES_MAX = 4096
"""PATH_MAX of Linux."""
OWN_DIRECTORY = ".swarm"
"""Where an agent keeps a version's state, beside its files."""

# C0, DEL and C1: Unicode category Cc.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def path_problem(path: str) -> str | None:
    """Why `path` may not be in a version, in words that follow "path X: "; None if it may."""
    try:
        raw = path.encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    if len(raw) > PATH_BYTES_MAX:
        return f"is {len(raw)} bytes long, the limit is {PATH_BYTES_MAX}"
    if _CONTROL.search(path):
        return "holds a control character"
    components = path.split("/")
    if "" in components:
        return "has an empty component or is absolute"
    if "." in components or ".." in components:
        return "has a component '.' or '..'"
    if components[0].casefold() == OWN_DIRECTORY:
        return f"lies in {OWN_DIRECTORY}, which belongs to the agent"
    # Only a path longer than the limit can have a component longer than it.
    if len(raw) > COMPONENT_BYTES_MAX and _has_long_component(components):
        return f"has a component of more than {COMPONENT_BYTES_MAX} bytes"
    return None


def directory_conflict(paths: Iterable[str]) -> tuple[str, str] | None:
    """Two entries that cannot exist beside each other: equal paths, or a file and a path below
    it. None if there are none.

    With ``/`` replaced by NUL, which no path holds and which sorts below all else, a directory's
    first entry follows the directory's own name at once: comparing neighbours is enough.
    """
    previous = None
    for key in sorted(path.replace("/", "\0") for path in paths):
        if previous is not None and (key == previous or key.startswith(previous + "\0")):
            return previous.replace("\0", "/"), key.replace("\0", "/")
        previous = key
    return None


def _has_long_component(components: list[str]) -> bool:
    return any(len(component.encode()) > COMPONENT_BYTES_MAX for component in components)
