"""Which key files a tracker takes, and which keys it makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.errors import AuthError, UsageError
from swarm.protocol.keys import KeyKind, format_key
from swarm.protocol.request_auth import Role, role_key
from tracker.config import role_keys

CLUSTER = bytes(range(32))
OPERATOR = bytes(range(1, 33))


def key_file(path: Path, kind: KeyKind, key: bytes, mode: int = 0o600) -> Path:
    path.write_text(format_key(kind, key))
    path.chmod(mode)
    return path


def test_without_a_key_file_nobody_is_asked_for_a_key() -> None:
    assert role_keys(None, None) is None


def test_the_cluster_key_serves_operators_where_they_have_none(tmp_path: Path) -> None:
    cluster = key_file(tmp_path / "cluster", KeyKind.CLUSTER, CLUSTER)
    assert role_keys(cluster, None) == {role: role_key(CLUSTER, role) for role in Role}


def test_operators_may_have_a_key_of_their_own(tmp_path: Path) -> None:
    cluster = key_file(tmp_path / "cluster", KeyKind.CLUSTER, CLUSTER)
    operator = key_file(tmp_path / "operator", KeyKind.OPERATOR, OPERATOR)
    assert role_keys(cluster, operator) == {
        Role.AGENT: role_key(CLUSTER, Role.AGENT),
        Role.OPERATOR: role_key(OPERATOR, Role.OPERATOR),
    }


def test_an_operator_key_alone_is_refused(tmp_path: Path) -> None:
    operator = key_file(tmp_path / "operator", KeyKind.OPERATOR, OPERATOR)
    with pytest.raises(AuthError, match="cluster-key-file"):
        role_keys(None, operator)


def test_keys_are_not_taken_for_each_other(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="swarm-cluster-key"):
        role_keys(key_file(tmp_path / "operator", KeyKind.OPERATOR, OPERATOR), None)


def test_a_file_that_others_can_use_and_what_is_no_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AuthError, match="0640"):
        role_keys(key_file(tmp_path / "open", KeyKind.CLUSTER, CLUSTER, 0o640), None)
    (tmp_path / "directory").mkdir(mode=0o700)
    for name in ("gone", "directory"):
        with pytest.raises(AuthError, match=name):
            role_keys(tmp_path / name, None)
