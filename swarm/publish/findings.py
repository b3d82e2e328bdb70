"""What validation has to say: errors that stop a publication, warnings that go with the version."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from swarm.errors import InputError

SHOWN_MAX = 50
"""Files named one by one under one id; a directory may hold 20,000 of the same kind."""


class WarningId(enum.StrEnum):
    """Stable names: scripts match on them."""

    CASE_COLLISION = "case-collision"
    DUPLICATE_FORMAT = "duplicate-format"
    INDEX_MISMATCH = "index-mismatch"
    JSON_BOM = "json-bom"
    JSON_INVALID = "json-invalid"
    JSON_UNCHECKED = "json-unchecked"
    PICKLE = "pickle"
    UNKNOWN_DTYPE = "unknown-dtype"
    ZERO_TAIL = "zero-tail"


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason not to publish."""

    path: str
    text: str
    hint: str = "publish a whole copy, or --no-validate to publish it as it is"

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


class Findings:
    """Collects; asked for the outcome once at the end."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._warnings: dict[WarningId, list[str]] = {}

    def warn(self, warning_id: WarningId, text: str) -> None:
        self._warnings.setdefault(warning_id, []).append(text)

    def warnings(self) -> tuple[tuple[str, str], ...]:
        """(id, text) pairs; past the first of an id the rest is only counted."""
        shown = []
        for warning_id, texts in sorted(self._warnings.items()):
            shown += [(warning_id.value, text) for text in texts[:SHOWN_MAX]]
            if len(texts) > SHOWN_MAX:
                shown.append((warning_id.value, f"and {len(texts) - SHOWN_MAX} more like these"))
        return tuple(shown)

    def raise_problems(self) -> None:
        """InputError that names every problem, if there is one."""
        if not self.problems:
            return
        named = "; ".join(str(problem) for problem in self.problems[:SHOWN_MAX])
        more = len(self.problems) - SHOWN_MAX
        raise InputError(
            named + (f"; and {more} more" if more > 0 else ""),
            object_name=self.problems[0].path,
            hint=self.problems[0].hint,
        )

    def raise_warnings(self) -> None:
        """InputError that names every warning, if there is one (``--strict``)."""
        warnings = self.warnings()
        if warnings:
            raise InputError(
                "; ".join(f"{text} [{warning_id}]" for warning_id, text in warnings[:SHOWN_MAX]),
                object_name=warnings[0][0],
                hint="publish without --strict to accept warnings",
            )
