"""Plots: files that can be looked at, with named axes and units, and the same bytes every time."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from simulations.cluster import Cluster
from simulations.main import main
from simulations.series import SAMPLES_MAX, Recorder
from tests.support.small_swarm import small_group, small_swarm

SCENARIOS = Path(__file__).resolve().parents[2] / "simulations" / "scenarios"
SMALL = str(SCENARIOS / "does_not_pay.toml")
ZONES = str(SCENARIOS / "three_zones.toml")


def draw(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0


def texts(path: Path) -> set[str]:
    """All text of an SVG; raises if it is none."""
    root = ElementTree.parse(path).getroot()
    return {(one.text or "").strip() for one in root.iter("{http://www.w3.org/2000/svg}text")}


def test_a_runs_plot_has_named_axes_and_is_the_same_every_time(tmp_path: Path) -> None:
    paths = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for path in paths:
        draw("run", ZONES, "--set=nodes.0.count=6", "--set=version.chunks=20", f"--plot={path}")
    assert paths[0].read_bytes() == paths[1].read_bytes()
    said = texts(paths[0])
    assert {
        "time since the first start [s]", "share of the nodes [%]", "node's time / T* [1]",
        "bytes sent so far [copies]", "of what is possible [%]", "bound T*", "Utilisation",
        "three_zones: 6 nodes, 140 GB", "Origin egress (one copy is 140 GB)",
    } <= said  # fmt: skip


def test_a_sweeps_plot_shows_what_is_varied(tmp_path: Path) -> None:
    path = tmp_path / "sweep.svg"
    few = "--set=version.chunks=20"
    nodes, nics = "--vary=nodes.0.count=1,2,40", "--vary=nodes.0.nic=10Gbit/s,25Gbit/s"
    draw("sweep", SMALL, few, nodes, nics, f"--plot={path}", "--workers=2")
    said = texts(path)
    assert {
        "does_not_pay: nodes.0.count", "nodes.0.nic=10Gbit/s", "nodes.0.nic=25Gbit/s",
        "each node reads the origin", "seconds since its start [s]", "10", "20",
    } <= said  # fmt: skip
    draw("sweep", SMALL, few, "--vary=nodes.0.nic=10Gbit/s,25Gbit/s", f"--plot={path}")
    assert "nodes.0.nic [Gbit/s]" in texts(path)
    draw("sweep", SMALL, few, "--vary=nodes.0.nic=10Gbit/s,3GB/s", f"--plot={path}")
    assert {"10Gbit/s", "3GB/s"} <= texts(path)


def test_a_png_is_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "run.png"
    draw("run", SMALL, "--set=version.chunks=20", f"--plot={path}")
    assert path.read_bytes().startswith(b"\x89PNG\r\n")


def test_a_plot_that_cannot_be_written_is_told_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", SMALL, f"--plot={tmp_path}/none/x.svg"])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"cannot write into {tmp_path}/none" in said.err


def test_taking_samples_changes_nothing_and_counts_every_byte() -> None:
    scenario = small_swarm(small_group(6), chunk_count=40)
    plain = Cluster(scenario, 3).run()
    cluster = Cluster(scenario, 3)
    recorder = Recorder(cluster)
    assert cluster.run() == plain
    series = recorder.finish()
    last = series.samples[-1]
    total = scenario.version.total_bytes
    assert last.origin_bytes == pytest.approx(plain.origin_copies * total, rel=1e-6)
    assert last.down_bytes == pytest.approx(last.origin_bytes + last.up_bytes, rel=1e-6)
    assert last.down_bytes == pytest.approx((6 + plain.wasted_copies) * total, rel=0.001)
    assert last.up_bytes <= last.up_possible_bytes
    assert last.origin_bytes <= last.origin_possible_bytes
    assert series.done_at_s == plain.seconds
    assert series.started_at_s == (0.0,) * 6


def test_a_long_run_keeps_some_hundred_samples() -> None:
    """Ten nodes that come one after the other, over thirty times the bound."""
    groups = [small_group(1, starts_at_s=place * 5.0, name=f"node-{place}") for place in range(10)]
    cluster = Cluster(small_swarm(*groups, chunk_count=40), 1)
    recorder = Recorder(cluster)
    cluster.run()
    series = recorder.finish()
    assert SAMPLES_MAX / 3 < len(series.samples) <= SAMPLES_MAX + 1
    times = [sample.at_s for sample in series.samples]
    assert times == sorted(times)
    assert times[-1] == series.done_at_s[-1]
