"""Reads the JSON files that engines read, and says on which line they are broken."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import cast

from swarm.publish.content import HEAD_BYTES, Content, quote, sniff

BOM = b"\xef\xbb\xbf"

PairsHook = Callable[[list[tuple[str, object]]], dict[str, object]]


class JsonProblem(ValueError):
    """Why a JSON file is not usable, with the line where that shows."""


def load_json(raw: bytes) -> object:
    """Parse a file that may begin with a byte order mark; raises JsonProblem."""
    loaded: object = _parse(_text(raw), None)
    return loaded


def load_weight_map(raw: bytes) -> dict[str, str]:
    """Tensor name → shard, from an index; raises JsonProblem, also where a name occurs twice: a
    parser would keep the last and lose a tensor."""
    text = _text(raw)
    repeated: list[str] = []

    def keep(pairs: list[tuple[str, object]]) -> dict[str, object]:
        loaded = dict(pairs)
        if len(loaded) != len(pairs):
            counts = Counter(name for name, _ in pairs)
            repeated.append(counts.most_common(1)[0][0])
        return loaded

    loaded = _parse(text, keep)
    if repeated:
        raise JsonProblem(f"line {_second_line(text, repeated[0])}: {repeated[0]!r} occurs twice")
    weight_map = loaded.get("weight_map") if isinstance(loaded, dict) else None
    if not isinstance(weight_map, dict):
        raise JsonProblem("line 1: an index without a weight_map")
    if not all(isinstance(shard, str) for shard in weight_map.values()):
        raise JsonProblem("line 1: its weight_map does not map to file names")
    return cast("dict[str, str]", weight_map)


def _text(raw: bytes) -> str:
    raw = raw.removeprefix(BOM)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise JsonProblem(f"not JSON: line {line} is not UTF-8") from None
    if not text.strip():
        raise JsonProblem("not JSON: line 1: the file is empty")
    if sniff(raw[:HEAD_BYTES], len(raw)) is Content.PAGE:
        raise JsonProblem(f'not JSON: line 1 looks like HTML/XML: "{quote(raw)}"')
    return text


def _parse(text: str, hook: PairsHook | None) -> object:
    try:
        loaded: object = json.loads(text, object_pairs_hook=hook)
    except json.JSONDecodeError as error:
        raise JsonProblem(f"not JSON: line {error.lineno}: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        raise JsonProblem(f"not JSON: {str(error)[:100]}") from None
    return loaded


def _second_line(text: str, name: str) -> int:
    """The line where `name` is written for the second time, as far as plain spelling shows it."""
    written = json.dumps(name)
    first = text.find(written)
    second = text.find(written, first + 1)
    return text.count("\n", 0, max(second, 0)) + 1
