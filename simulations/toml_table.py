"""TOML with line numbers: tables that know where each key stands and refuse what they do not know.

Numbers of anything physical are text with a unit, for 25 could be Gbit/s or GB/s and nobody would
see the difference in the result. The reader asks a table for each key that it knows, by kind; keys
that nobody asked for are errors, and every error names file, line and key.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import cast

from swarm.errors import UsageError
from swarm.units import parse_duration, parse_percent, parse_rate, parse_size

COUNT_MAX = 1_000_000
_HEADER = re.compile(r"\s*\[(\[)?\s*([A-Za-z0-9_.\-]+)\s*\]\]?")
_KEY = re.compile(r"\s*([A-Za-z0-9_\-]+)\s*=")


class Document:
    """A parsed file: its tree, and the line of each key."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        try:
            self.tree: dict[str, object] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{name}: not TOML: {error}", object_name=name) from error
        self._lines = _line_index(text)
        # Keys that the command line has set, and by which option.
        self._options: dict[str, str] = {}

    def table(self) -> Table:
        return Table(self, "", self.tree)

    def change(self, setting: str, option: str = "--set") -> None:
        """Apply ``KEY=VALUE`` of a command line's option; KEY is dotted, a list's places count from
        0. An error about that key names the option for its line."""
        key, separator, text = setting.partition("=")
        if not separator or not key:
            raise UsageError(f"not KEY=VALUE: {setting!r}", hint="--set nodes.0.count=100")
        *parents, last = key.split(".")
        place: object = self.tree
        for part in parents:
            place = _child(place, part, f"{option} {setting}")
        if not isinstance(place, dict):
            raise UsageError(
                f"{option} {setting}: {'.'.join(parents)} is no table",
                hint=f"lists count from 0: {'.'.join(parents)}.0.{last}"
                if isinstance(place, list)
                else "",
            )
        place[last] = _value_of(text)
        self._options[key] = option

    def where(self, path: str) -> str:
        """``file:line: key``, of the key or the nearest table around it."""
        shown = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", path)
        if path not in self._lines:
            for key, option in self._options.items():
                # Set itself, or a table that is there for what was set in it.
                if key == path or key.startswith(f"{path}."):
                    return f"{option} {shown}"
        known = path
        while known and known not in self._lines and known not in self._options:
            known = known.rpartition(".")[0]
        if known in self._options:
            return f"{self._options[known]} {shown}"
        return f"{self.name}:{self._lines.get(known, 1)}: {shown}"


