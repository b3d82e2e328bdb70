"""What a test needs from the machine: rights and programs, and what happens when they are absent.

An ordinary user's run skips such a test with the reason and the remedy. Where nothing may be left
unproved (`WEIGHTSWARM_TEST_NO_SKIP`, or `CI` as build services set it) the same reason is a
failure: a green run then means that everything ran.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

import pytest

# An ordinary user's path lacks the directories in which Debian keeps `ip` and `tc`.
SYSTEM_PATH = "/usr/sbin:/sbin"


def may_skip(environment: Mapping[str, str]) -> bool:
    """Whether a test that cannot run here may be left out."""
    return not (_is_set(environment, "WEIGHTSWARM_TEST_NO_SKIP") or _is_set(environment, "CI"))


def require_root() -> None:
    """Skips the calling test unless it runs as root."""
    if os.geteuid() != 0:
        pytest.skip("needs root (network namespaces); run the tests as root, or with sudo")


def require_command(name: str) -> None:
    """Skips the calling test unless the program `name` is installed."""
    if find_command(name) is None:
        pytest.skip(f"needs the program {name!r}; apt-packages.txt names its Debian package")


def find_command(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


def _is_set(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").lower() not in ("", "0", "false", "no")
