"""Which entries of a directory are not part of the model.

Skipped by default, and nothing else: what version control, downloaders and desktops leave behind.
Anything a person might have meant to publish is published: a dot file, a log, a second format of
the weights. Our own ``.swarm`` is skipped always, because an agent would overwrite it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from swarm.protocol.paths import OWN_DIRECTORY

_FILE_RULES = (".DS_Store", "*.incomplete", "*.lock", "*.aria2")
_HUB_CACHE = ".cache/huggingface"


@dataclass(frozen=True, slots=True)
class SkipRules:
    """The publisher's choice."""

    # Globs over whole relative paths; ``*`` also matches ``/``. One that matches a directory drops
    # all of it.
    excludes: tuple[str, ...] = ()
    # Publish what the default rules would skip.
    includes_hidden: bool = False

    def rule_for(self, path: str, *, is_directory: bool) -> str | None:
        """The rule that skips `path`, as it is shown to people; None if it is published."""
        name = path.rpartition("/")[2]
        if is_directory and name.casefold() == OWN_DIRECTORY:
            return f"{OWN_DIRECTORY}/"
        for pattern in self.excludes:
            if fnmatchcase(path, pattern.rstrip("/") if is_directory else pattern):
                return f"--exclude {pattern}"
        if self.includes_hidden:
            return None
        if is_directory:
            return _directory_rule(path, name)
        return next((rule for rule in _FILE_RULES if fnmatchcase(name, rule)), None)


def _directory_rule(path: str, name: str) -> str | None:
    if name == ".git":
        return ".git/"
    if path == _HUB_CACHE or path.endswith("/" + _HUB_CACHE):
        return f"{_HUB_CACHE}/"
    return None


@dataclass(frozen=True, slots=True)
class Skipped:
    """What one rule left out."""

    rule: str
    files: int
    bytes: int

    def __str__(self) -> str:
        return f"skipped {self.files} files, {self.bytes} bytes: {self.rule}"


class SkipTally:
    """Counts files and bytes by rule."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int]] = {}

    def add(self, rule: str, *, files: int, size: int) -> None:
        counted, total = self._counts.get(rule, (0, 0))
        self._counts[rule] = (counted + files, total + size)

    def lines(self) -> tuple[Skipped, ...]:
        """By rule, in alphabetical order."""
        return tuple(Skipped(rule, *counts) for rule, counts in sorted(self._counts.items()))