class Table:
    """One table being read. Call `end` when every known key was asked for."""

    def __init__(self, document: Document, path: str, entries: Mapping[str, object]) -> None:
        self._document = document
        self._path = path
        self._entries = entries
        self._asked: dict[str, None] = {}
        # Keys that were only looked for; they are known too.
        self._sought: dict[str, None] = {}

    def has(self, key: str) -> bool:
        self._sought[key] = None
        return key in self._entries

    @property
    def is_written(self) -> bool:
        """It holds anything."""
        return bool(self._entries)

    def fail(self, key: str, what: str, hint: str = "") -> UsageError:
        """An error about a key, or with "" about the table."""
        path = self.path_of(key)
        where = self._document.where(path)
        return UsageError(f"{where}: {what}", object_name=path, hint=hint)

    def path_of(self, key: str) -> str:
        """Dotted, from the file's root."""
        return ".".join(part for part in (self._path, key) if part)

    def end(self) -> None:
        for key in self._entries:
            if key not in self._asked:
                names = sorted({*self._asked, *self._sought})
                known = f"known here: {', '.join(names)}"
                nearest = get_close_matches(key, names, 1)
                meant = f"did you mean {nearest[0]}? " if nearest else ""
                raise self.fail(key, "unknown key", meant + known)

    # -- tables within

    def table(self, key: str) -> Table:
        """An inner table; empty where there is none."""
        entries = self._take(key, {})
        if not isinstance(entries, dict):
            raise self.fail(key, "is no table", f"write [{key}]")
        return Table(self._document, self.path_of(key), cast("dict[str, object]", entries))

    def tables(self, key: str) -> list[Table]:
        entries = self._take(key, [])
        if not isinstance(entries, list) or not all(isinstance(item, dict) for item in entries):
            raise self.fail(key, "is no list of tables", f"write [[{key}]]")
        return [
            Table(self._document, self.path_of(f"{key}.{index}"), item)
            for index, item in enumerate(entries)
        ]

    # -- values

    def rate(self, key: str, default: float | None = None) -> float:
        """Bytes/s, above zero."""
        return self.quantity(key, default, parse_rate, "25Gbit/s or 3GB/s")

    def size(self, key: str, default: float | None = None) -> int:
        return int(self.quantity(key, default, parse_size, "140GB or 64MiB"))

    def duration(self, key: str, default: float | None = None) -> float:
        """Seconds, zero or more."""
        return self.quantity(key, default, parse_duration, "0.5ms or 10s")

    def share(self, key: str, default: float | None = None) -> float:
        """0 to 1, written in per cent."""
        return self.quantity(key, default, parse_percent, "5%")

    def durations(self, key: str, default: tuple[float, float]) -> tuple[float, float]:
        """A range: two durations, or one for both."""
        self._asked[key] = None
        if key not in self._entries:
            return default
        value = self._entries[key]
        ends = value if isinstance(value, list) else [value, value]
        if len(ends) != 2:
            raise self.fail(key, "is not one or two durations", 'write ["30ms", "100ms"]')
        low, high = (self._parsed(key, end, parse_duration, '"30ms"') for end in ends)
        if low > high:
            raise self.fail(key, "ends before it begins")
        return low, high

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(key, f"is not a whole number: {value!r}")
        if not least <= value <= COUNT_MAX:
            raise self.fail(key, f"is {value}, not between {least} and {COUNT_MAX}")
        return value

    def counts(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers above zero, none of them twice."""
        values = self._take(key, None)
        if (
            not isinstance(values, list)
            or not values
            or not all(type(v) is int and 0 < v <= COUNT_MAX for v in values)
            or len(set(values)) < len(values)
        ):
            raise self.fail(key, "is not a list of different whole numbers", "write [8, 16]")
        return tuple(values)

    def number(self, key: str, default: float | None = None) -> float:
        """A factor or a number without a unit, above zero."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(key, f"is not a number: {value!r}")
        if not 0 < value < float("inf"):
            raise self.fail(key, f"is {value}, not above zero")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, f"is neither true nor false: {value!r}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._take(key, default)
        if not isinstance(value, str):
            raise self.fail(key, f"is not text: {value!r}")
        return value

    def texts(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        value = self._take(key, list(default))
        if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
            raise self.fail(key, 'is not a list of names: write ["a", "b"]')
        return tuple(value)

    def choice(self, key: str, known: Sequence[str], default: str | None = None) -> str:
        value = self.text(key, default)
        if value not in known:
            raise self.fail(key, f"{value!r} is not known", f"one of {', '.join(known)}")
        return value

    def _take(self, key: str, default: object) -> object:
        self._asked[key] = None
        if key not in self._entries and default is None:
            raise self.fail(key, "is missing")
        return self._entries.get(key, default)

    def quantity(
        self, key: str, default: float | None, parse: Callable[[str], float], example: str
    ) -> float:
        """Text with a unit, as `parse` reads it."""
        self._asked[key] = None
        if key not in self._entries:
            if default is None:
                raise self.fail(key, "is missing", f'write {key} = "{example}"')
            return default
        return self._parsed(key, self._entries[key], parse, example)

    def quantities(
        self,
        key: str,
        default: tuple[float, ...] | None,
        parse: Callable[[str], float],
        example: str,
    ) -> tuple[float, ...]:
        """A list of texts with units."""
        values = self._take(key, default)
        if key not in self._entries and default is not None:
            return default
        if not isinstance(values, list) or not values:
            raise self.fail(key, "is not a list", f'write ["{example}"]')
        return tuple(self._parsed(key, value, parse, example) for value in values)

    def _parsed(
        self, key: str, value: object, parse: Callable[[str], float], example: str
    ) -> float:
        if not isinstance(value, str):
            raise self.fail(key, f"{value!r} has no unit", f'write {key} = "{example}"')
        try:
            return parse(value)
        except UsageError as error:
            raise self.fail(key, error.message, error.hint) from error


def _line_index(text: str) -> dict[str, int]:
    """Dotted path of each table and key → its line, from 1. Lists of tables count from 0."""
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header is not None:
            table = header[2]
            if header[1]:
                counts[table] = counts.get(table, -1) + 1
                table = f"{table}.{counts[table]}"
            lines.setdefault(table, number)
            continue
        key = _KEY.match(line)
        if key is not None:
            lines.setdefault(f"{table}.{key[1]}" if table else key[1], number)
    return lines


def _child(place: object, part: str, where: str) -> object:
    if isinstance(place, dict):
        return cast("dict[str, object]", place).setdefault(part, {})
    if isinstance(place, list) and part.isdecimal() and int(part) < len(place):
        return cast("list[object]", place)[int(part)]
    hint = f"lists count from 0: 0.{part}" if isinstance(place, list) else ""
    raise UsageError(f"{where}: there is no {part!r}", hint=hint)


def _value_of(text: str) -> object:
    """TOML if it is, else text: a unit needs no quotes in a shell."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
