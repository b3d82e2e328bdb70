"""What holds for every test: declared needs are checked first, and CI accepts no skip.

`@pytest.mark.root` and `@pytest.mark.command("tc")` say what a test needs from the machine
(tests/support/requirements.py). A skip of any origin, markers of pytest included, is turned into a
failure where `may_skip` says no.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from tests.support import requirements

# Network namespaces are made with these two.
ROOT_COMMANDS = ("ip", "tc")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") is not None:
        requirements.require_root()
        for name in ROOT_COMMANDS:
            requirements.require_command(name)
    for marker in item.iter_markers("command"):
        requirements.require_command(str(marker.args[0]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # An expected failure (xfail) is reported as skipped too, but it did run.
    if report.skipped and not hasattr(report, "wasxfail"):
        _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if requirements.may_skip(os.environ):
        return
    report.outcome = "failed"
    report.longrepr = f"skipped where nothing may be skipped: {_reason(report)}"


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    match report.longrepr:
        case (str(), int(), str(reason)):
            return reason
        case other:
            return str(other)
