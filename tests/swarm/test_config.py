"""Settings from a file and from the environment, and key files that others must not read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swarm.config import SETTINGS, check_environment, read_config, read_key, variable
from swarm.errors import AuthError, UsageError
from swarm.protocol.keys import KeyKind, format_key

KEY = bytes(range(32))


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_file_sets_texts_lists_numbers_and_switches(tmp_path: Path) -> None:
    path = write(
        tmp_path / "swarm.toml",
        'tracker = ["http://a:7070", "http://b:7070"]\n'
        'origin = "s3://models/w"\nstall_timeout = 90\ndiscover = true\nchannel = "prod"\n',
    )
    assert read_config(path) == {
        "tracker": ["http://a:7070", "http://b:7070"],
        "origin": "s3://models/w",
        "stall-timeout": "90",
        "discover": True,
        "channel": ["prod"],
    }


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("orgin = 's3://b/p'", "origin"),
        ("nic_rte = '10Gbit/s'", "nic-rate"),
        ("config = 'other.toml'", "config"),
        ("discover = 'yes'", "true or false"),
        ("tracker = [1]", "list of strings"),
        ("zone = true", "a string"),
        ("nic-rate = '1GB/s'\nnic_rate = '2GB/s'", "twice"),
        ("[agent]\nzone = 'a'", "agent"),
        ("zone = ", "TOML"),
    ],
)
def test_what_a_file_may_not_say(tmp_path: Path, text: str, fragment: str) -> None:
    path = write(tmp_path / "swarm.toml", text)
    with pytest.raises(UsageError) as caught:
        read_config(path)
    assert str(path) in caught.value.message
    assert fragment in f"{caught.value.message} {caught.value.hint}"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.toml"):
        read_config(tmp_path / "gone.toml")


def test_a_misspelt_variable_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError) as caught:
        check_environment({"SWARM_TRAKER": "http://a"})
    assert caught.value.hint == "did you mean SWARM_TRACKER?"


def test_every_setting_has_a_variable() -> None:
    check_environment(dict.fromkeys(map(variable, SETTINGS), "x"))


def test_variables_of_others_are_left_alone() -> None:
    """Kubernetes adds such variables for every service whose name begins with ``swarm``."""
    check_environment(
        {
            "PATH": "/bin",
            "SWARM_MODEL_DIR": "/m",
            "SWARM_TRACKER_SERVICE_HOST": "10.0.0.1",
            "SWARM_TRACKER_SERVICE_PORT": "7070",
            "SWARM_TRACKER_SERVICE_PORT_HTTP": "7070",
            "SWARM_TRACKER_PORT": "tcp://10.0.0.1:7070",
            "SWARM_TRACKER_PORT_7070_TCP": "tcp://10.0.0.1:7070",
            "SWARM_TRACKER_PORT_7070_TCP_ADDR": "10.0.0.1",
            "SWARM_PORT": "tcp://10.0.0.2:80",
            "SWARM_SERVICE_HOST": "10.0.0.2",
        }
    )


def test_a_key_file_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "key", format_key(KeyKind.CLUSTER, KEY))
    assert read_key(path, KeyKind.CLUSTER) == KEY


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o660, 0o602, 0o644, 0o610])
def test_a_key_file_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "key", format_key(KeyKind.CLUSTER, KEY), mode)
    with pytest.raises(AuthError) as caught:
        read_key(path, KeyKind.CLUSTER)
    assert f"{mode:04o}" in caught.value.message
    assert "chmod 600" in caught.value.hint
    assert KEY.hex() not in str(caught.value)


@pytest.mark.root
def test_a_secret_volume_may_lend_the_group_a_key(tmp_path: Path) -> None:
    path = write(tmp_path / "key", format_key(KeyKind.CLUSTER, KEY), 0o440)
    os.chown(path, os.geteuid() + 1, os.getegid())
    assert read_key(path, KeyKind.CLUSTER) == KEY
    path.chmod(0o444)
    with pytest.raises(AuthError):
        read_key(path, KeyKind.CLUSTER)


def test_a_missing_key_or_a_directory_or_a_fifo_ends_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    (tmp_path / "directory").mkdir(mode=0o700)
    for name in ("gone", "directory"):
        with pytest.raises(AuthError, match=name):
            read_key(tmp_path / name, KeyKind.CLUSTER)
    with pytest.raises(UsageError, match="fifo"):
        read_key(tmp_path / "fifo", KeyKind.CLUSTER)


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "key", format_key(KeyKind.CLUSTER, KEY))
    with pytest.raises(UsageError, match="swarm-operator-key"):
        read_key(path, KeyKind.OPERATOR)
