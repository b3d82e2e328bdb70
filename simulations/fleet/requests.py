"""What users ask for: one line of a trace for each request, in the order of arrival.

A trace is CSV with a header, or one JSON object a line. The columns carry their units:
`arrival_s` (seconds from the trace's start), `prompt_tokens`, `output_tokens`; if prompts share
their beginning also `prefix` (any text that names what is shared) and `prefix_tokens` (how many
leading tokens it has). A `prefix` without `prefix_tokens` is a conversation: each request repeats
all that was said before, prompt and answer.

Files come from other people's exports, so every line is checked and refused by its number: a trace
that is out of order or has a negative or missing figure would give a plan that looks right.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from swarm.errors import UsageError

REQUEST_COUNT_MAX = 5_000_000
"""About fifty times a busy day of one model; more would fill the memory of a laptop."""
TOKENS_MAX = 10_000_000
"""Longer than any context window of 2026; more is a typing error."""
_REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
_OPTIONAL = ("prefix", "prefix_tokens")
_HINT = f"columns are {', '.join(_REQUIRED)}, and if wanted {', '.join(_OPTIONAL)}"


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the trace."""

    # Seconds from the trace's start.
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    # Name of what its beginning is shared with; "": nothing.
    prefix: str = ""
    # Leading tokens that are shared; 0: all that was said under this name so far.
    prefix_tokens: int = 0


def read_trace(path: Path) -> list[Request]:
    """All requests of a file, CSV or JSON lines by its first character; raises UsageError."""
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            return parse_trace(lines, str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", object_name=str(path)) from error


def parse_trace(lines: Iterable[str], name: str) -> list[Request]:
    """As `read_trace`, of lines; `name` is for messages."""
    requests: list[Request] = []
    latest_s = 0.0
    for number, entries in _rows(lines, name):
        request = _request(entries, name, number)
        if request.arrival_s < latest_s:
            raise _refused(
                name, number, "arrival_s",
                f"{request.arrival_s:g} is before the line above it ({latest_s:g})",
                "sort the trace by arrival",
            )  # fmt: skip
        latest_s = request.arrival_s
        requests.append(request)
        if len(requests) > REQUEST_COUNT_MAX:
            raise UsageError(
                f"{name}: more than {REQUEST_COUNT_MAX} requests",
                object_name=name,
                hint="plan for a day, or sample the trace",
            )
    if not requests:
        raise UsageError(f"{name}: there is no request in it", object_name=name, hint=_HINT)
    return requests


def _rows(lines: Iterable[str], name: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Line number and named entries of each line that is not empty."""
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    first = next(numbered, None)
    if first is None:
        return
    if first[1].lstrip().startswith("{"):
        yield first[0], _json_row(first[1], name, first[0])
        for number, line in numbered:
            yield number, _json_row(line, name, number)
        return
    header = [column.strip() for column in next(csv.reader([first[1]]))]
    _check_header(header, name, first[0])
    for number, line in numbered:
        cells = next(csv.reader([line]))
        if len(cells) != len(header):
            what = f"has {len(cells)} columns, the header {len(header)}"
            raise UsageError(f"{name}:{number}: {what}", object_name=name, hint=_HINT)
        yield number, dict(zip(header, cells, strict=True))


def _check_header(header: list[str], name: str, number: int) -> None:
    missing = [column for column in _REQUIRED if column not in header]
    unknown = [column for column in header if column not in _REQUIRED + _OPTIONAL]
    if missing or unknown or len(set(header)) < len(header):
        told = f"no {missing[0]}" if missing else f"{unknown[0]!r}" if unknown else "one twice"
        raise UsageError(
            f"{name}:{number}: the header is not one of a trace: {told}",
            object_name=name,
            hint=_HINT,
        )


def _json_row(line: str, name: str, number: int) -> Mapping[str, object]:
    try:
        entries = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"{name}:{number}: not JSON: {error.msg}", object_name=name) from error
    if not isinstance(entries, dict):
        raise UsageError(f"{name}:{number}: is no object", object_name=name, hint=_HINT)
    for key in entries:
        if key not in _REQUIRED + _OPTIONAL:
            raise _refused(name, number, key, "unknown key", _HINT)
    return cast("dict[str, object]", entries)


def _request(entries: Mapping[str, object], name: str, number: int) -> Request:
    arrival_s = _seconds(entries, name, number)
    prefix = entries.get("prefix") or ""
    if not isinstance(prefix, str | int) or isinstance(prefix, bool):
        raise _refused(name, number, "prefix", f"is no name: {prefix!r}")
    prompt = _count(entries, "prompt_tokens", name, number)
    shared = 0
    if entries.get("prefix_tokens") not in (None, ""):
        shared = _count(entries, "prefix_tokens", name, number, least=0)
        if not prefix and shared:
            raise _refused(name, number, "prefix_tokens", "shares tokens, but prefix names nothing")
        if shared > prompt:
            what = f"{shared} is more than the prompt's {prompt}"
            raise _refused(name, number, "prefix_tokens", what)
    return Request(
        arrival_s,
        prompt,
        _count(entries, "output_tokens", name, number),
        str(prefix),
        shared,
    )


def _seconds(entries: Mapping[str, object], name: str, number: int) -> float:
    value = _number(entries, "arrival_s", name, number)
    if not 0 <= value < math.inf:
        raise _refused(name, number, "arrival_s", f"{value!r} is not a time of zero or more")
    return value


def _count(
    entries: Mapping[str, object], key: str, name: str, number: int, *, least: int = 1
) -> int:
    value = _number(entries, key, name, number)
    if not least <= value <= TOKENS_MAX or value != int(value):
        what = f"{value:g} is no whole number from {least} to {TOKENS_MAX}"
        raise _refused(name, number, key, what)
    return int(value)


def _number(entries: Mapping[str, object], key: str, name: str, number: int) -> float:
    value = entries.get(key)
    if value is None or value == "":
        raise _refused(name, number, key, "is missing", _HINT)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _refused(name, number, key, f"is not a number: {value!r}")
    try:
        return float(value)
    except (ValueError, OverflowError) as error:
        raise _refused(name, number, key, f"is not a number: {value!r}") from error


def _refused(name: str, number: int, key: str, what: str, hint: str = "") -> UsageError:
    return UsageError(f"{name}:{number}: {key}: {what}", object_name=name, hint=hint)
