"""Finding a version on this node and waiting until it is ready.

Two ways to look. In a cache directory: the files themselves, which works from any container that
mounts the volume, with or without an agent. Over the agent's socket: its status, which also says
what it waits for. Either way a directory is given out only when `is_ready` says so, seen from here.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.cli.output import note
from swarm.errors import NotFoundError, StalledError, UsageError
from swarm.store.lock import is_held
from swarm.store.readiness import is_ready
from swarm.units import format_duration

if TYPE_CHECKING:
    from swarm.cli.agent_api import AgentPlace

POLL_INTERVAL_S = 0.1
"""A look costs a few system calls; nobody notices a tenth of a second at a cold start."""
NOTE_INTERVAL_S = 10.0
NEWS_INTERVAL_S = 1.0
"""Between two lines when the reason changes: progress is no news every tenth of a second."""
CHANNEL_PREFIX = "channel:"
_HEX = re.compile(r"[0-9a-f]{12,64}")


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the node found."""

    # Where the ready files are; "" while they are not.
    directory: str
    # Why not yet, in words.
    reason: str = ""


def is_local_reference(reference: str) -> bool:
    """A node can find it without asking a tracker."""
    return reference.startswith(CHANNEL_PREFIX) or _HEX.fullmatch(reference) is not None


def wait_until_ready(look: Callable[[], Look], *, reference: str, timeout_s: float) -> str:
    """Look until a ready directory is found; raises StalledError after `timeout_s`. What is waited
    for is said at once, when it changes and at intervals."""
    started_at = noted_at = time.monotonic()
    noted = ""
    while True:
        found = look()
        if found.directory:
            return found.directory
        now = time.monotonic()
        waited_s = now - started_at
        if waited_s >= timeout_s:
            raise StalledError(
                f"{reference} is not ready after {format_duration(waited_s)}: {found.reason}",
                object_name=reference,
                hint="see `swarm status`, or wait longer with --timeout",
            )
        is_news = not noted or (now - noted_at >= NEWS_INTERVAL_S and found.reason != noted)
        if is_news or now - noted_at >= NOTE_INTERVAL_S:
            noted_at, noted = now, found.reason
            since = f" since {format_duration(waited_s)}" if waited_s >= 1 else ""
            note(f"waiting for {reference}{since}: {found.reason}")
        time.sleep(min(POLL_INTERVAL_S, timeout_s - waited_s))


def look_in_cache(cache: Path, reference: str) -> Look:
    """Look for a local reference below a cache directory; raises UsageError if it is ambiguous."""
    if reference.startswith(CHANNEL_PREFIX):
        return _look_at_channel(cache, reference.removeprefix(CHANNEL_PREFIX))
    names = versions_in_cache(cache, reference)
    if not names:
        return Look("", f"no version {reference} in {cache}{_no_agent(cache)}")
    directory = f"{cache.absolute()}/versions/{names[0]}"
    if is_ready(directory):
        return Look(directory)
    return Look("", f"version {names[0][:12]} in {cache} is not whole yet{_no_agent(cache)}")


def versions_in_cache(cache: Path, prefix: str) -> list[str]:
    """The version whose id begins with `prefix`, as a list of none or one."""
    try:
        found = os.listdir(cache / "versions")
    except OSError:
        return []
    names = [name for name in found if len(name) == 64 and name.startswith(prefix)]
    return [only_one(names, prefix)] if names else []


def look_at_agent(place: AgentPlace, reference: str) -> Look:
    """Look for a local reference in an agent's status."""
    from swarm.cli.agent_api import read_status

    try:
        status = read_status(place)
    except NotFoundError as error:
        return Look("", error.message)
    wanted = reference
    if reference.startswith(CHANNEL_PREFIX):
        name = reference.removeprefix(CHANNEL_PREFIX)
        served = {channel["channel"]: channel["serves"] for channel in status["channels"]}
        if name not in served:
            return Look("", f"the agent does not follow channel {name}")
        wanted = served[name] or ""
        if not wanted:
            return Look("", "; ".join(status["waiting"]) or f"channel {name} is not served yet")
    matching = {v["version"]: v for v in status["versions"] if v["version"].startswith(wanted)}
    if not matching:
        return Look("", f"the agent has no version {wanted}")
    version = matching[only_one(list(matching), wanted)]
    if not version["ready"]:
        return Look("", version["waiting"] or version["problem"] or "the version is not whole yet")
    if is_ready(version["directory"]):
        return Look(version["directory"])
    return Look(
        "", f"ready, but not to be seen from here: {version['directory'] or 'no directory'}"
    )


def only_one(names: list[str], prefix: str) -> str:
    """The single name; raises UsageError."""
    if len(names) > 1:
        shown = ", ".join(name[:16] for name in sorted(names)[:4])
        raise UsageError(
            f"{prefix} is not unique here: {shown}", object_name=prefix, hint="give more digits"
        )
    return names[0]


def _look_at_channel(cache: Path, name: str) -> Look:
    if not name or "/" in name or name.startswith("."):
        raise UsageError(f"not a channel name: {name!r}", object_name=name)
    link = cache / "channels" / name
    try:
        # Resolved once: what is given out stays one version when the link moves on.
        directory = os.path.realpath(link, strict=True)
    except OSError:
        return Look("", f"no channel {name} in {cache} yet{_no_agent(cache)}")
    if is_ready(directory):
        return Look(directory)
    why = f"channel {name} in {cache} leads to a version that is not ready{_no_agent(cache)}"
    return Look("", why)


def _no_agent(cache: Path) -> str:
    """That nobody is there who could make anything ready, as far as can be seen: on a network file
    system, or from another machine, locks may not be. "" where an agent runs."""
    if not cache.is_dir():
        return "; there is no such directory, and so no agent"
    if is_held(str(cache / "lock")):
        return ""
    if not (cache / "node").exists():
        return "; no agent has ever run on this directory: is it the agent's --cache?"
    return "; no running agent was seen on this directory"
