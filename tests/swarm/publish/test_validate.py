"""What is refused and what is only reported."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest

from swarm.errors import InputError
from swarm.protocol.safetensors import HEADER_BYTES_MAX
from swarm.publish.scan import scan
from swarm.publish.skip_rules import SkipRules
from swarm.publish.source_reader import open_source
from swarm.publish.validate import Validation, ValidationRules, validate
from tests.support.models import (
    LFS_POINTER,
    MIB,
    SAFETENSORS,
    TensorFields,
    safetensors_bytes,
    tensor,
    write_model,
)

NOT_VALIDATED = ValidationRules(is_enabled=False)


def judge(directory: Path, rules: ValidationRules | None = None, *excludes: str) -> Validation:
    found = scan(str(directory), SkipRules(excludes), lambda: None)
    files = {file.path: file for file in found.files}
    return validate(
        list(files), lambda path: open_source(files[path]), rules or ValidationRules(), lambda: None
    )


def refusal(directory: Path, rules: ValidationRules | None = None) -> str:
    with pytest.raises(InputError) as caught:
        judge(directory, rules)
    assert caught.value.hint
    return caught.value.message


def warning_ids(validation: Validation) -> list[str]:
    return [warning_id for warning_id, _ in validation.warnings]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m")


def test_a_whole_model_passes_without_a_word(model: Path) -> None:
    validation = judge(model)
    assert validation.warnings == ()
    assert not validation.contains_code
    shard = "model-00001-of-00002.safetensors"
    length = int.from_bytes((model / shard).read_bytes()[:8], "little")
    assert validation.data_starts[shard] == 8 + length
    assert validation.data_starts["config.json"] == 0


def test_every_pointer_is_named_whatever_its_name(model: Path) -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for name in [*shards, "extra.bin", "tokenizer.json"]:
        (model / name).write_bytes(LFS_POINTER)
    first_line = LFS_POINTER.splitlines()[0]
    (model / "README.md").write_bytes(b"x" * 150 + b"\n" + first_line + b"\n" + b"y" * 90)
    message = refusal(model)
    assert message.count("LFS pointer") == 4
    for name in [*shards, "extra.bin", "tokenizer.json"]:
        assert name in message
    assert "README" not in message


def test_missing_shards_are_named_with_their_index(model: Path) -> None:
    (model / "model-00002-of-00002.safetensors").unlink()
    message = refusal(model)
    assert "model.safetensors.index.json: names 1 files that are not here" in message
    assert "model-00002-of-00002.safetensors" in message
    assert judge(model, NOT_VALIDATED).warnings == ()


def test_a_stale_index_names_every_shard_it_misses(model: Path) -> None:
    for index in (1, 2):
        (model / f"model-0000{index}-of-00002.safetensors").rename(model / f"w{index}.safetensors")
    message = refusal(model)
    assert "model-00001-of-00002.safetensors, model-00002-of-00002.safetensors" in message


def test_an_unfinished_download_does_not_stand_for_its_shard(model: Path) -> None:
    shard = model / "model-00002-of-00002.safetensors"
    shard.rename(shard.with_name(shard.name + ".incomplete"))
    assert "names 1 files that are not here" in refusal(model)


def test_an_index_looks_beside_itself(tmp_path: Path) -> None:
    write_model(tmp_path / "unet")
    write_model(tmp_path / "vae")
    assert judge(tmp_path).warnings == ()
    (tmp_path / "vae" / "model-00001-of-00002.safetensors").unlink()
    assert "vae/model.safetensors.index.json" in refusal(tmp_path)


def test_a_tensor_in_another_shard_than_the_index_says_is_reported(model: Path) -> None:
    path = model / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["layers.0.gone"] = "model-00001-of-00002.safetensors"
    path.write_text(json.dumps(index))
    validation = judge(model)
    assert warning_ids(validation) == ["index-mismatch"]
    assert "layers.0.gone" in validation.warnings[0][1]


@pytest.mark.parametrize("name", [name for name in SAFETENSORS if not name.startswith("ok")])
def test_every_broken_shard_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "x.safetensors").write_bytes(SAFETENSORS[name])
    assert refusal(tmp_path).startswith("x.safetensors: ")
    unjudged = judge(tmp_path, NOT_VALIDATED)
    assert unjudged.data_starts == {"config.json": 0, "x.safetensors": 0}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("truncated_body", "file shorter than its header says: "),
        ("length_past_end", "header length 1048576 > file"),
        ("html_page", 'looks like HTML/XML: "<!doctype html><title>Sign in</title>'),
        ("xml_error", "looks like HTML/XML"),
        ("zip_archive", "looks like ZIP, probably a torch checkpoint"),
        ("pickle_stream", "looks like a pickle"),
        ("gguf", "looks like GGUF"),
        ("empty_file", "file of 0 bytes"),
        ("all_zero", "no header"),
    ],
)
def test_the_message_says_what_it_is(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "x.safetensors").write_bytes(SAFETENSORS[name])
    message = refusal(tmp_path)
    assert text in message
    assert "too large" not in message


@pytest.mark.parametrize("name", [name for name in SAFETENSORS if name.startswith("ok")])
def test_every_whole_shard_passes(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.safetensors").write_bytes(SAFETENSORS[name])
    validation = judge(tmp_path)
    assert warning_ids(validation) == (["unknown-dtype"] if name == "ok_unknown_dtype" else [])
    assert validation.data_starts["x.safetensors"] > 0
    # What an id depends on must not depend on whether somebody judged.
    assert judge(tmp_path, NOT_VALIDATED).data_starts == validation.data_starts


def test_a_header_past_the_limit_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes((HEADER_BYTES_MAX + 1).to_bytes(8, "little"))
    os.truncate(path, 101 * MIB)
    assert "official reader stops at 100,000,000 bytes" in refusal(tmp_path)


def test_a_page_under_a_name_that_may_be_a_page_passes(tmp_path: Path) -> None:
    for name in ("model_card.html", "README.md", "logo.svg"):
        (tmp_path / name).write_bytes(SAFETENSORS["html_page"])
    assert judge(tmp_path).warnings == ()
    (tmp_path / "tokenizer.model").write_bytes(SAFETENSORS["html_page"])
    assert "tokenizer.model: looks like HTML/XML" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("config.json", b"", "line 1: the file is empty"),
        ("config.json", b'{\n "a": 1,\n "b": ', "not JSON: line 3"),
        ("config.json", SAFETENSORS["html_page"], "not JSON: line 1 looks like HTML/XML"),
        ("config.json", b'{"a":\n"\xff"}', "line 2 is not UTF-8"),
        ("sub/generation_config.json", b"{", "not JSON"),
        ("tokenizer.json", b"[" * 100_000, "not JSON"),
        ("tokenizer.json", b'{"a":' + b"9" * 5000 + b"}", "not JSON"),
        ("model.safetensors.index.json", b"[]", "line 1: an index without a weight_map"),
        ("model.safetensors.index.json", b'{"weight_map": []}', "without a weight_map"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": 1}}', "map to file names"),
        (
            "model.safetensors.index.json",
            b'{"weight_map": {\n"a": "x.bin",\n"b": "x.bin",\n"a": "y.bin"}}',
            "line 4: 'a' occurs twice",
        ),
    ],
)
def test_broken_json_that_engines_read_is_refused_with_its_line(
    tmp_path: Path, name: str, content: bytes, text: str
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    message = refusal(tmp_path)
    assert message.startswith(f"{name}: ")
    assert text in message


def test_other_json_is_only_reported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf{}")
    (tmp_path / "special_tokens_map.json").touch()
    (tmp_path / "notes.json").write_text("{")
    assert warning_ids(judge(tmp_path)) == ["json-bom", "json-invalid", "json-invalid"]


def test_a_tail_of_zeros_is_reported(tmp_path: Path) -> None:
    for name, zeros in (("holed", 2 * MIB), ("short", MIB - 1)):
        body = b"\1" * 4 + bytes(zeros // 4 * 4)
        raw = safetensors_bytes({"w": tensor(0, len(body))}, body)
        (tmp_path / f"{name}.safetensors").write_bytes(raw)
    validation = judge(tmp_path)
    assert warning_ids(validation) == ["zero-tail"]
    assert "holed.safetensors" in validation.warnings[0][1]


def test_weights_that_the_index_does_not_name_are_counted(model: Path) -> None:
    (model / "original").mkdir()
    for name in ("original/consolidated.00.pth", "pytorch_model.bin"):
        (model / name).write_bytes(b"\1" * MIB)
    whole = safetensors_bytes({"w": tensor(0, MIB)}, b"\1" * MIB)
    (model / "consolidated.safetensors").write_bytes(whole)
    validation = judge(model)
    texts = [text for _, text in validation.warnings]
    assert warning_ids(validation) == ["duplicate-format"] * 3
    assert f"{MIB} bytes in files that the index does not name" in texts[1]
    assert "--exclude 'original/*'" in texts[1]
    assert "--exclude pytorch_model.bin" in texts[2]
    left = judge(model, None, "original/*")
    assert [text for _, text in left.warnings] == [texts[0], texts[2]]


def test_two_formats_without_an_index_are_reported(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(SAFETENSORS["ok"])
    (tmp_path / "pytorch model.bin").write_bytes(b"\1" * 10)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.bin").write_bytes(b"\1")
    validation = judge(tmp_path)
    assert [text for _, text in validation.warnings] == [
        "10 bytes in another format beside safetensors; to leave them out:"
        " --exclude 'pytorch model.bin'"
    ]


@pytest.mark.parametrize(
    ("present", "missing"),
    [
        (["m-00001-of-00003.gguf", "m-00003-of-00003.gguf"], "00002-of-00003"),
        (["s/m-00001-of-00002.safetensors"], "00002-of-00002"),
        (["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"], None),
        (["best-of-breed.gguf", "m-00000-of-00003.gguf", "m-00004-of-00003.gguf"], None),
        (["m-00000-of-00002.safetensors", "m-00001-of-00002.safetensors"], None),
    ],
)
def test_a_numbered_set_must_be_whole(
    tmp_path: Path, present: list[str], missing: str | None
) -> None:
    for name in present:
        content = SAFETENSORS["gguf" if name.endswith("gguf") else "ok"]
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    if missing:
        assert f"missing {missing}" in refusal(tmp_path)
    else:
        judge(tmp_path)


def test_a_gguf_file_begins_like_one(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"\0\1GGML?" + bytes(30))
    assert 'm.gguf: does not begin like GGUF but with "..GGML?' in refusal(tmp_path)


def test_code_is_part_of_a_model_and_is_said(model: Path) -> None:
    for name in ("configuration_x.py", "chat_template.jinja", "tokenizer.model", "LICENSE"):
        (model / name).write_text("x = 1\n")
    validation = judge(model)
    assert validation.contains_code
    assert validation.warnings == ()
    assert judge(model, NOT_VALIDATED).contains_code


class Bomb:
    """Unpickling an instance makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def archive(*names: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as written:
        for name in names:
            written.writestr(name, b"x")
    return stream.getvalue()


def test_pickles_are_known_by_content_and_never_opened(tmp_path: Path) -> None:
    pwned = tmp_path / "pwned"
    model = tmp_path / "m"
    model.mkdir()
    bomb = pickle.dumps(Bomb(pwned))
    flagged = {
        "pytorch_model.bin": bomb,
        "x.weights": bomb,
        "y.weights": archive("archive/data.pkl", "archive/data/0"),
        "broken.pt": b"PK\3\4" + bytes(60),
        "z.npy": b"\x93NUMPY\1\0v\0{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n",
    }
    harmless = {
        "assets.zip": archive("a.txt"),
        "broken.zip": b"PK\3\4" + bytes(60),
        "w.npy": b"\x93NUMPY\1\0v\0{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n",
        "one.txt": b"\x80",
    }
    for name, content in (flagged | harmless).items():
        (model / name).write_bytes(content)
    validation = judge(model)
    assert warning_ids(validation) == ["pickle"] * len(flagged)
    assert {text.partition(":")[0] for _, text in validation.warnings} == set(flagged)
    for is_enabled in (True, False):
        rules = ValidationRules(is_enabled=is_enabled, forbids_pickle=True)
        assert refusal(model, rules).count("is a pickle") == len(flagged)
    assert not pwned.exists()


def test_names_equal_but_for_case_are_reported(tmp_path: Path) -> None:
    for name in ("Model.txt", "model.txt", "other.txt"):
        (tmp_path / name).write_text(name)
    validation = judge(tmp_path)
    assert validation.warnings == (
        ("case-collision", "Model.txt and model.txt differ in case alone"),
    )


def test_strict_turns_warnings_into_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(SAFETENSORS["ok_unknown_dtype"])
    message = refusal(tmp_path, ValidationRules(is_strict=True))
    assert "[unknown-dtype]" in message


def test_many_warnings_of_a_kind_are_counted(tmp_path: Path) -> None:
    for index in range(60):
        (tmp_path / f"{index:02}.pkl").write_bytes(pickle.dumps(index))
    validation = judge(tmp_path)
    assert len(validation.warnings) == 51
    assert validation.warnings[-1] == ("pickle", "and 10 more like these")


def test_many_problems_are_counted(tmp_path: Path) -> None:
    for index in range(60):
        (tmp_path / f"{index:02}.safetensors").touch()
    assert refusal(tmp_path).endswith("; and 10 more")


def test_a_header_of_sixty_thousand_tensors_passes(tmp_path: Path) -> None:
    tensors: dict[str, TensorFields] = {
        f"model.layers.{i}.mlp.experts.{i}.down_proj.weight": tensor(4 * i, 4 * i + 4)
        for i in range(60_000)
    }
    raw = safetensors_bytes(tensors, b"\1" * 240_000)
    (tmp_path / "x.safetensors").write_bytes(raw)
    assert judge(tmp_path).data_starts["x.safetensors"] == len(raw) - 240_000
