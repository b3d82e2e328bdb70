"""`wait` and `run`: a directory is given out when it is ready, and not a moment before."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from swarm.cli.run import placed
from swarm.errors import EXIT_CODES
from swarm.protocol.ids import VersionId
from swarm.store.disk import DiskStore
from swarm.store.lock import has_reader
from swarm.store.readiness import write_durable
from swarm.store.tree import Tree
from tests.support.command_line import SWARM, call, environment, error_class, failure

ID = VersionId(bytes(range(32)))
OTHER = VersionId(bytes([0, 1, 2, 3, 4, 5, 6, 7, *[9] * 24]))


def unready_version(cache: Path, version: VersionId) -> Path:
    directory = cache / "versions" / version.hex()
    (directory / ".swarm").mkdir(parents=True)
    (directory / ".swarm" / "manifest").write_bytes(b"m")
    (directory / "config.json").write_text("{}")
    return directory


def make_ready(directory: Path, version: VersionId) -> None:
    tree = Tree(str(directory))
    write_durable(tree, version)
    tree.close()


def ready_version(cache: Path, version: VersionId) -> Path:
    directory = unready_version(cache, version)
    make_ready(directory, version)
    return directory


def test_a_ready_version_is_found_by_id_and_by_prefix(tmp_path: Path) -> None:
    directory = ready_version(tmp_path, ID)
    for reference in (ID.hex(), ID.hex()[:12]):
        result = call("wait", reference, "--cache", str(tmp_path))
        assert (result.returncode, result.stdout) == (0, f"{directory}\n"), result.stderr


def test_json_is_one_object(tmp_path: Path) -> None:
    directory = ready_version(tmp_path, ID)
    result = call("wait", ID.hex(), "--cache", str(tmp_path), "--json")
    document = json.loads(result.stdout)
    assert document["directory"] == str(directory)
    assert document["ready"] is True


def test_an_unready_version_ends_in_e_stalled(tmp_path: Path) -> None:
    unready_version(tmp_path, ID)
    started = time.monotonic()
    result = call("wait", ID.hex(), "--cache", str(tmp_path), "--timeout", "0.3", "--json")
    assert time.monotonic() - started < 5
    assert result.returncode == EXIT_CODES["E_STALLED"]
    assert error_class(result) == "E_STALLED"
    assert "not whole yet" in failure(result)["message"]


def test_wait_ends_when_the_version_becomes_ready(tmp_path: Path) -> None:
    directory = unready_version(tmp_path, ID)
    process = subprocess.Popen(
        [*SWARM, "wait", ID.hex(), "--cache", str(tmp_path), "--timeout", "20"],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    make_ready(directory, ID)
    output, _ = process.communicate(timeout=10)
    assert (process.returncode, output) == (0, f"{directory}\n")


@pytest.mark.parametrize("reference", [ID.hex(), "channel:prod"])
@pytest.mark.parametrize("place", ["nowhere", "empty", "left", "lived in"])
def test_what_is_waited_for_is_said_at_once(tmp_path: Path, place: str, reference: str) -> None:
    """With the suspicion that nobody will ever make it ready, where that is to be seen."""
    cache = tmp_path / "cache"
    if place != "nowhere":
        cache.mkdir()
    if place in ("left", "lived in"):
        DiskStore.open_cache(str(cache)).close()
    living = DiskStore.open_cache(str(cache)) if place == "lived in" else None
    process = subprocess.Popen(
        [*SWARM, "wait", reference, "--cache", str(cache), "--timeout", "20"],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    process.kill()
    process.communicate(timeout=10)
    if living is not None:
        living.close()
    assert line.startswith(f"waiting for {reference}: no ")
    assert str(cache) in line
    suspicion = {
        "nowhere": "; there is no such directory, and so no agent\n",
        "empty": "; no agent has ever run on this directory: is it the agent's --cache?\n",
        "left": "; no running agent was seen on this directory\n",
        "lived in": "",
    }[place]
    assert line.endswith(suspicion)
    assert ("agent" in line.removeprefix(f"waiting for {reference}")) == (place != "lived in")


def test_a_wait_that_gives_up_says_that_no_agent_was_there(tmp_path: Path) -> None:
    result = call("wait", ID.hex(), "--cache", str(tmp_path), "--timeout", "0", "--json")
    assert "no agent has ever run" in failure(result)["message"]


def test_an_ambiguous_prefix_is_refused(tmp_path: Path) -> None:
    """Both ids begin with the same 16 digits."""
    for version in (ID, OTHER):
        ready_version(tmp_path, version)
    result = call("wait", ID.hex()[:12], "--cache", str(tmp_path))
    assert (result.returncode, error_class(result)) == (2, "E_USAGE")
    assert "not unique" in result.stderr


def test_a_channel_gives_the_version_it_serves_now(tmp_path: Path) -> None:
    directory = ready_version(tmp_path, ID)
    (tmp_path / "channels").mkdir()
    (tmp_path / "channels" / "prod").symlink_to(f"../versions/{ID.hex()}")
    result = call("wait", "channel:prod", "--cache", str(tmp_path))
    assert result.stdout == f"{directory}\n"


def test_a_channel_that_leads_to_an_unready_version_is_not_served(tmp_path: Path) -> None:
    unready_version(tmp_path, ID)
    (tmp_path / "channels").mkdir()
    (tmp_path / "channels" / "prod").symlink_to(f"../versions/{ID.hex()}")
    result = call("wait", "channel:prod", "--cache", str(tmp_path), "--timeout", "0")
    assert error_class(result) == "E_STALLED"


@pytest.mark.parametrize("reference", ["channel:../../etc", "channel:", "channel:.."])
def test_a_channel_name_stays_in_its_directory(tmp_path: Path, reference: str) -> None:
    assert error_class(call("wait", reference, "--cache", str(tmp_path))) == "E_USAGE"


def test_a_name_needs_a_tracker_and_any_wait_a_place(tmp_path: Path) -> None:
    assert "--tracker" in call("wait", "m@v1", "--cache", str(tmp_path)).stderr
    assert "--cache" in call("wait", ID.hex()).stderr


def test_a_socket_without_an_agent_says_so(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    result = call("wait", ID.hex(), "--socket", str(path), "--timeout", "0")
    assert error_class(result) == "E_STALLED"
    assert str(path) in result.stderr
    result = call("status", "--socket", str(path))
    assert result.returncode == EXIT_CODES["E_NOTFOUND"]


def test_run_becomes_the_command_and_hands_over_the_directory(tmp_path: Path) -> None:
    directory = ready_version(tmp_path, ID)
    script = 'test "$SWARM_MODEL_DIR" = "$0" && test -f {}/config.json && echo "$1" && exit 7'
    result = call(
        "run", ID.hex(), "--cache", str(tmp_path), "--", "sh", "-c", script, "{}", "{dir}/x"
    )
    assert result.returncode == 7, result.stderr
    assert result.stdout == f"{directory}/x\n"


def test_the_version_is_held_while_the_command_runs(tmp_path: Path) -> None:
    directory = ready_version(tmp_path, ID)
    process = subprocess.Popen(
        [*SWARM, "run", ID.hex(), "--cache", str(tmp_path), "--", "sh", "-c", "echo on; read x"],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    tree = Tree(str(directory))
    assert process.stdout.readline() == b"on\n"
    assert has_reader(tree)
    process.communicate(b"\n", timeout=10)
    assert not has_reader(tree)
    tree.close()


def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    ready_version(tmp_path, ID)
    result = call("run", ID.hex(), "--cache", str(tmp_path), "--", "no-such-program")
    assert error_class(result) == "E_USAGE"
    assert "no-such-program" in result.stderr


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("{}", "/m"),
        ("{dir}/a", "/m/a"),
        ("--model={}", "--model=/m"),
        ("cat {}/config.json", "cat /m/config.json"),
        ('{"a": {}}', '{"a": {}}'),
        ('--overrides={"a": {}}', '--overrides={"a": {}}'),
        ("[1]", "[1]"),
        ("plain", "plain"),
    ],
)
def test_places_in_arguments(argument: str, expected: str) -> None:
    assert placed(argument, "/m") == expected


def test_an_environment_with_the_models_directory_is_no_unknown_setting(tmp_path: Path) -> None:
    """`swarm` may itself be called by what `swarm run` started."""
    ready_version(tmp_path, ID)
    again = f"{' '.join(SWARM)} wait {ID.hex()} --cache {tmp_path}"
    result = call("run", ID.hex(), "--cache", str(tmp_path), "--", "sh", "-c", again)
    assert result.returncode == 0, result.stderr
    assert os.path.isdir(result.stdout.strip())
