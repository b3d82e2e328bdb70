"""Logs off a terminal: one JSON object a line, without secrets."""

from __future__ import annotations

import json
import logging
import sys

from swarm.cli.logs import JsonLineFormatter, TerminalFormatter


def record(message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("swarm.x", logging.WARNING, __file__, 1, message, arguments, None)


def test_a_record_is_one_line_of_json() -> None:
    line = JsonLineFormatter().format(record("cannot read %s:\n%s", "https://h/k?sig=abc", "no"))
    assert "\n" not in line
    document = json.loads(line)
    assert document["level"] == "warning"
    assert document["logger"] == "swarm.x"
    assert document["message"] == "cannot read https://h/k\nno"
    assert document["time"].endswith("Z")


def test_a_traceback_is_part_of_the_object() -> None:
    entry = record("failed")
    try:
        raise ValueError("of https://user:pw@h/k?token=abc")
    except ValueError:
        entry.exc_info = sys.exc_info()
    document = json.loads(JsonLineFormatter().format(entry))
    assert "ValueError" in document["traceback"]
    assert "pw" not in document["traceback"]
    assert "abc" not in document["traceback"]


def test_a_terminal_gets_words() -> None:
    assert "WARNING: seen https://h/k" in TerminalFormatter().format(record("seen https://h/k?a=b"))
