"""Errors of the operating system in our words."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from swarm.errors import NoSpaceError, PermissionDeniedError, StoreError, SwarmError
from swarm.store.faults import faults_of, free_bytes, mount_point, store_fault


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, NoSpaceError),
        (errno.EDQUOT, NoSpaceError),
        (errno.EACCES, PermissionDeniedError),
        (errno.EROFS, PermissionDeniedError),
        (errno.EIO, StoreError),
        (errno.EMFILE, StoreError),
    ],
)
def test_each_errno_has_its_class(tmp_path: Path, number: int, kind: type[SwarmError]) -> None:
    error = store_fault(OSError(number, "x"), str(tmp_path), needed_bytes=12)
    assert type(error) is kind
    assert str(tmp_path) in error.message
    assert os.strerror(number) in error.message
    assert error.hint


def test_a_full_disk_names_numbers_and_mount(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "not" / "yet" / "there")
    error = store_fault(OSError(errno.ENOSPC, "x"), nowhere, needed_bytes=12)
    assert "needs 12 bytes, free " in error.message
    assert error.message.endswith(f"at {mount_point(str(tmp_path))}")
    assert free_bytes(nowhere) > 0


def test_a_forbidden_path_names_the_user(tmp_path: Path) -> None:
    error = store_fault(PermissionError(errno.EACCES, "x"), str(tmp_path))
    assert f"uid {os.geteuid()}" in error.message


def test_our_own_errors_pass_through(tmp_path: Path) -> None:
    with pytest.raises(NoSpaceError, match="ours"), faults_of(str(tmp_path)):
        raise NoSpaceError("ours")
