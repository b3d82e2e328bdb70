"""Two machines' measurements on one: real agents on loopback, a real S3 server, one profile."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from swarm.capacity.profile import Profile, measurements, parse_profile
from swarm.cli.demo_processes import free_ports
from tests.support.command_line import SWARM, environment, swarm
from tests.support.seaweed import SeaweedServer

pytestmark = pytest.mark.cluster

SIZE = "16MiB"
START_TIMEOUT_S = 30.0


@contextmanager
def serving(directory: Path, key: Path) -> Iterator[str]:
    """`swarm bench fleet --serve`, from its line to its end; yields HOST:PORT."""
    place = f"127.0.0.1:{free_ports(1)[0]}"
    command = [*SWARM, "bench", "fleet", "--serve", "--listen", place, "--size", SIZE]
    command += ["--cache", str(directory), "--cluster-key-file", str(key), "--for", "60s"]
    log = directory.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment(), stderr=output)
    try:
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while "serving" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < give_up_at, log.read_text()
            time.sleep(0.05)
        yield place
        process.terminate()
        assert process.wait(10) == 143
        assert not list(directory.iterdir()), "the server leaves nothing"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.key"
    assert swarm("keys", "new", str(path)).returncode == 0
    return path


def bench(*words: str, cache: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    flags = ("--size", SIZE, "--limit", "5s", "--cache", str(cache), "--json")
    output = ("--output", str(cache / "profile.json"))
    return swarm("bench", "fleet", *flags, *output, *words, timeout_s=90, **variables)


def read(done: subprocess.CompletedProcess[str], cache: Path) -> Profile:
    assert done.returncode == 0, done.stderr
    path = cache / "profile.json"
    profile = parse_profile(path.read_text(), str(path))
    assert json.loads(done.stdout)["file"] == str(path)
    assert [entry.name for entry in cache.iterdir()] == ["profile.json"], "nothing else is left"
    return profile


def test_a_profile_of_two_machines(
    tmp_path: Path, key: Path, seaweed: SeaweedServer, bucket: str
) -> None:
    """Everything but what needs a card, or a second server, is measured."""
    cache = tmp_path / "measuring"
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights.bin").write_bytes(bytes(8 << 20))
    origin = f"s3://{bucket}/models"
    words = ("publish", str(model), "--origin", origin)
    published = swarm(*words, timeout_s=30, **seaweed.environment())
    assert published.returncode == 0, published.stderr
    with serving(tmp_path / "serving", key) as place:
        done = bench(
            "--peer", place, "--cluster-key-file", str(key), "--origin", origin,
            cache=cache, **seaweed.environment(),
        )  # fmt: skip
    profile = read(done, cache)
    found = measurements(profile)
    assert {
        "network.receive_bytes_per_s",
        "network.flow_bytes_per_s",
        "network.rtt_s",
        "agent.handshake_s",
        "agent.chunk_gap_s",
        "agent.verify_s",
        "agent.process_start_s",
        "disk.write_bytes_per_s",
        "disk.read_bytes_per_s",
        "hashing.bytes_per_s",
        "origin.connection_bytes_per_s",
        "origin.total_bytes_per_s",
        "origin.first_byte_s_median",
    } <= set(found)
    assert found["network.receive_bytes_per_s"] > 10e6
    assert found["agent.handshake_s"] < 1.0
    assert profile.machine.cpu_count > 0
    assert any("header_share" in note for note in profile.notes)


def test_a_machine_alone_is_measured_too(tmp_path: Path) -> None:
    cache = tmp_path / "measuring"
    profile = read(bench(cache=cache), cache)
    assert {name.partition(".")[0] for name in measurements(profile)} == {
        "agent", "disk", "hashing",
    }  # fmt: skip


def test_without_the_key_nothing_is_fetched(tmp_path: Path, key: Path) -> None:
    """Which ends in bounded time, with a word about what to do."""
    with serving(tmp_path / "serving", key) as place:
        done = bench("--peer", place, "--limit", "1s", cache=tmp_path / "measuring")
    assert done.returncode == 60, done.stderr
    told = json.loads(done.stdout)["error"]
    assert told["class"] == "E_STALLED"
    assert "same --size and key" in told["hint"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--peer", "127.0.0.1:9"), 32, "nobody answers at 127.0.0.1:9"),
        (("--serve", "--peer", "127.0.0.1:9"), 2, "two machines"),
        (("--size", "1MiB"), 2, "is not between"),
        (("--limit", "0s"), 2, "above zero"),
        (("--object", "no-such-object", "--origin", "file:///usr"), 32, "no-such-object"),
    ],
)
def test_a_bad_call_says_so(tmp_path: Path, words: tuple[str, ...], code: int, said: str) -> None:
    done = bench(*words, cache=tmp_path / "measuring")
    assert done.returncode == code, done.stderr
    assert said in done.stderr


def test_a_trace_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    done = swarm(
        "pull", "0" * 64, str(tmp_path / "model"), "--origin", f"file://{tmp_path}",
        "--trace", str(tmp_path / "nowhere" / "trace.jsonl"),
    )  # fmt: skip
    assert done.returncode == 2
    assert "cannot write the trace" in done.stderr
