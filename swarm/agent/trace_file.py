"""``--trace FILE``: the agent's first cold start, written while it happens.

Lines are made in the loop, where the facts are, and written by a thread of their own about once a
second, so a slow disk costs a late line and no chunk. The recorder bounds how many there can be. A
disk that fails ends the trace, with a warning, and not the agent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import trio

from swarm.agent.agent import Agent
from swarm.agent.settings import AgentSettings
from swarm.capacity.cold_start import ColdStartRecorder, TraceSettings
from swarm.errors import UsageError
from swarm.policy.commands import Command
from swarm.policy.events import Event, TransferId

logger = logging.getLogger(__name__)

WRITE_INTERVAL_S = 1.0
"""What a crash may cost of the trace."""
CLOSE_TIMEOUT_S = 5.0
"""A disk that hangs must not keep the agent from its end."""


@contextmanager
def tracing(agent: Agent) -> Iterator[None]:
    """Record what `agent` does while the body runs, if it was told to. Raises UsageError if the
    file cannot be opened."""
    path = agent.settings.trace
    if path is None:
        yield
        return
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write the trace {path}: {error.strerror}",
            object_name=str(path),
            hint="name a file in a directory that exists",
        ) from error
    writer = _TraceWriter(agent, file)
    try:
        yield
    finally:
        writer.close()


class _TraceWriter:
    """Attached to one agent; see `tracing`."""

    def __init__(self, agent: Agent, file: IO[str]) -> None:
        self._file = file
        self._recorder = ColdStartRecorder(
            agent.identity.node_id.hex(), trace_settings(agent.settings)
        )
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._write_forever, name="trace", daemon=True)
        self._thread.start()
        agent.decider.watch = self._turn
        agent.network.watcher = self
        if agent.fetches is not None:
            agent.fetches.watcher = self

    def _turn(self, events: tuple[Event, ...], commands: list[Command], now: float) -> None:
        self._recorder.watch(events, commands, now, time.time())

    def begun(self, transfer: TransferId) -> None:
        self._recorder.begun(transfer, trio.current_time())

    def received(self, transfer: TransferId) -> None:
        self._recorder.received(transfer, trio.current_time())

    def close(self) -> None:
        """The rest, and the end."""
        self._recorder.close()
        self._is_over.set()
        self._thread.join(CLOSE_TIMEOUT_S)

    def _write_forever(self) -> None:
        """The thread. Appending to a deque and taking from it are whole steps each."""
        lines = self._recorder.lines
        try:
            with self._file as file:
                while True:
                    is_last = self._is_over.wait(WRITE_INTERVAL_S)
                    while lines:
                        file.write(lines.popleft() + "\n")
                    file.flush()
                    if is_last:
                        return
        except OSError as error:
            logger.warning("the trace %s ends here: %s", self._file.name, error)


def trace_settings(settings: AgentSettings) -> TraceSettings:
    """What the agent was told, as a trace says it."""
    return TraceSettings(
        zone=settings.zone,
        rack=settings.rack,
        nic_bytes_per_s=settings.nic_bytes_per_s,
        flow_cap_bytes_per_s=settings.flow_cap_bytes_per_s,
        uplink_bytes_per_s=settings.uplink_bytes_per_s,
        downlink_bytes_per_s=settings.downlink_bytes_per_s,
        has_tracker=bool(settings.trackers),
        has_origin=bool(settings.origin),
    )
