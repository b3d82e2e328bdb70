"""Scenario files: units are mandatory and checked, and what cannot work is refused with key and
line."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulations.faults import Crash, OriginSlow
from simulations.scenario import Scenario
from simulations.scenario_file import parse_scenario, read_scenario
from simulations.toml_table import Document
from swarm.errors import UsageError

SCENARIOS = Path(__file__).resolve().parents[2] / "simulations" / "scenarios"
PLAIN = """\
# A question?
[version]
size = "1GB"
chunks = 100

[[nodes]]
count = 4
nic = "10Gbit/s"

[origin]
rate = "10Gbit/s"
"""


def parse(text: str, *settings: str) -> Scenario:
    document = Document(text, "plan.toml")
    for setting in settings:
        document.change(setting)
    return parse_scenario(document).scenario


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.toml")), ids=lambda path: path.stem)
def test_each_shipped_scenario_asks_one_question_and_can_be_read(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith(("?", "against."))
    scenario = read_scenario(path).scenario
    assert scenario.slowest_bound_s > 0


@pytest.mark.parametrize(
    ("written", "bytes_per_s"),
    [
        ("10Gbit", 1.25e9), ("10Gbit/s", 1.25e9), ("10Gb/s", 1.25e9), ("1.25GB/s", 1.25e9),
        ("1.164GiB/s", 1.25e9),
    ],
)  # fmt: skip
def test_a_rate_is_what_its_unit_says(written: str, bytes_per_s: float) -> None:
    scenario = parse(PLAIN.replace('nic = "10Gbit/s"', f'nic = "{written}"'))
    assert scenario.groups[0].up_bytes_per_s == pytest.approx(bytes_per_s, rel=0.001)


@pytest.mark.parametrize("written", ['"10G"', '"10g"', '"0Gbit/s"', '"-1Gbit/s"', "1e9", "0", "-1"])
def test_a_rate_without_a_unit_or_above_nothing_is_refused(written: str) -> None:
    with pytest.raises(UsageError, match=r"^plan.toml:8: nodes\[0\].nic: "):
        parse(PLAIN.replace('nic = "10Gbit/s"', f"nic = {written}"))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('size = "1GB"', 'sizes = "1GB"', r"plan.toml:2: version.size: is missing"),
        ("chunks = 100", "chunks = 100\ncolour = 1", r"plan.toml:5: version.colour: unknown key"),
        ("chunks = 100", "chunks = 0", r"plan.toml:4: version.chunks: is 0, not between 1"),
        ("chunks = 100", 'chunks = "100"', r"plan.toml:4: version.chunks: is not a whole number"),
        ("chunks = 100", "", r"version.chunks: give either chunks or chunk_size"),
        ("count = 4", "count = true", r"plan.toml:7: nodes\[0\].count: is not a whole number"),
        ("count = 4", 'count = 4\nup = "1GB/s"', r"nodes\[0\].nic: give either nic, or up and"),
        ("count = 4", 'count = 4\nholds = "200%"', r"plan.toml:8: nodes\[0\].holds: not a perc"),
        ("count = 4", 'count = 4\nzones = "a"', r"nodes\[0\].zones: is not a list of names"),
        ("[origin]", "[links]\noversubscription = 4\n[origin]", r"oversubscription: needs rack_n"),
        ("[origin]", '[links]\nzone = "1GB/s"\n[origin]', r"links.zone: no group has zones"),
        ("[origin]", "[origins]", r"origin.rate: give either rate, or nics"),
        ("[[nodes]]", "[nodes]", r"nodes: is no list of tables"),
        ("[version]", "[version", r"plan.toml: not TOML: "),
        ("[version]", "has_origin = false\n[version]", r"has_origin: is false, but there is an"),
        ("[version]", 'mode = "quick"\n[version]', r"plan.toml:2: mode: 'quick' is not known"),
        ("[version]", 'mode = "peers-only"\n[version]', r"nodes: there are chunks that nobody"),
        ("[version]", "seed = -1\n[version]", r"plan.toml:2: seed: is -1, not between 0"),
    ],
)
def test_what_cannot_be_is_refused_with_key_and_line(before: str, after: str, message: str) -> None:
    assert before in PLAIN
    with pytest.raises(UsageError, match=message):
        parse(PLAIN.replace(before, after))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ('kind = "flood"\nat = "1s"', r"plan.toml:14: faults\[0\].kind: 'flood' is not known"),
        ('kind = "crash"\nat = 1', r"plan.toml:15: faults\[0\].at: 1 has no unit"),
        ('kind = "crash"\nat = "1s"', r"faults\[0\].share: give either share or count"),
        ('kind = "leave"\nat = "1s"\ncount = 1\ngroup = "x"', r"faults\[0\].group: 'x' is not"),
        ('kind = "partition"\nat = "1s"\nfor = "1s"\nzone = "x"', r"faults\[0\].zone: 'x' is not"),
        ('kind = "slow-nic"\nat = "1s"\nshare = "5%"', r"faults\[0\].factor: is missing"),
        ('kind = "origin-slow"\nat = "1s"\nfor = "1s"\ntotal = 0', r"total: is 0, not above zero"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(fault: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(f"{PLAIN}\n[[faults]]\n{fault}\n")


def test_nobody_can_fetch_what_nobody_holds() -> None:
    text = PLAIN.partition("[origin]")[0]
    with pytest.raises(UsageError, match="chunks that nobody holds, and no origin"):
        parse("has_origin = false\n" + text)
    seeded = text.replace("count = 4", 'count = 4\nholds = "100%"')
    with pytest.raises(UsageError, match="everybody holds everything"):
        parse("has_origin = false\n" + seeded)


def test_racks_zones_and_faults_arrive_as_written() -> None:
    text = PLAIN.replace("count = 4", 'count = 32\nrack_nodes = 16\nzones = ["a", "b"]')
    scenario = parse(
        f'{text}\n[links]\noversubscription = 4\nzone = "40Gbit/s"\n'
        '[[faults]]\nkind = "crash"\nat = "1s"\nfor = "60s"\nper_minute = "10%"\n'
        "is_replaced = true\n"
        '[[faults]]\nkind = "origin-slow"\nat = "2s"\nfor = "3s"\ntotal = 0.1\n'
    )
    assert scenario.links.rack_bytes_per_s == 16 * 1.25e9 / 4
    assert scenario.links.zone_bytes_per_s == 5e9
    crash, slow = scenario.faults
    assert crash == Crash(1.0, per_minute=0.1, for_s=60.0, is_replaced=True)
    assert slow == OriginSlow(2.0, 3.0, total_factor=0.1)


def test_settings_of_the_command_line_win_and_are_named_in_errors() -> None:
    scenario = parse(PLAIN, "nodes.0.count=7", "origin.rate=40Gbit/s", "links.rtt=3ms")
    assert scenario.groups[0].count == 7
    assert scenario.origin is not None
    assert scenario.origin.bytes_per_s == 5e9
    assert scenario.links.rtt_s == 0.003
    with pytest.raises(UsageError, match=r"^--set nodes\[0\].nic: 10 has no unit"):
        parse(PLAIN, "nodes.0.nic=10")
    with pytest.raises(UsageError, match="there is no '3'"):
        parse(PLAIN, "nodes.3.count=1")
    with pytest.raises(UsageError, match="not KEY=VALUE"):
        parse(PLAIN, "seed")


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_scenario(tmp_path / "none.toml")
