"""Builders of small model directories, and of safetensors files with one fault each.

`write_model` makes what a publisher meets: config, tokenizer, sharded weights and their index.
`hub_snapshot` makes the symlink farm in which a hub client keeps the same. `SAFETENSORS` holds raw
files by name: ``ok_…`` must be accepted, all others refused; the verdicts were checked against the
reference reader (safetensors 0.8.0), except where a comment says otherwise.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
from dataclasses import dataclass
from pathlib import Path

KIB = 1 << 10
MIB = 1 << 20

TensorFields = dict[str, str | list[int]]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """How many shards of how many bytes of tensors."""

    shards: int
    shard_bytes: int


M1 = ModelShape(shards=2, shard_bytes=512 * KIB)
"""16 chunks of 64 KiB and a few small ones."""
M8 = ModelShape(shards=8, shard_bytes=MIB)
"""128 chunks of 64 KiB and a few small ones."""


def tensor(
    begin: int, end: int, shape: list[int] | None = None, dtype: str = "F32"
) -> TensorFields:
    """One entry of a header; by default a vector of F32 that fits."""
    fitting = [(end - begin) // 4] if shape is None else shape
    return {"dtype": dtype, "shape": fitting, "data_offsets": [begin, end]}


def safetensors_bytes(
    tensors: dict[str, TensorFields], body: bytes, *, claimed_length: int | None = None
) -> bytes:
    """A file as the reference writer lays it out: the header padded to 8 bytes. `claimed_length`
    is what the length field says instead of the truth."""
    header = json.dumps(tensors, separators=(",", ":")).encode()
    return raw_safetensors(header + b" " * (-len(header) % 8), body, claimed_length)


def raw_safetensors(header: bytes, body: bytes, claimed_length: int | None = None) -> bytes:
    length = len(header) if claimed_length is None else claimed_length
    return struct.pack("<Q", length) + header + body


_VECTOR = {"w": tensor(0, 16)}
_BODY = bytes(range(16))
_WHOLE = safetensors_bytes(_VECTOR, _BODY)

LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 4976698672\n"
)

SAFETENSORS: dict[str, bytes] = {
    "ok": _WHOLE,
    "ok_empty_tensor": safetensors_bytes({"e": tensor(0, 0), "w": tensor(0, 16)}, _BODY),
    "ok_no_tensors": safetensors_bytes({}, b""),
    "ok_unpadded": raw_safetensors(json.dumps(_VECTOR).encode(), _BODY),
    # The reference reader refuses it; a publisher only warns.
    "ok_unknown_dtype": safetensors_bytes({"w": tensor(0, 16, [4], "Q99")}, _BODY),
    "length_past_end": safetensors_bytes(_VECTOR, _BODY, claimed_length=MIB),
    "length_huge": safetensors_bytes(_VECTOR, _BODY, claimed_length=(1 << 64) - 1),
    "seven_bytes": b"\x08\0\0\0\0\0\0",
    "empty_file": b"",
    "truncated_body": _WHOLE[:-1],
    "truncated_half": _WHOLE[: len(_WHOLE) // 2],
    "truncated_to_length": _WHOLE[:8],
    "trailing_bytes": _WHOLE + b"\0",
    "overlap": safetensors_bytes({"a": tensor(0, 16), "b": tensor(0, 16)}, _BODY),
    "hole": safetensors_bytes({"a": tensor(0, 4), "b": tensor(8, 16)}, _BODY),
    "reversed": safetensors_bytes({"a": tensor(16, 0, [4])}, _BODY),
    "shape_too_large": safetensors_bytes({"a": tensor(0, 16, [1000, 1000])}, _BODY),
    "not_json": raw_safetensors(b"{{{{{{{{", _BODY),
    "unknown_dtype_past_end": safetensors_bytes({"w": tensor(0, 32, [4], "Q99")}, _BODY),
    "all_zero": bytes(4096),
    "lfs_pointer": LFS_POINTER,
    "html_page": b"<!doctype html><title>Sign in</title>" + b" " * 200,
    "xml_error": b'<?xml version="1.0"?><Error><Code>SlowDown</Code></Error>' + b" " * 100,
    "zip_archive": b"PK\x03\x04" + bytes(60),
    "gguf": b"GGUF\x03\0\0\0" + bytes(60),
    "pickle_stream": b"\x80\x02}q\x00." + bytes(60),
}


def shard_name(index: int, count: int) -> str:
    return f"model-{index + 1:05}-of-{count:05}.safetensors"


def write_model(directory: Path, shape: ModelShape = M1, *, seed: int = 0) -> Path:
    """A model directory with random weights; equal seeds give equal bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    weight_map = {}
    for index in range(shape.shards):
        name = shard_name(index, shape.shards)
        tensors, body = _shard(index, shape.shard_bytes, rng)
        (directory / name).write_bytes(safetensors_bytes(tensors, body))
        weight_map.update(dict.fromkeys(tensors, name))
    total = shape.shards * shape.shard_bytes
    index_file = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index_file, indent=2))
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", "seed": seed}))
    (directory / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": {}}))
    return directory


def hub_snapshot(root: Path, files: dict[str, bytes]) -> Path:
    """A hub cache below `root` in which each file is a link to a blob named by its content; equal
    contents share a blob. Returns the snapshot directory."""
    repository = root / "models--acme--tiny"
    blobs = repository / "blobs"
    snapshot = repository / "snapshots" / ("0" * 40)
    blobs.mkdir(parents=True)
    for name, content in files.items():
        blob = blobs / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        depth = len(link.parent.relative_to(repository).parts)
        link.symlink_to(Path(*[".."] * depth, "blobs", blob.name))
    return snapshot


def _shard(index: int, size: int, rng: random.Random) -> tuple[dict[str, TensorFields], bytes]:
    """Two tensors that share the shard's bytes."""
    half = size // 2
    tensors = {
        f"layers.{index}.a": tensor(0, half),
        f"layers.{index}.b": tensor(half, size),
    }
    return tensors, rng.randbytes(size)
