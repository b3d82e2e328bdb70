"""Judges a directory before anything is uploaded: each file by its content, then all together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from swarm.publish.findings import Findings, Problem, WarningId
from swarm.publish.source_reader import OpenReader
from swarm.publish.validate_file import FileFacts, check_file, is_pickle, read_facts
from swarm.publish.validate_set import check_set, contains_code

_PICKLE_HINT = "convert it to safetensors, or publish without --forbid-pickle"


@dataclass(frozen=True, slots=True)
class ValidationRules:
    """The publisher's choice."""

    # Refuse what is broken; else it is published as it is.
    is_enabled: bool = True
    # Warnings are errors.
    is_strict: bool = False
    forbids_pickle: bool = False


@dataclass(frozen=True, slots=True)
class Validation:
    """The outcome, when nothing is refused."""

    # By path: where the second grid of each file begins.
    data_starts: Mapping[str, int]
    # (stable id, text) pairs.
    warnings: tuple[tuple[str, str], ...]
    contains_code: bool


def validate(
    paths: Sequence[str],
    open_reader: OpenReader,
    rules: ValidationRules,
    pulse: Callable[[], None],
) -> Validation:
    """Blocks; call it in a worker thread. `pulse` is called before each file and may raise to stop.
    Raises InputError that names everything that is wrong."""
    findings = Findings()
    facts = []
    for path in paths:
        pulse()
        facts.append(_visit(path, open_reader, rules, findings))
    if rules.is_enabled:
        check_set(facts, findings)
    findings.raise_problems()
    if rules.is_strict:
        findings.raise_warnings()
    return Validation(
        data_starts={file.path: file.data_start for file in facts},
        warnings=findings.warnings(),
        contains_code=contains_code(paths),
    )


def _visit(
    path: str, open_reader: OpenReader, rules: ValidationRules, findings: Findings
) -> FileFacts:
    with open_reader(path) as reader:
        if (rules.is_enabled or rules.forbids_pickle) and is_pickle(reader):
            if rules.forbids_pickle:
                findings.problems.append(Problem(path, "is a pickle", _PICKLE_HINT))
            else:
                findings.warn(WarningId.PICKLE, f"{path}: loading it runs code that is inside")
        return check_file(reader, findings) if rules.is_enabled else read_facts(reader)
