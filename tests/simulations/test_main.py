"""The command ``swarm-sim run``, as a user starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from simulations.main import main

REPOSITORY = Path(__file__).resolve().parents[2]
SCENARIOS = REPOSITORY / "simulations" / "scenarios"
FAULTS = SCENARIOS / "everything_wrong.toml"
FEWER = ("--set=nodes.0.count=10", "--set=version.size=2.4GB", "--set=version.chunks=60")
VOLATILE = ("wall_s", "peak_rss_mb", "commit")


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


def test_one_seed_gives_one_result_byte_for_byte() -> None:
    """Whatever order sets would have; all faults on."""
    told = []
    for hash_seed in ("0", "1"):
        done = swarm_sim("run", str(FAULTS), *FEWER, "--seed=7", "--json", hash_seed=hash_seed)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert all(result.pop(key) is not None for key in VOLATILE)
        told.append(json.dumps(result))
    assert told[0] == told[1]
    other = json.loads(swarm_sim("run", str(FAULTS), *FEWER, "--seed=8", "--json").stdout)
    assert other["messages"] != json.loads(told[0])["messages"]


def test_the_object_holds_what_a_planner_asks_for() -> None:
    """Memory is the run's own: whoever starts it holds 256 MiB, and the run needs far less."""
    held = b"x" * (256 << 20)
    done = swarm_sim("run", str(SCENARIOS / "does_not_pay.toml"), "--json")
    result = json.loads(done.stdout)
    assert result["peak_rss_mb"] < len(held) >> 20
    keys = "p50_ratio p99_ratio last_ratio origin_copies cross_zone_copies transfers wall_s"
    assert {*keys.split(), "peak_rss_mb", "commit", "bottleneck", "direct_s"} <= result.keys()
    assert result["transfers"] == 800
    assert result["origin_copies"] == 1.0
    assert result["bottleneck"] == "receiver NIC"
    cost = result["cost"]
    assert cost["currency"] == "USD"
    parts = ("idle_gpus", "origin_requests", "origin_egress", "cross_zone")
    assert cost["total"] == sum(cost[part] for part in parts) > 0
    assert cost["idle_gpu_s"] == 8 * result["node_s"]


def test_people_get_lines_and_are_told_when_the_swarm_does_not_pay() -> None:
    done = swarm_sim("run", str(SCENARIOS / "does_not_pay.toml"))
    assert done.returncode == 0
    assert "GB = 10^9" in done.stdout
    assert "direct is as fast" in done.stdout


@pytest.mark.parametrize("is_json", [False, True])
def test_bad_input_is_a_usage_error_with_key_and_line(
    is_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (SCENARIOS / "does_not_pay.toml").read_text().replace("10Gbit/s", "10G")
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["run", str(path), *(["--json"] if is_json else [])])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert f"E_USAGE: {path}:8: nodes[0].nic: not a rate: '10G'" in said.err
    assert "bit or byte?" in said.err
    if is_json:
        assert json.loads(said.out)["error"]["class"] == "E_USAGE"
    else:
        assert said.out == ""


@pytest.mark.parametrize("words", [["run"], ["fly"], ["run", "x.toml", "--seed=-1"]])
def test_a_wrong_command_line_ends_with_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


def test_a_failing_run_prints_the_command_that_repeats_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An origin that starts to hang for good leaves everybody without the version."""
    path = SCENARIOS / "does_not_pay.toml"
    words = ["run", str(path), "--seed=5", "--set=origin.hung=100%", "--set=limit_bounds=20"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "2 nodes are not complete" in said
    expected = f"swarm-sim run {path} --seed=5 --set=origin.hung=100% --set=limit_bounds=20"
    assert expected in said
