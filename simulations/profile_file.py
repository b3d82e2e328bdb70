"""Profiles and traces from files, with errors that name them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from swarm.capacity.cold_start import Trace, parse_trace
from swarm.capacity.profile import Profile, median_profile, parse_profile
from swarm.errors import UsageError

PROFILE_BYTES_MAX = 1 << 20
TRACE_BYTES_MAX = 256 << 20
"""Ten times what a full trace takes; more is no trace."""


def read_profiles(paths: Sequence[Path]) -> Profile:
    """One profile, or the medians of several; raises UsageError."""
    profiles = [parse_profile(_text(path, PROFILE_BYTES_MAX), str(path)) for path in paths]
    return profiles[0] if len(profiles) == 1 else median_profile(profiles)


def read_traces(paths: Sequence[Path]) -> list[Trace]:
    """One trace a node, all of one version; raises UsageError."""
    traces = [
        parse_trace(iter(_text(path, TRACE_BYTES_MAX).splitlines()), str(path)) for path in paths
    ]
    versions: dict[str, Path] = {}
    nodes: dict[str, Path] = {}
    for path, trace in zip(paths, traces, strict=True):
        versions.setdefault(trace.start.version, path)
        if trace.start.node in nodes:
            raise UsageError(
                f"{nodes[trace.start.node]} and {path} are traces of one node",
                object_name=str(path),
                hint="give one trace of each node",
            )
        nodes[trace.start.node] = path
    if len(versions) > 1:
        (one, first), (other, second) = list(versions.items())[:2]
        raise UsageError(
            f"{first} is of version {one[:12]}, {second} of {other[:12]}",
            object_name=str(second),
            hint="give traces of one cold start",
        )
    return traces


def _text(path: Path, limit_bytes: int) -> str:
    try:
        if path.stat().st_size > limit_bytes:
            raise UsageError(f"{path} has more than {limit_bytes >> 20} MiB", object_name=str(path))
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", object_name=str(path)) from error
