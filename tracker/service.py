"""The tracker at work: its decisions, its store, its clock, and those who wait for news.

One task at a time touches `Tracker`: nothing awaits between its calls and the waking of listeners.
A change that must last is planned, written in a worker thread, then applied and told, one at a
time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import trio

from swarm.errors import ManifestError, UsageError
from swarm.protocol.ids import Identity, NodeId, VersionId
from swarm.protocol.manifest import Manifest, decode_manifest
from swarm.protocol.operator_api import ModeChange, SetChannel, SetMode
from swarm.protocol.tracker_api import (
    LISTEN_HOLD_S,
    ChannelChange,
    ChannelTarget,
    Listen,
    ListenReply,
    PublishRecord,
    Report,
    ReportReply,
)
from tracker.policy.catalog import CHANNEL_PREFIX, Catalog
from tracker.policy.channels import ChannelBook
from tracker.policy.settings import TrackerSettings
from tracker.policy.tracker import Tracker
from tracker.store.sqlite import HardState, SqliteStore

_TICK_S_MAX = 0.25
"""Longest sleep between two ticks: what a report makes due earlier than the deadline waits no
longer."""
_TICK_S_MIN = 0.02
"""Shortest: something that is due and cannot be done must not spin."""
HISTORY_MAX = 1000
"""Changes of a channel shown at once."""

_Result = TypeVar("_Result")


@dataclass(eq=False, slots=True)
class _Waiter:
    """One held listen."""

    news: trio.Event = field(default_factory=trio.Event)
    # A newer listen of the same node took its place.
    is_replaced: bool = False


class TrackerService:
    """Answers every call; `run` keeps time."""

    def __init__(
        self, store: SqliteStore, state: HardState, settings: TrackerSettings, rng: random.Random
    ) -> None:
        catalog, channels = Catalog(), ChannelBook()
        catalog.load(state.records, state.names)
        channels.load(state.channels)
        self._modes = {change.version: change for change in state.modes}
        self.tracker = Tracker(
            settings,
            epoch=state.epoch,
            rng=rng,
            catalog=catalog,
            channels=channels,
            modes={change.version: change.mode for change in state.modes},
            started_at=trio.current_time(),
        )
        self._store = store
        # One connection, one thread at a time; writes queue here in the order they came.
        self._limiter = trio.CapacityLimiter(1)
        self._changing = trio.Lock()
        self._waiters: dict[NodeId, _Waiter] = {}
        self._is_stopping = False

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            now = trio.current_time()
            deadline = self.tracker.next_deadline()
            wait_s = _TICK_S_MAX if deadline is None else min(deadline - now, _TICK_S_MAX)
            await trio.sleep(max(wait_s, _TICK_S_MIN))
            self.tracker.tick(now=trio.current_time())
            self._wake()

    def stop(self) -> None:
        """Answer every held listen now: the process is about to end."""
        self._is_stopping = True
        for waiter in self._waiters.values():
            waiter.news.set()

    @property
    def waiting_count(self) -> int:
        return len(self._waiters)

    # Agents.

    def report(self, identity: Identity, report: Report) -> ReportReply:
        reply = self.tracker.report(identity, report, now=trio.current_time())
        self._wake()
        return reply

    async def listen(self, identity: Identity, listen: Listen) -> ListenReply:
        """Held until there is news; a newer listen of the node ends this one with nothing. One
        that ends because its connection closed shows that nobody listens there."""
        reply = self._look(identity, listen)
        self._end_older(identity.node_id)
        if reply is not None:
            return reply
        waiter = self._waiters[identity.node_id] = _Waiter()
        try:
            with trio.move_on_after(LISTEN_HOLD_S):
                while reply is None and not (self._is_stopping or waiter.is_replaced):
                    await waiter.news.wait()
                    waiter.news = trio.Event()
                    if not waiter.is_replaced:
                        reply = self._look(identity, listen)
        except trio.Cancelled:
            if not waiter.is_replaced:
                self.tracker.stopped_listening(identity)
            raise
        finally:
            if not waiter.is_replaced:
                del self._waiters[identity.node_id]
        return reply or self.tracker.nothing_new(listen)

    def _end_older(self, node_id: NodeId) -> None:
        waiter = self._waiters.pop(node_id, None)
        if waiter is not None:
            waiter.is_replaced = True
            waiter.news.set()

    def _look(self, identity: Identity, listen: Listen) -> ListenReply | None:
        reply = self.tracker.listen(identity, listen, now=trio.current_time())
        self._wake()
        return reply

    def _wake(self) -> None:
        for node_id in self.tracker.take_changed():
            waiter = self._waiters.get(node_id)
            if waiter is not None:
                waiter.news.set()

    # Operators: each change is on the disk before anybody hears of it.

    def resolve(self, reference: str) -> PublishRecord:
        """The version that any reference names; raises NotFoundError, UsageError."""
        if reference.startswith(CHANNEL_PREFIX):
            target = self.tracker.channels.existing(reference.removeprefix(CHANNEL_PREFIX))
            if target.version is None:
                raise UsageError(f"{reference} is unset", object_name=reference)
            reference = target.version.hex()
        return self.tracker.catalog.resolve(reference)

    async def register(self, record: PublishRecord, manifest: bytes) -> PublishRecord:
        """Take in a version; raises ManifestError, UsageError, ConflictError, TrackerError."""
        checked = await trio.to_thread.run_sync(decode_manifest, manifest, record.version)
        _check_record(record, checked)
        async with self._changing:
            if self.tracker.catalog.check(record):
                await self._in_store(
                    partial(self._store.register, record, manifest, now=time.time())
                )
                self.tracker.catalog.add(record)
                self.tracker.version_registered(record.version, now=trio.current_time())
                self._wake()
        return self.resolve(record.version.hex())

    async def manifest(self, version: VersionId) -> bytes:
        return await self._in_store(partial(self._store.manifest, version))

    async def set_channel(self, name: str, change: SetChannel) -> ChannelTarget:
        """Point a channel at a version, or at none; the channel as it is then."""
        async with self._changing:
            version = None if change.version is None else self.resolve(change.version).version
            planned = self.tracker.channels.plan(
                name,
                version,
                reason=change.reason,
                changed_by=change.changed_by,
                changed_at=time.time(),
                expected_revision=change.expected_revision,
            )
            if planned is not None:
                await self._in_store(partial(self._store.record_channel, planned))
                self.tracker.change_channel(planned)
                self._wake()
        return self.tracker.channels.target(name)

    async def channel_history(self, name: str) -> tuple[ChannelChange, ...]:
        self.tracker.channels.existing(name)
        return await self._in_store(partial(self._store.channel_history, name, limit=HISTORY_MAX))

    async def set_mode(self, version: VersionId, change: SetMode) -> ModeChange:
        """Say where a version's chunks may come from."""
        planned = ModeChange(version, change.mode, change.reason, time.time(), change.changed_by)
        async with self._changing:
            await self._in_store(partial(self._store.record_mode, planned))
            self._modes[version] = planned
            self.tracker.set_mode(version, change.mode, now=trio.current_time())
            self._wake()
        return planned

    def modes(self) -> tuple[ModeChange, ...]:
        """The last mode set for each version, newest first."""
        return tuple(
            sorted(self._modes.values(), key=lambda change: change.changed_at, reverse=True)
        )

    async def remember_nonce(self, nonce: bytes, kept_s: float) -> bool:
        return await self._in_store(
            partial(self._store.remember_nonce, nonce, now=time.time(), kept_s=kept_s)
        )

    async def _in_store(self, call: Callable[[], _Result]) -> _Result:
        return await trio.to_thread.run_sync(call, limiter=self._limiter)


def _check_record(record: PublishRecord, manifest: Manifest) -> None:
    """The publish record says of the version what its manifest says."""
    stated = {
        "files": (record.files, len(manifest.files)),
        "bytes": (record.bytes, manifest.total_bytes),
        "unique_bytes": (record.unique_bytes, manifest.unique_bytes),
        "chunks": (record.chunks, len(manifest.chunks)),
        "chunk_bytes": (record.chunk_bytes, manifest.chunk_bytes),
    }
    wrong = [
        f"{name} is {said}, the manifest has {true}"
        for name, (said, true) in stated.items()
        if said != true
    ]
    if wrong:
        raise ManifestError(
            f"the record of version {record.version.hex()} does not fit its manifest: "
            + "; ".join(wrong),
            object_name=record.version.hex(),
        )
