"""Judges one file by its content.

A loader that meets a truncated shard, a pointer or an error page fails late, on every node, or
loads zeros without a word; here it fails once, before a byte is uploaded.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass

from swarm.protocol.safetensors import (
    LENGTH_BYTES,
    SafetensorsError,
    SafetensorsHeader,
    header_length,
    parse_header,
)
from swarm.publish.content import HEAD_BYTES, Content, quote, sniff
from swarm.publish.findings import Findings, Problem, WarningId
from swarm.publish.json_file import BOM, JsonProblem, load_json, load_weight_map
from swarm.publish.source_reader import SeekableReader, SourceReader

MIB = 1 << 20

SAFETENSORS_SUFFIX = ".safetensors"
INDEX_SUFFIX = ".index.json"
WEIGHT_SUFFIXES = (
    SAFETENSORS_SUFFIX, ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx",
    ".weights",
)  # fmt: skip
"""Names under which weights are stored."""
_NEVER_PAGES = (*WEIGHT_SUFFIXES, ".model", ".tiktoken", ".npz", ".npy")
"""Names under which an HTML or XML page can only be a mistake."""
_ZIP_WEIGHT_SUFFIXES = tuple(suffix for suffix in WEIGHT_SUFFIXES if suffix != SAFETENSORS_SUFFIX)
_ENGINE_JSON = ("config.json", "tokenizer.json", "model_index.json")
_ENGINE_JSON_SUFFIXES = ("_config.json", INDEX_SUFFIX)
JSON_BYTES_MAX = 64 * MIB
"""Tokenizers reach 40 MB; past this a JSON file is data and is not parsed."""
ZERO_TAIL_BYTES = MIB
"""Preallocated and never written space comes in this size at least; a tensor of zeros may, too."""
_POINTER_HINT = "run `git lfs pull`, or download the files again"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What later checks need to know of one file."""

    path: str
    size: int
    # End of the header of a valid safetensors file, else 0.
    data_start: int
    # Names of its tensors; None if it is not a valid safetensors file.
    tensor_names: frozenset[str] | None = None
    # For an index: tensor name → shard, as written.
    weight_map: dict[str, str] | None = None


def read_facts(reader: SourceReader) -> FileFacts:
    """Only what the cut depends on; no judgement."""
    if not reader.path.lower().endswith(SAFETENSORS_SUFFIX):
        return FileFacts(reader.path, reader.size, 0)
    try:
        header = _read_header(reader)
    except SafetensorsError:
        return FileFacts(reader.path, reader.size, 0)
    return FileFacts(reader.path, reader.size, header.data_start)


def check_file(reader: SourceReader, findings: Findings) -> FileFacts:
    """Judge one file; adds what is wrong or unusual to `findings`."""
    head = reader.read(0, HEAD_BYTES)
    content = sniff(head, reader.size)
    name = reader.path.lower()
    facts = FileFacts(reader.path, reader.size, 0)
    if content is Content.LFS_POINTER:
        text = "is an LFS pointer, the content it stands for is not here"
        findings.problems.append(Problem(reader.path, text, _POINTER_HINT))
    elif name.endswith(".json"):
        facts = _check_json(reader, findings)
    elif content is Content.PAGE and name.endswith(_NEVER_PAGES):
        findings.problems.append(Problem(reader.path, f'looks like HTML/XML: "{quote(head)}"'))
    elif name.endswith(SAFETENSORS_SUFFIX):
        facts = _check_safetensors(reader, content, findings)
    elif name.endswith(".gguf") and content is not Content.GGUF:
        text = f'does not begin like GGUF but with "{quote(head)}"'
        findings.problems.append(Problem(reader.path, text))
    _check_zero_tail(reader, findings)
    return facts


def is_pickle(reader: SourceReader) -> bool:
    """Loading this file by the usual means runs code that is inside it. Judged by content: a
    stream by its mark, an archive by what it holds."""
    content = sniff(reader.read(0, HEAD_BYTES), reader.size)
    if content is not Content.ZIP:
        return content is Content.PICKLE
    try:
        with zipfile.ZipFile(SeekableReader(reader)) as archive:
            return any(name.endswith(".pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        # Damaged, or of a kind that zipfile does not read (it says so by NotImplementedError). A
        # loader that opens an archive under a weight's name expects a pickle.
        return reader.path.lower().endswith(_ZIP_WEIGHT_SUFFIXES)


def _read_header(reader: SourceReader) -> SafetensorsHeader:
    length = header_length(reader.read(0, LENGTH_BYTES), reader.size)
    return parse_header(reader.read(LENGTH_BYTES, length), reader.size)


def _check_safetensors(reader: SourceReader, content: Content, findings: Findings) -> FileFacts:
    try:
        header = _read_header(reader)
    except SafetensorsError as error:
        # Another format's magic reads as an absurd header length, which would explain nothing.
        known = content not in (Content.UNKNOWN, Content.EMPTY)
        text = f"looks like {content.value}, not safetensors" if known else str(error)
        findings.problems.append(Problem(reader.path, text))
        return FileFacts(reader.path, reader.size, 0)
    for warning in header.warnings:
        findings.warn(WarningId.UNKNOWN_DTYPE, f"{reader.path}: {warning}")
    return FileFacts(reader.path, reader.size, header.data_start, frozenset(header.tensors))


def _check_json(reader: SourceReader, findings: Findings) -> FileFacts:
    """Engines read config, tokenizer and index before they load weights, so those must be right;
    any other JSON file is only reported."""
    facts = FileFacts(reader.path, reader.size, 0)
    name = reader.path.rpartition("/")[2]
    is_needed = name in _ENGINE_JSON or name.endswith(_ENGINE_JSON_SUFFIXES)
    if reader.size > JSON_BYTES_MAX:
        findings.warn(WarningId.JSON_UNCHECKED, f"{reader.path}: too large to be checked")
        return facts
    raw = reader.read(0, reader.size)
    if raw.startswith(BOM):
        findings.warn(WarningId.JSON_BOM, f"{reader.path}: begins with a byte order mark")
    weight_map = None
    try:
        if name.endswith(INDEX_SUFFIX):
            weight_map = load_weight_map(raw)
        else:
            load_json(raw)
    except JsonProblem as problem:
        if is_needed:
            findings.problems.append(Problem(reader.path, str(problem)))
        else:
            findings.warn(WarningId.JSON_INVALID, f"{reader.path}: {problem}")
    return FileFacts(reader.path, reader.size, 0, weight_map=weight_map)


def _check_zero_tail(reader: SourceReader, findings: Findings) -> None:
    if reader.size <= ZERO_TAIL_BYTES:
        return
    tail = reader.read(reader.size - ZERO_TAIL_BYTES, ZERO_TAIL_BYTES)
    if tail.count(0) == len(tail):
        text = f"{reader.path}: its last {ZERO_TAIL_BYTES} bytes or more are zero; never written?"
        findings.warn(WarningId.ZERO_TAIL, text)
