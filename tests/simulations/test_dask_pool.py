"""A sweep on a real Dask cluster: a scheduler and two workers, processes of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from simulations.cells import Cell, Landed, gather
from simulations.dask_pool import Deadlines, dask_pool
from simulations.main import main
from simulations.prices import Prices
from swarm.errors import UsageError
from tests.support.small_swarm import small_group, small_swarm

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = REPOSITORY / "simulations" / "scenarios" / "does_not_pay.toml"
WORDS = ("sweep", str(SMALL), "--set=version.chunks=20", "--vary=nodes.0.count=1,2", "--json")
START_S = 60.0
"""Interpreters that load Dask, on a machine that does other things too."""


class DaskCluster:
    """A scheduler and its workers: processes that end with the stack that they were started on."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        told = folder / "scheduler.json"
        self.scheduler = self._start(
            "scheduler", "--port", "0", "--scheduler-file", str(told), "--no-dashboard"
        )
        self.address = _address(told)

    def add_worker(self) -> None:
        self._start(
            "worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard",
            "--local-directory", str(self._folder),
        )  # fmt: skip

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *words, "--host", "127.0.0.1"],
            cwd=REPOSITORY,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._stack.callback(process.wait, 20)
        self._stack.callback(process.kill)
        return process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DaskCluster]:
    with ExitStack() as stack:
        yield DaskCluster(stack, tmp_path)


def sweep(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    """Exit code and stdout."""
    with pytest.raises(SystemExit) as ended:
        main([*WORDS, *words])
    return ended.value.code, capsys.readouterr().out


def _address(told: Path) -> str:
    """What the scheduler writes when it listens."""
    until = time.monotonic() + START_S
    while True:
        try:
            return str(json.loads(told.read_text())["address"])
        except (OSError, ValueError):
            assert time.monotonic() < until, "the scheduler does not come up"
            time.sleep(0.05)


def test_two_workers_say_what_this_machine_says(
    cluster: DaskCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        cluster.add_worker()
    words = ("--seeds=3", "--vary=origin.hung=0%,100%", "--set=limit_bounds=5")
    code, there = sweep(*words, f"--scheduler={cluster.address}", capsys=capsys)
    assert code == 1
    here_code, here = sweep(*words, capsys=capsys)
    assert here_code == 1
    told = []
    for said in (there, here):
        result = json.loads(said)
        del result["wall_s"]
        told.append(json.dumps(result))
    assert told[0] == told[1]
    assert len(json.loads(told[0])["failed"]) == 6


def cells() -> list[Cell]:
    scenario = small_swarm(small_group(2), chunk_count=20)
    return [Cell(scenario, seed, Prices(), "") for seed in (1, 2)]


def test_a_scheduler_that_is_not_there_is_a_usage_error() -> None:
    pool = dask_pool("tcp://127.0.0.1:9", Deadlines(connect_s=1.0))
    with pytest.raises(UsageError, match="no Dask scheduler answers within 1 s") as refused:
        gather(cells(), pool)
    assert "dask scheduler" in refused.value.hint


def test_a_cluster_without_workers_is_given_up_and_a_scheduler_that_is_lost_loses_its_cells(
    cluster: DaskCluster,
) -> None:
    """It dies when the cells are with it and no worker has taken one."""
    pool = dask_pool(cluster.address, Deadlines(worker_s=1.0))
    with pytest.raises(UsageError, match="has no worker after 1 s") as refused:
        gather(cells(), pool)
    assert "dask worker" in refused.value.hint

    @contextmanager
    def lost(wanted: Sequence[Cell]) -> Iterator[Iterator[Landed | None]]:
        with dask_pool(cluster.address)(wanted) as landing:
            cluster.scheduler.kill()
            yield landing

    gathered = gather(cells(), lost)
    assert [result and result.error for result in gathered.results] == [
        "lost with its Dask scheduler"
    ] * 2


@pytest.mark.parametrize(
    ("module", "option", "remedy"),
    [
        ("distributed", "--scheduler=tcp://127.0.0.1:9", "pip install 'weightswarm[dask]'"),
        ("matplotlib", "--plot=x.png", "pip install 'weightswarm[plot]'"),
    ],
)
def test_an_extra_that_is_not_installed_is_named_with_its_remedy(
    module: str, option: str, remedy: str, tmp_path: Path
) -> None:
    program = (
        f"import sys; sys.modules[{module!r}] = None\n"
        f"from simulations.main import main; main({[*WORDS, option]!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "E_USAGE" in done.stderr
    assert remedy in json.loads(done.stdout)["error"]["hint"]
