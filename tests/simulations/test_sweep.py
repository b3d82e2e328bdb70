"""A sweep: its grid, that it does not matter where cells run, and that a failure stays alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from simulations.cells import Cell, CellResult, Gathered, Landed, gather, run_cell
from simulations.local_pool import local_pool
from simulations.main import main
from simulations.prices import Prices
from simulations.sweep import Axis, failures, lay_out, parse_axis, point_results
from swarm.errors import UsageError
from tests.support.small_swarm import small_group, small_swarm

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = REPOSITORY / "simulations" / "scenarios" / "does_not_pay.toml"
FEW_CHUNKS = "--set=version.chunks=20"


def sweep(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    with pytest.raises(SystemExit) as ended:
        main(["sweep", str(SMALL), FEW_CHUNKS, *words])
    assert isinstance(ended.value.code, int)
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def cell(seed: int = 1, chunk_count: int = 20) -> Cell:
    scenario = small_swarm(small_group(3), chunk_count=chunk_count)
    return Cell(scenario, seed, Prices(), f"repeat {seed}")


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("nodes.0.count=1,2,3", ("1", "2", "3")),
        ("origin.rate=10Gbit/s, 40Gbit/s", ("10Gbit/s", "40Gbit/s")),
        ('origin.first_byte=["3ms", "9ms"],["1ms"]', ('["3ms", "9ms"]', '["1ms"]')),
        ("seed=7", ("7",)),
    ],
)  # fmt: skip
def test_values_are_parted_at_commas_outside_brackets(
    written: str, values: tuple[str, ...]
) -> None:
    assert parse_axis(written) == Axis(written.partition("=")[0], values)


@pytest.mark.parametrize("written", ["nodes.0.count", "=1,2", "nodes.0.count=", "seed=1,2,1"])
def test_what_is_no_axis_is_refused(written: str) -> None:
    with pytest.raises(UsageError, match=r"not KEY=A,B,C|twice"):
        parse_axis(written)


def test_a_grid_has_every_combination_in_the_order_of_the_command_line() -> None:
    axes = (Axis("nodes.0.count", ("1", "2")), Axis("origin.rate", ("1GB/s", "2GB/s", "3GB/s")))
    grid = lay_out(SMALL, ("version.chunks=20",), axes, 2)
    assert grid.points == (
        ("1", "1GB/s"), ("1", "2GB/s"), ("1", "3GB/s"),
        ("2", "1GB/s"), ("2", "2GB/s"), ("2", "3GB/s"),
    )  # fmt: skip
    assert [cell.seed for cell in grid.cells] == [1, 2] * 6
    origin = grid.cells[0].scenario.origin
    assert origin is not None
    assert grid.cells[5].scenario.origin == replace(origin, bytes_per_s=3e9)
    assert grid.cells[-1].command.endswith(
        "--seed=2 --set=version.chunks=20 --set=nodes.0.count=2 --set=origin.rate=3GB/s"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--vary=nodes.0.cuont=1,2"], "--vary nodes[0].cuont: unknown key — did you mean count?"),
        (["--vary=orgin.rate=1GB/s"], "--vary orgin: unknown key — did you mean origin?"),
        (["--vary=nodes.count=1,2"], "nodes is no table — lists count from 0: nodes.0.count"),
        (["--vary=nodes.0.nic=10Gbit/s,25G"], "--vary nodes[0].nic: not a rate: '25G'"),
        (["--vary=nodes.0.count=1", "--vary=nodes.0.count=2"], "a key is there twice"),
        (["--vary=nodes.0.count=1", "--seeds=0"], "0 is not in the range"),
        (["--vary=nodes.0.count=1,2", "--plot=x.pdf"], "ends with .pdf — a plot is .png or .svg"),
        (["--vary=nodes.0.count=1,2", "--plot=/nowhere/x.png"], "cannot write into /nowhere"),
        (["--vary=nodes.0.count=1,2", "--scheduler=here"], "no address of a scheduler"),
        ([], "Missing option '--vary'"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = sweep(*words, capsys=capsys)
    assert code == 2
    assert out == ""
    assert message in err.replace("\n", " ")


def test_more_runs_than_anybody_means_are_refused() -> None:
    axis = Axis("nodes.0.count", tuple(str(count) for count in range(1, 1001)))
    with pytest.raises(UsageError, match="11000 runs; 10000 at most"):
        lay_out(SMALL, (), (axis,), 11)


def test_the_number_of_workers_changes_no_byte(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for workers in ("1", "3"):
        words = ("--vary=nodes.0.count=4,1,2", "--seeds=2", f"--workers={workers}", "--json")
        code, out, _ = sweep(*words, capsys=capsys)
        assert code == 0
        result = json.loads(out)
        assert result.pop("wall_s") > 0
        told.append(json.dumps(result))
    assert told[0] == told[1]
    points = json.loads(told[0])["points"]
    assert [point["settings"] for point in points] == [
        {"nodes.0.count": count} for count in ("4", "1", "2")
    ]
    first = points[0]
    assert [run["seed"] for run in first["runs"]] == [1, 2]
    ratios = [run["last_ratio"] for run in first["runs"]]
    assert first["last_ratio"] == {
        "mean": sum(ratios) / 2, "min": min(ratios), "max": max(ratios),
    }  # fmt: skip
    assert first["cost"]["mean"] == pytest.approx(
        sum(run["cost"]["total"] for run in first["runs"]) / 2
    )


def test_one_failed_cell_does_not_lose_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--vary=origin.hung=0%,100%", "--set=limit_bounds=5")
    code, out, err = sweep(*words, capsys=capsys)
    assert code == 1
    rows = out.splitlines()
    assert len(rows) == 3
    assert rows[1].split()[0] == "0%"
    assert rows[2].split()[:2] == ["100%", "-"]
    assert "failed: origin.hung=100%, seed 1: 2 nodes are not complete" in err
    expected = f"swarm-sim run {SMALL} --seed=1 {FEW_CHUNKS} --set=limit_bounds=5"
    assert f"repeat with: {expected} --set=origin.hung=100%" in err


def test_a_process_that_dies_is_a_failure_of_its_cell_alone() -> None:
    """Killed as the kernel kills who has too much memory."""
    pool = local_pool(1)
    results: dict[int, CellResult] = {}
    cells = [cell(1), cell(2, chunk_count=4000)]
    with pool(cells) as landing:
        for landed in landing:
            if landed is not None:
                results[landed[0]] = landed[1]
            elif not results:
                (victim,) = _cells_of(os.getpid())
                os.kill(victim, signal.SIGKILL)
    assert results[1].error == "its process was killed by SIGKILL (out of memory?)"
    assert results[0] == run_cell(cells[0])


def _cells_of(command: int) -> list[int]:
    """Processes whose parent is a child of the command: its server forks them."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    servers = {pid for pid, parent in parents.items() if parent == command}
    return [pid for pid, parent in parents.items() if parent in servers]


