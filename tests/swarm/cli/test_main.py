"""How every command ends: exit codes, one line, one object. Through the door that users use."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from swarm.cli.main import COMMANDS
from swarm.cli.main import swarm as cli
from swarm.config import SETTINGS
from swarm.errors import EXIT_CODES
from tests.support.command_line import call, environment, error_class, failure, swarm


def test_help_shows_every_command_and_every_exit_code() -> None:
    result = call("--help")
    assert result.returncode == 0
    for name in COMMANDS:
        assert f"  {name} " in result.stdout
    for name, code in EXIT_CODES.items():
        assert f"{name} {code}" in result.stdout
    assert "SIGINT 130" in result.stdout


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, swarm.cli.main as m\n"
        "try: m.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'trio', 'httpx', 'botocore', 'rich', 'zeroconf', 'msgpack', 'asyncio'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("pul",), "did you mean pull?"),
        (("keys",), "missing command"),
        (("keys", "new"), "missing argument"),
        (("keys", "new", "--knd", "cluster", "f"), "no such option"),
        (("keys", "new", "--kind", "signing", "f"), "signed manifests"),
        ((), "missing command"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], fragment: str) -> None:
    result = call(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: E_USAGE: ")
    assert fragment in lines[0].lower()


def test_with_json_an_error_of_the_parser_is_one_object_too() -> None:
    result = call("keys", "new", "--json", "--bogus")
    assert (result.returncode, error_class(result)) == (2, "E_USAGE")
    assert failure(result)["object"] == "swarm keys new"


def test_the_flag_behind_two_dashes_belongs_to_the_child() -> None:
    result = call("keys", "new", "--", "--json", "--bogus")
    assert result.returncode == 2
    assert result.stdout == ""


def test_a_misspelt_variable_stops_every_command(tmp_path: Path) -> None:
    result = call("keys", "new", str(tmp_path / "key"), SWARM_TRAKER="http://a")
    assert result.returncode == 2
    assert "SWARM_TRACKER" in result.stderr
    assert not (tmp_path / "key").exists()


def test_an_unknown_key_of_the_file_names_file_and_key(tmp_path: Path) -> None:
    path = tmp_path / "swarm.toml"
    path.write_text("cahce = '/c'\n")
    result = call("keys", "new", "--config", str(path), str(tmp_path / "key"), "--json")
    error = failure(result)
    assert error["object"] == str(path)
    assert "cache" in str(error["hint"])


def test_a_new_key_is_private_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "cluster.key"
    result = call("keys", "new", str(path), "--json")
    assert json.loads(result.stdout) == {"file": str(path), "kind": "cluster"}
    line = path.read_text()
    label, number, digits = line.removesuffix("\n").split(":")
    assert (label, number, len(bytes.fromhex(digits))) == ("swarm-cluster-key", "1", 32)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert digits not in result.stdout + result.stderr

    again = call("keys", "new", str(path), "--json")
    assert again.returncode == EXIT_CODES["E_CONFLICT"]
    assert error_class(again) == "E_CONFLICT"
    assert failure(again)["object"] == str(path)
    assert path.read_text() == line


def test_an_empty_file_is_filled_and_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.touch(mode=0o644)
    assert call("keys", "new", "--kind", "operator", str(path)).returncode == 0
    assert path.read_text().startswith("swarm-operator-key:1:")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_keys_differ(tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert call("keys", "new", str(tmp_path / name)).returncode == 0
    assert (tmp_path / "a").read_text() != (tmp_path / "b").read_text()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    result = call("keys", "new", str(tmp_path / "none" / "key"))
    assert result.returncode == EXIT_CODES["E_PERM"]
    assert str(tmp_path / "none" / "key") in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_environment_speaks_where_the_flag_is_silent(tmp_path: Path) -> None:
    """Of three sources the flag wins over the variable, that over the file."""
    script = (
        "import click, sys\n"
        "from swarm.cli.options import common, setting\n"
        "from swarm.units import parse_rate\n"
        "@click.command()\n"
        "@setting('nic-rate', 'n', parse=parse_rate)\n"
        "@setting('tracker', 't')\n"
        "@setting('discover', 'd')\n"
        "@common\n"
        "def show(nic_rate, tracker, discover, as_json):\n"
        "    print(nic_rate, ','.join(tracker), discover)\n"
        "show.main(sys.argv[1:])\n"
    )
    path = tmp_path / "swarm.toml"
    path.write_text('nic-rate = "1MB/s"\ntracker = ["http://f", "http://g"]\ndiscover = true\n')

    def show(*arguments: str, **variables: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", script, *arguments],
            env=environment(**variables),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    from_file = ("--config", str(path))
    assert show() == "None  False"
    assert show(*from_file) == "1000000 http://f,http://g True"
    assert show(SWARM_CONFIG=str(path)) == "1000000 http://f,http://g True"
    variables = {"SWARM_NIC_RATE": "2MB/s", "SWARM_TRACKER": "http://x http://y"}
    assert show(*from_file, **variables) == "2000000 http://x,http://y True"
    flags = ("--nic-rate", "3MB/s", "--tracker", "http://z")
    assert show(*from_file, *flags, **variables) == "3000000 http://z True"
    assert show(*from_file, SWARM_DISCOVER="0") == "1000000 http://f,http://g False"


def test_every_setting_is_a_flag_of_some_command() -> None:
    """A variable or a key that is accepted and sets nothing would be the bug that we refuse
    unknown ones for."""
    flags: set[str] = set()
    pending: list[click.Command] = [cli]
    while pending:
        command = pending.pop()
        if isinstance(command, click.Group):
            context = click.Context(command)
            found = [command.get_command(context, name) for name in command.list_commands(context)]
            pending += [child for child in found if child is not None]
        flags |= {flag.removeprefix("--") for p in command.params for flag in p.opts}
    assert set(SETTINGS) <= flags


def test_help_is_quick() -> None:
    """Loose on purpose (other work shares the machine); the target is 0.25 s on an idle one."""
    swarm("--help")
    started = time.monotonic()
    swarm("--help")
    assert time.monotonic() - started < 2.0
