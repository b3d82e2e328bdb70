"""How many bytes of weights may lie in memory: what this machine, or this container, has to
spare."""

from __future__ import annotations

from pathlib import Path

SHARE = 0.8
"""Of what is available now; the rest is for the serving process to start in. A version that does
not fit is refused with numbers before its first chunk."""
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def memory_budget_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Bytes, the smaller of the machine's and the cgroup's spare memory times `SHARE`."""
    spare = _available_bytes(meminfo)
    limit = _number(cgroup / "memory.max")
    used = _number(cgroup / "memory.current")
    if limit is not None and used is not None:
        spare = min(spare, limit - used)
    return max(int(spare * SHARE), 0)


def _available_bytes(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _number(path: Path) -> int | None:
    """A cgroup file's number; None if it is missing or says "max"."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