def test_an_interrupt_leaves_what_is_done() -> None:
    """Ctrl-C as soon as the first of five cells has landed."""
    cells = [cell(seed) for seed in range(1, 6)]

    @contextmanager
    def interrupted(wanted: Sequence[Cell]) -> Iterator[Iterator[Landed | None]]:
        with local_pool(1)(wanted) as landing:
            yield _then_interrupt(landing)

    gathered = gather(cells, interrupted)
    assert gathered.interrupted_code == 130
    assert gathered.results == (run_cell(cells[0]), None, None, None, None)


def _then_interrupt(landing: Iterator[Landed | None]) -> Iterator[Landed | None]:
    for landed in landing:
        yield landed
        if landed is not None:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_sweep_prints_what_is_done(number: signal.Signals, code: int) -> None:
    """Ctrl-C goes to the whole group, as a terminal sends it; SIGTERM to the command alone."""
    words = ["--vary=version.chunks=20,20000", "--set=nodes.0.count=6", "--workers=1", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "simulations", "sweep", str(SMALL), *words],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    first = process.stderr.readline()
    assert first == "2 runs on 1 processes\n"
    until = time.monotonic() + 20
    while not _cells_of(process.pid):
        assert time.monotonic() < until
        time.sleep(0.01)
    # The cell is under way, for ten seconds and more.
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=0.2)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == code, err
    told = json.loads(out)
    assert told["is_interrupted"]
    assert [len(point["runs"]) for point in told["points"]] == [0, 0]
    assert "interrupted: 0 of 2 runs are done" in err
    assert "Traceback" not in err
    # The server of the children notices that we are gone, and goes.
    until = time.monotonic() + 10
    while _is_anybody_left(process.pid):
        assert time.monotonic() < until
        time.sleep(0.01)


def _is_anybody_left(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_results_of_other_code_are_refused() -> None:
    """A worker with another version would put its numbers beside ours."""
    good = run_cell(cell())
    results: list[Landed | None] = [(0, replace(good, code="other")), (1, good)]

    @contextmanager
    def elsewhere(wanted: Sequence[Cell]) -> Iterator[Iterator[Landed | None]]:
        assert len(wanted) == 2
        yield iter(results)

    gathered = gather([cell(), cell()], elsewhere)
    assert gathered.results[0] is not None
    assert "another version of the code" in gathered.results[0].error
    assert gathered.results[1] == good


def test_a_point_without_a_finished_run_has_no_numbers() -> None:
    axes = (Axis("nodes.0.count", ("1", "2")),)
    grid = lay_out(SMALL, ("version.chunks=20",), axes, 1)
    results = (CellResult({}, "broke"), run_cell(grid.cells[1]))
    points = point_results(grid, Gathered(results))
    assert points[0].spreads == {}
    assert points[1].spreads["origin_copies"].mean == 1.0
    (failure,) = failures(grid, results)
    assert failure.settings == {"nodes.0.count": "1"}
    assert failure.error == "broke"
