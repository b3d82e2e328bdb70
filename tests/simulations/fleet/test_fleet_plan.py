"""``swarm-sim plan`` on files with a fleet, as a user starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from simulations.main import main

REPOSITORY = Path(__file__).resolve().parents[3]
SCENARIOS = REPOSITORY / "simulations" / "scenarios"
DAY = SCENARIOS / "fleet_day.toml"
SEED = SCENARIOS / "fleet_seed.toml"
VOLATILE = ("wall_s", "commit")


def swarm_sim(*words: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "simulations", *words],
        cwd=REPOSITORY,
        env={"PYTHONHASHSEED": hash_seed, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    """Output and errors of a command that ends with 2, in this process: starting another takes
    longer than refusing."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    said = capsys.readouterr()
    return said.out, said.err


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Forty minutes: a request every six seconds, for five of them two a second more."""
    times = [6.0 * place for place in range(400)] + [600 + 0.5 * place for place in range(600)]
    lines = [f"{time_s},1500,100" for time_s in sorted(times)]
    path = tmp_path / "crowd.csv"
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]) + "\n")
    return path


def test_a_plan_for_a_trace_is_one_object_whatever_order_sets_have(trace: Path) -> None:
    words = ("plan", str(DAY), "--slo", "ttft p99 < 2 s, misses < 2 %", "--trace", str(trace))
    options = ("--set", 'fleet.scaling.targets=["70%"]', "--json")
    told = []
    for hash_seed in ("0", "1"):
        done = swarm_sim(*words, *options, hash_seed=hash_seed)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("\n") == 1
        result = json.loads(done.stdout)
        assert all(result.pop(key) is not None for key in VOLATILE)
        told.append(json.dumps(result))
    assert told[0] == told[1]
    assert result["objective"] == "ttft p99 < 2 s, misses < 2 %"
    assert result["requests"] == 1000
    best = result["recommendation"]
    assert best["is_met"] is True
    assert best["warm"] + best["floor"] > 1
    assert float(result["cold_start"]["load_s"]["1"]) > 45


def test_a_grid_is_told_to_people_with_what_observed_rates_mean() -> None:
    options = (
        "--set", "fleet.grid.batches=[32]",
        "--set", 'fleet.grid.hit_rates=["70%"]',
        "--set", 'fleet.grid.waits=["20ms"]',
    )  # fmt: skip
    done = swarm_sim("plan", str(SEED), *options)
    assert done.returncode == 0, done.stderr
    assert "batch 32 at 70%: 250/s, model 249.4/s" in done.stdout
    assert "batch 8 at 70%: 120/s, model 119.9/s" in done.stdout
    assert "46.2 ms a batch" in done.stdout
    assert "DRAM" in done.stdout
    assert "NVMe" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--slo", "fast"), "not an objective: 'fast'"),
        (("--slo", "ttft p99 < 2"), "'2' has no unit"),
        (("--trace", "none.csv"), "cannot read none.csv"),
        (("--workers", "2"), "planned in one process"),
        (("--plot", "plan.pdf"), "a plot is .png or .svg"),
    ],
)
def test_what_cannot_be_planned_is_the_callers_fault(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, errors = refused(capsys, "plan", str(DAY), *words)
    assert errors.startswith("error: E_USAGE: ")
    assert message in errors


def test_a_trace_out_of_order_is_named_by_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "day.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n5,10,10\n4,10,10\n")
    told, _ = refused(capsys, "plan", str(DAY), "--trace", str(path), "--json")
    assert f"{path}:3: arrival_s" in json.loads(told)["error"]["message"]


def test_an_objective_needs_a_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    _, errors = refused(
        capsys, "plan", str(SCENARIOS / "does_not_pay.toml"), "--slo", "ttft p99 < 2 s"
    )
    assert "has no [fleet] table" in errors


def test_a_fleet_file_is_a_scenario_too() -> None:
    done = swarm_sim("run", str(SEED), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["nodes"] == 1
