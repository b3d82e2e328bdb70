"""Numbers that the simulator repeats because it may not import the shells that own them."""

from __future__ import annotations

import pytest

from simulations import cluster, node_driver, tracker_driver, transfers
from swarm.agent import agent, control_reader, network_settings, pacing, settings, tracker_session
from tracker import service


@pytest.mark.parametrize(
    ("simulated", "real"),
    [
        (node_driver.SAMPLE_S, agent.SAMPLE_INTERVAL_S),
        (node_driver.CONTROL_REST_S, control_reader.REST_S),
        (transfers.NO_PROGRESS_S, network_settings.NO_PROGRESS_S),
        (transfers.SMALL_CHUNK_BYTES, pacing.SMALL_CHUNK_BYTES),
        (transfers.PRESEND_BYTES_MIN, pacing.PRESEND_BYTES_MIN),
        (cluster.LEAVE_GRACE_S, settings.LEAVE_GRACE_S),
        (tracker_driver.LOST_AFTER_S, tracker_session.LOST_AFTER_S),
        (tracker_driver.TICK_S_MIN, service._TICK_S_MIN),
    ],
)
def test_a_simulated_agent_waits_as_long_as_a_real_one(simulated: float, real: float) -> None:
    assert simulated == real
