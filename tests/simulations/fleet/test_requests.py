"""Traces: both formats, and every way in which a line can be wrong is named by its number."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulations.fleet.requests import Request, parse_trace, read_trace
from swarm.errors import UsageError

HEADER = "arrival_s,prompt_tokens,output_tokens\n"


def parse(text: str) -> list[Request]:
    return parse_trace(text.splitlines(keepends=True), "day.csv")


def test_csv_and_json_lines_say_the_same() -> None:
    csv_text = (
        "arrival_s,prompt_tokens,output_tokens,prefix,prefix_tokens\n0,10,2,,\n1.5,20,3,a,8\n"
    )
    json_text = (
        '{"arrival_s": 0, "prompt_tokens": 10, "output_tokens": 2}\n\n'
        '{"arrival_s": 1.5, "prompt_tokens": 20, "output_tokens": 3,'
        ' "prefix": "a", "prefix_tokens": 8}\n'
    )
    expected = [Request(0.0, 10, 2), Request(1.5, 20, 3, "a", 8)]
    assert parse(csv_text) == parse(json_text) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0.5,10,2", r"^day.csv:3: arrival_s: 0.5 is before the line above it \(1\)"),
        ("-1,10,2", "^day.csv:3: arrival_s: -1.0 is not a time"),
        ("nan,10,2", "^day.csv:3: arrival_s: nan is not a time"),
        ("inf,10,2", "^day.csv:3: arrival_s: inf is not a time"),
        ("x,10,2", "^day.csv:3: arrival_s: is not a number: 'x'"),
        (",10,2", "^day.csv:3: arrival_s: is missing"),
        ("2,0,2", "^day.csv:3: prompt_tokens: 0 is no whole number from 1"),
        ("2,-5,2", "^day.csv:3: prompt_tokens: -5 is no whole number"),
        ("2,nan,2", "^day.csv:3: prompt_tokens: nan is no whole number"),
        ("2,1.5,2", "^day.csv:3: prompt_tokens: 1.5 is no whole number"),
        ("2,10,99999999", "^day.csv:3: output_tokens: 1e[+]08 is no whole number"),
        ("2,10", "^day.csv:3: has 2 columns, the header 3"),
    ],
)
def test_a_bad_line_is_named_by_its_number(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(f"{HEADER}1,10,2\n{line}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no request in it"),
        (HEADER, "there is no request in it"),
        ("arrival_s,prompt_tokens\n", "day.csv:1: the header is not one of a trace: no output"),
        ("arrival_s,prompt_tokens,output_tokens,x\n", "day.csv:1: .*'x'"),
        ("arrival_s,arrival_s,prompt_tokens,output_tokens\n", "day.csv:1: .*one twice"),
        ('{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": true}', "output_tokens: is not a"),
        ('{"arrival_s": 0, "prompts": 1}', "day.csv:1: prompts: unknown key"),
        ('{"arrival_s": 0', "day.csv:1: not JSON"),
        ("{}\n[1]", "day.csv:1: arrival_s: is missing"),
        ('{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1}\n[]', "day.csv:2: is no object"),
        (
            "arrival_s,prompt_tokens,output_tokens,prefix_tokens\n0,9,1,4\n",
            "day.csv:2: prefix_tokens: shares tokens, but prefix names nothing",
        ),
        (
            "arrival_s,prompt_tokens,output_tokens,prefix,prefix_tokens\n0,9,1,a,10\n",
            "day.csv:2: prefix_tokens: 10 is more than the prompt's 9",
        ),
    ],
)
def test_what_is_no_trace_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(text)


def test_a_file_that_is_not_there_is_the_callers_fault(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_trace(tmp_path / "none.csv")
    (tmp_path / "day.csv").write_text(HEADER + "3,4,5\n")
    assert read_trace(tmp_path / "day.csv") == [Request(3.0, 4, 5)]
