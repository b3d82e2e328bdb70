"""A skipped test passes on a desk and fails where nothing may be left unproved."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.requirements import may_skip

REPOSITORY = Path(__file__).resolve().parent.parent
# Tests of a project of their own, run in a process of their own: what must be noticed.
SKIPPING_TESTS = """
import pytest

@pytest.mark.skip(reason="by marker")
def test_marked() -> None: ...

def test_in_body() -> None:
    pytest.skip("in the body")

@pytest.mark.command("no-such-program-anywhere")
def test_needs_program() -> None: ...

@pytest.mark.xfail(reason="known", strict=True)
def test_expected_failure() -> None:
    raise AssertionError
"""
SKIPPING_MODULE = 'import pytest\n\npytest.skip("whole module", allow_module_level=True)\n'


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A tiny project with this project's conftest."""
    conftest = (REPOSITORY / "tests" / "conftest.py").read_text()
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_some.py").write_text(SKIPPING_TESTS)
    (tmp_path / "test_module.py").write_text(SKIPPING_MODULE)
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {REPOSITORY}\nmarkers =\n  root: root\n  command(name): program\n"
    )
    return tmp_path


def run_pytest(suite: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("CI", "WEIGHTSWARM_TEST_NO_SKIP")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", str(suite)],
        # Without plugins, whose import would take most of the time.
        env={**clean, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_skips_pass_on_a_desk_and_say_why(suite: Path) -> None:
    result = run_pytest(suite)
    assert result.returncode == 0, result.stdout
    assert "4 skipped, 1 xfailed" in result.stdout
    assert "needs the program 'no-such-program-anywhere'" in result.stdout


def test_every_kind_of_skip_fails_where_none_may_be(suite: Path) -> None:
    (suite / "test_module.py").unlink()
    result = run_pytest(suite, WEIGHTSWARM_TEST_NO_SKIP="1")
    assert result.returncode == 1, result.stdout
    assert "1 failed, 1 xfailed, 2 errors" in result.stdout
    for reason in ("by marker", "in the body", "needs the program 'no-such-program-anywhere'"):
        assert f"skipped where nothing may be skipped: Skipped: {reason}" in result.stdout


def test_a_skipped_module_fails_where_none_may_be(suite: Path) -> None:
    result = run_pytest(suite, CI="true")
    assert result.returncode != 0, result.stdout
    assert "whole module" in result.stdout


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, True),
        ({"CI": "true"}, False),
        ({"CI": "false"}, True),
        ({"WEIGHTSWARM_TEST_NO_SKIP": "1"}, False),
    ],
)
def test_what_forbids_skipping(environment: dict[str, str], expected: bool) -> None:
    assert may_skip(environment) is expected
