"""What a command prints: data to stdout, everything for people to stderr.

With ``--json`` stdout gets exactly one object, at the end. Without it stdout gets what a script
would want from the command (a version id, a directory, a table) and stderr the summary.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence


def emit(
    document: Mapping[str, object], *, as_json: bool, data: str = "", summary: str = ""
) -> None:
    """Print the result of a command."""
    if as_json:
        print_json(document)
        return
    if summary:
        note(summary)
    if data:
        sys.stdout.write(data.rstrip("\n") + "\n")
        sys.stdout.flush()


def print_json(document: object) -> None:
    sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """A line for people."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def warn(warning_id: str, message: str) -> None:
    """A warning; its id never changes, so that it can be looked up and filtered."""
    note(one_line(f"warning: {warning_id}: {message}"))


def one_line(text: str) -> str:
    """`text` without line ends and other control characters: what a peer or an origin says may
    end up in a log, and must not colour or split it."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their longest cell, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]
    return "\n".join(lines)
