"""Judges what files say about each other: an index and its shards, the parts of a split, two
formats of the same weights, names that some file systems take for one.

The commonest real fault is silent incompleteness. An index that names a shard that is not there is
an error; so is a numbered set with a gap, because engines load what they find.
"""

from __future__ import annotations

import glob
import posixpath
import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence

from swarm.publish.findings import SHOWN_MAX, Findings, Problem, WarningId
from swarm.publish.validate_file import SAFETENSORS_SUFFIX, WEIGHT_SUFFIXES, FileFacts

CODE_SUFFIXES = (".py", ".pyc", ".so", ".pyd", ".dll")
"""Files that an engine may import or load: the version contains code."""

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.(gguf|safetensors)")
_MISSING_HINT = "download the files again, or --no-validate to publish what is here"


def contains_code(paths: Sequence[str]) -> bool:
    return any(path.lower().endswith(CODE_SUFFIXES) for path in paths)


def check_set(files: Sequence[FileFacts], findings: Findings) -> None:
    """All checks that need more than one file."""
    by_path = {file.path: file for file in files}
    indexed = _check_indexes(by_path, findings)
    _check_splits(by_path, indexed, findings)
    _check_formats(files, indexed, findings)
    _check_case(files, findings)


def _check_indexes(by_path: Mapping[str, FileFacts], findings: Findings) -> set[str]:
    """Every shard of every index is here; returns the paths that indexes name."""
    indexed: set[str] = set()
    for file in by_path.values():
        if file.weight_map is None:
            continue
        base = posixpath.dirname(file.path)
        shards = {name: posixpath.join(base, name) for name in sorted({*file.weight_map.values()})}
        missing = [name for name, path in shards.items() if path not in by_path]
        if missing:
            text = f"names {len(missing)} files that are not here: {_some(missing)}"
            findings.problems.append(Problem(file.path, text, _MISSING_HINT))
        indexed.update(shards.values())
        _check_tensors(file, shards, by_path, findings)
    return indexed


def _check_tensors(
    index: FileFacts,
    shards: Mapping[str, str],
    by_path: Mapping[str, FileFacts],
    findings: Findings,
) -> None:
    """Each tensor is in the shard that the index names; a stale index is only a warning, since
    loaders differ in what they do with it."""
    assert index.weight_map is not None
    absent = []
    for tensor, name in index.weight_map.items():
        shard = by_path.get(shards[name])
        if shard and shard.tensor_names is not None and tensor not in shard.tensor_names:
            absent.append(tensor)
    if absent:
        text = f"{index.path}: {len(absent)} tensors are not in their shards: {_some(absent)}"
        findings.warn(WarningId.INDEX_MISMATCH, text)


def _check_splits(by_path: Mapping[str, FileFacts], indexed: set[str], findings: Findings) -> None:
    """A numbered set is whole, counted from 1. Sets that an index names are the index's matter,
    and a set with a number 0 or past its count follows some other habit."""
    sets: dict[tuple[str, int, str], set[int]] = defaultdict(set)
    for path in by_path:
        match = _SPLIT.fullmatch(path)
        if match and path not in indexed:
            key = (match["stem"], int(match["count"]), path.rpartition(".")[2])
            sets[key].add(int(match["index"]))
    for (stem, count, suffix), found in sets.items():
        if min(found) < 1 or max(found) > count or len(found) == count:
            continue
        missing = [f"{i:05}-of-{count:05}" for i in range(1, count + 1) if i not in found]
        problem = Problem(f"{stem}-*.{suffix}", f"missing {_some(missing)}", _MISSING_HINT)
        findings.problems.append(problem)


def _check_formats(files: Sequence[FileFacts], indexed: set[str], findings: Findings) -> None:
    """Weights that no index names, or another format beside safetensors: every node would fetch
    them as well. Nothing is dropped; the warning says how to."""
    weights = [file for file in files if file.path.lower().endswith(WEIGHT_SUFFIXES)]
    if indexed:
        surplus = [file for file in weights if file.path not in indexed]
        what = "in files that the index does not name"
    else:
        with_safetensors = {
            posixpath.dirname(file.path)
            for file in weights
            if file.path.lower().endswith(SAFETENSORS_SUFFIX)
        }
        surplus = [
            file
            for file in weights
            if not file.path.lower().endswith(SAFETENSORS_SUFFIX)
            and posixpath.dirname(file.path) in with_safetensors
        ]
        what = "in another format beside safetensors"
    for pattern, size in sorted(_patterns(surplus, indexed).items()):
        text = f"{size} bytes {what}; to leave them out: --exclude {shlex.quote(pattern)}"
        findings.warn(WarningId.DUPLICATE_FORMAT, text)


def _patterns(surplus: Sequence[FileFacts], indexed: set[str]) -> dict[str, int]:
    """Exclude patterns and the bytes they save: a whole directory where no index names a file in
    it, else one file."""
    kept = {posixpath.dirname(path) for path in indexed}
    sizes: dict[str, int] = defaultdict(int)
    for file in surplus:
        directory = posixpath.dirname(file.path)
        is_apart = directory and not any(f"{path}/".startswith(f"{directory}/") for path in kept)
        pattern = f"{glob.escape(directory)}/*" if is_apart and indexed else glob.escape(file.path)
        sizes[pattern] += file.size
    return sizes


def _check_case(files: Sequence[FileFacts], findings: Findings) -> None:
    """Names equal but for case: one file would replace the other on some file systems."""
    by_folded: dict[str, list[str]] = defaultdict(list)
    for file in files:
        by_folded[file.path.casefold()].append(file.path)
    for paths in by_folded.values():
        if len(paths) > 1:
            text = f"{' and '.join(paths)} differ in case alone"
            findings.warn(WarningId.CASE_COLLISION, text)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return ", ".join(names[:SHOWN_MAX]) + more
