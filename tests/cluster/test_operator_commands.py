"""What operators and serving engineers type, against a real tracker and a real agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from swarm.errors import EXIT_CODES
from tests.support.cluster import Cluster
from tests.support.command_line import SWARM, environment, error_class, failure, swarm
from tests.support.models import M1, write_model

pytestmark = pytest.mark.cluster


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = write_model(tmp_path / "model", M1)
    (directory / "modeling_x.py").write_text("x = 1\n")
    return directory


def test_a_name_is_given_once(cluster: Cluster, model: Path) -> None:
    first = cluster.publish(model)
    again = cluster.publish(model)
    assert again["version"] == first["version"]
    assert again["uploaded_bytes"] == 0
    (model / "config.json").write_text('{"other": 1}')
    arguments = ["publish", str(model), "--origin", cluster.origin, "--name", "model"]
    arguments += ["--tag", "v1", "--json", *cluster.tracker_flags]
    refused = swarm(*arguments, timeout_s=60, **cluster.origin_environment)
    assert error_class(refused) == "E_CONFLICT"
    assert failure(refused)["object"] == "model@v1"
    assert "nothing was uploaded" in str(failure(refused)["hint"])
    assert "uploading" not in refused.stderr
    shown = cluster.swarm("versions", "show", "model@v1")
    assert shown["version"] == first["version"]
    assert shown["contains_code"] is True
    assert shown["validated"] is True
    assert [v["version"] for v in listed(cluster)] == [first["version"]]


def listed(cluster: Cluster) -> list[dict[str, object]]:
    versions = cluster.swarm("versions", "list")["versions"]
    assert isinstance(versions, list)
    return versions


def test_all_names_and_channels_of_a_version_are_listed(cluster: Cluster, model: Path) -> None:
    """The same bytes under a second name, and under a first one after they had none."""
    first = cluster.publish(model)["version"]
    arguments = ["publish", str(model), "--origin", cluster.origin, "--name", "other/name"]
    arguments += ["--tag", "v7", *cluster.tracker_flags]
    done = swarm(*arguments, timeout_s=60, **cluster.origin_environment)
    assert done.returncode == 0, done.stderr
    for name in ("production", "canary"):
        cluster.swarm("channel", "set", name, str(first))
    (version,) = listed(cluster)
    assert version["names"] == ["model@v1", "other/name@v7"]
    assert version["channels"] == ["canary", "production"]
    for reference in ("model@v1", "other/name@v7", str(first)):
        assert cluster.swarm("versions", "show", reference)["names"] == version["names"]
    shown = swarm("versions", "list", *cluster.tracker_flags).stdout
    assert "model@v1, other/name@v7" in shown
    assert "canary, production" in shown


def test_the_chunk_size_of_a_name_is_kept(cluster: Cluster, model: Path) -> None:
    """So that equal chunks of two versions stay equal."""
    with (model / "big.bin").open("wb") as file:
        file.write(os.urandom(40 << 20))
    first = cluster.publish(model, "--chunk-size", "64KiB")
    (model / "config.json").write_text('{"next": 1}')
    second = cluster.publish(model, tag="v2")
    assert (first["chunk_bytes"], second["chunk_bytes"]) == (65536, 65536)
    uploaded = second["uploaded_bytes"]
    assert isinstance(uploaded, int)
    assert uploaded < 1 << 20


def test_a_channel_has_a_history(cluster: Cluster, model: Path) -> None:
    first = cluster.publish(model)["version"]
    (model / "config.json").write_text("{}")
    second = cluster.publish(model, tag="v2")["version"]
    assert cluster.swarm("channel", "set", "prod", "model@v1")["revision"] == 1
    moved = cluster.swarm("channel", "set", "prod", str(second), "--reason", "faster")
    assert moved == {"channel": "prod", "version": second, "revision": 2}
    stale = ["channel", "set", "prod", "model@v1", "--if-revision", "1", *cluster.tracker_flags]
    assert swarm(*stale).returncode == EXIT_CODES["E_CONFLICT"]
    history = cluster.swarm("channel", "history", "prod")["changes"]
    assert isinstance(history, list)
    assert [(c["revision"], c["version"]) for c in history] == [(2, second), (1, first)]
    assert history[0]["reason"] == "faster"
    assert "@" in history[0]["changed_by"]
    assert cluster.swarm("channel", "list")["channels"] == [moved]


def test_a_mode_needs_a_reason(cluster: Cluster, model: Path) -> None:
    cluster.publish(model)
    bare = swarm("control", "mode", "model@v1", "stop", *cluster.tracker_flags)
    assert error_class(bare) == "E_USAGE"
    change = cluster.swarm("control", "mode", "model@v1", "peers-only", "--reason", "S3 is down")
    assert (change["mode"], change["reason"]) == ("peers-only", "S3 is down")


def test_who_may_not_ask_is_told_so(cluster: Cluster, tmp_path: Path) -> None:
    tracker = ("--tracker", cluster.tracker_url)
    assert error_class(swarm("versions", "list", *tracker)) == "E_AUTH"
    other = str(tmp_path / "other.key")
    assert swarm("keys", "new", other).returncode == 0
    wrong = swarm("versions", "list", *tracker, "--cluster-key-file", other)
    assert error_class(wrong) == "E_AUTH"
    gone = swarm("channel", "history", "none", *cluster.tracker_flags, "--json")
    assert error_class(gone) == "E_NOTFOUND"


def test_a_serving_container_waits_for_its_agent(cluster: Cluster, model: Path) -> None:
    """From `wait` on a name, over `run` and `status`, to a goodbye with the right exit code."""
    version = str(cluster.publish(model, "--chunk-size", "64KiB")["version"])
    (agent,) = cluster.start_agents(1, "--version", "model@v1")
    place = ("--socket", str(agent.socket), *cluster.tracker_flags)
    waited = swarm("wait", "model@v1", "--timeout", "30", *place, timeout_s=40)
    assert waited.stdout.strip() == str(agent.directory(version)), waited.stderr
    command = ["run", "model@v1", *place, "--", "cat", "{dir}/modeling_x.py"]
    assert swarm(*command).stdout == "x = 1\n"
    status = json.loads(swarm("status", "--socket", str(agent.socket), "--json").stdout)
    assert status["versions"][0]["bytes_by_source"]["origin"] == status["versions"][0]["bytes"]
    assert "ready" in swarm("status", "--socket", str(agent.socket)).stdout
    assert agent.stop() == 143
    verified = swarm("verify", version[:12], "--cache", str(agent.cache), "--json")
    assert json.loads(verified.stdout)["ok"] is True


def test_a_pull_over_the_tracker_accounts_for_its_bytes(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    cluster.publish(model, "--chunk-size", "64KiB")
    cluster.start_agents(1, "--version", "model@v1")
    directory = tmp_path / "pulled"
    arguments = ["pull", "model@v1", str(directory), "--json", *cluster.tracker_flags]
    pulled = swarm(*arguments, timeout_s=60, **cluster.origin_environment)
    assert pulled.returncode == 0, pulled.stderr
    document = json.loads(pulled.stdout)
    assert document["ready"] is True
    assert sum(document["bytes_by_source"].values()) == document["bytes"]
    assert set(document["bytes_by_source"]) == {
        "origin", "peer_same_zone", "peer_other_zone", "local",
    }  # fmt: skip
    assert (directory / "modeling_x.py").read_text() == "x = 1\n"


def test_two_agents_do_not_share_a_cache(cluster: Cluster) -> None:
    (agent,) = cluster.start_agents(1)
    second = subprocess.run(
        [*SWARM, "agent", "--cache", str(agent.cache), *cluster.tracker_flags],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert error_class(second) == "E_LOCKED"
    assert agent.process is not None
    assert f"pid {agent.process.pid}" in second.stderr
    agent.process.send_signal(signal.SIGINT)
    assert agent.process.wait(10) == 130
    agent.process = None
