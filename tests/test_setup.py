"""Setting up on machines that lack something: what is missing is named, with the command that
repairs it. The machines are search paths with stand-ins for the programs that matter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
# What the scripts call beside the programs under test.
TOOLS = ("bash", "dirname", "env")


class Machine:
    """A search path with nothing on it but the tools and what a test adds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.programs = root / "bin"
        self.programs.mkdir()
        for tool in TOOLS:
            (self.programs / tool).symlink_to(f"/usr/bin/{tool}")

    def add(self, name: str, script: str) -> Path:
        program = self.programs / name
        program.write_text(f"#!/usr/bin/bash\n{script}\n")
        program.chmod(0o755)
        return program

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(REPOSITORY / ".ci" / script), *arguments],
            env={"PATH": str(self.programs), "HOME": str(self.root)},
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def python_stand_in(*, refuses: str) -> str:
    """This Python, but one whose program contains `refuses` fails."""
    return f'[[ "$*" == *"{refuses}"* ]] && exit 1; exec {sys.executable} "$@"'


def test_a_python_without_venv_is_told_which_package_to_install(machine: Machine) -> None:
    machine.add("python3", python_stand_in(refuses="ensurepip"))
    done = machine.run("make-venv", str(machine.root / "venv"))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert done.returncode == 2
    assert f"apt-get install python{version}-venv" in done.stderr
    assert not (machine.root / "venv").exists()


def test_a_python_that_is_too_old_is_told_the_version(machine: Machine) -> None:
    machine.add("python3", 'case "$*" in --version) echo Python 3.9.2;; *) exit 1;; esac')
    done = machine.run("make-venv", str(machine.root / "venv"))
    assert done.returncode == 2
    assert "Python 3.11 or newer is needed, found Python 3.9.2" in done.stderr
    assert "apt-get install python3 python3-venv" in done.stderr


def test_no_python_at_all_is_told_what_to_install(machine: Machine) -> None:
    done = machine.run("make-venv", str(machine.root / "venv"))
    assert done.returncode == 2
    assert "found no python3" in done.stderr


def test_a_newer_python_beside_an_old_default_is_taken(machine: Machine) -> None:
    machine.add("python3", "exit 1")
    calls = machine.root / "calls"
    machine.add("python3.12", f'echo "$*" >> {calls}')
    assert machine.run("make-venv", "wanted-directory").returncode == 0
    assert "-m venv --clear wanted-directory" in calls.read_text()


def test_an_environment_that_works_is_kept(machine: Machine) -> None:
    environment = machine.root / "venv" / "bin"
    environment.mkdir(parents=True)
    (environment / "python").symlink_to("/usr/bin/true")
    assert machine.run("make-venv", str(machine.root / "venv")).returncode == 0


def package_list(machine: Machine) -> str:
    path = machine.root / "packages.txt"
    path.write_text("# a comment\nbash bash\nnosuch nosuch-program\nnosuch nosuch-other\n")
    return str(path)


def test_root_installs_what_is_missing_and_updates_only_when_it_must(machine: Machine) -> None:
    """The first attempt fails, as with the package lists of a fresh machine."""
    calls = machine.root / "calls"
    machine.add("id", "echo 0")
    machine.add(
        "apt-get",
        f'echo "$*" >> {calls}; [[ $1 == update || $(<{calls}) == *update* ]]',
    )
    done = machine.run("install-packages", package_list(machine))
    assert done.returncode == 0, done.stderr
    install = "install -y -q --no-install-recommends nosuch"
    assert calls.read_text().splitlines() == [install, "update -q", install]


def test_an_ordinary_user_is_told_what_is_missing(machine: Machine) -> None:
    machine.add("id", "echo 1000")
    machine.add("apt-get", "exit 99")
    done = machine.run("install-packages", package_list(machine))
    assert done.returncode == 0
    assert "not installed: nosuch;" in done.stderr
    assert "apt-get install nosuch " in done.stderr


def test_a_failed_installation_fails_the_run(machine: Machine) -> None:
    machine.add("id", "echo 0")
    machine.add("apt-get", "exit 100")
    assert machine.run("install-packages", package_list(machine)).returncode == 100


def test_ci_runs_what_the_readme_names() -> None:
    script = (REPOSITORY / ".ci" / "run").read_text()
    readme = (REPOSITORY / "README.md").read_text()
    assert "set -euo pipefail" in script
    assert os.access(REPOSITORY / ".ci" / "run", os.X_OK)
    for command in ("make lint", "make test"):
        assert f"\n{command}\n" in script
    for command in ("make demo", "make test"):
        assert f"\n{command} " in readme
