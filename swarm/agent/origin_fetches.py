"""Runs `FetchFromOrigin`: one task per read, each transfer of it ending in exactly one event.

Transfers that were ordered as a run go out with one request where their bytes follow each other in
one object, and with one after the other where they do not. What a run does not get to, since a
transfer of it failed or was cancelled, ends as cancelled, and the node decides anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import trio

from swarm.agent.held_version import HeldVersion
from swarm.agent.origin_client import OriginClient
from swarm.agent.origin_health import Document, OriginHealth, watched
from swarm.agent.tracing import TransferWatcher
from swarm.errors import (
    AuthError,
    IntegrityError,
    NoSpaceError,
    NotFoundError,
    OriginThrottledError,
    PermissionDeniedError,
    StoreError,
    SwarmError,
)
from swarm.policy.commands import FetchFromOrigin
from swarm.policy.events import ChunkVerified, Event, FailureReason, TransferFailed, TransferId
from swarm.protocol.ids import ChunkIndex, VersionId
from swarm.protocol.locations import Locations, Place, decode_locations
from swarm.protocol.manifest import Manifest


@dataclass(slots=True, eq=False)
class _Run:
    """One task and its transfers."""

    version: VersionId
    connections: int
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    # The transfers that have not ended, in the order of their orders.
    left: dict[ChunkIndex, TransferId] = field(default_factory=dict)
    # Nothing can be added any more.
    has_begun: bool = False
    has_failed: bool = False


class OriginFetches:
    """The live reads of the origin. Owned by the agent, which cancels by transfer id."""

    def __init__(
        self,
        client: OriginClient,
        held: Mapping[VersionId, HeldVersion],
        *,
        health: OriginHealth,
        emit: Callable[[Event], None],
        on_problem: Callable[[VersionId, SwarmError], None],
    ) -> None:
        self._client = client
        self._held = held
        self._health = health
        self._emit = emit
        self._on_problem = on_problem
        self._runs: dict[TransferId, _Run] = {}
        self._locations: dict[VersionId, Locations] = {}
        self._locating: dict[VersionId, trio.Lock] = {}
        # Payload bytes so far, by live transfer.
        self.received: dict[TransferId, int] = {}
        # Told when payload of a transfer begins and ends.
        self.watcher: TransferWatcher | None = None

    def start(self, command: FetchFromOrigin, nursery: trio.Nursery) -> None:
        run = self._runs.get(command.after) if command.after is not None else None
        if run is None or run.has_begun:
            run = _Run(command.version, command.connections)
            nursery.start_soon(self._fetch, run)
        run.left[command.chunk] = command.transfer
        self._runs[command.transfer] = run
        self.received[command.transfer] = 0

    def cancel(self, transfer: TransferId) -> bool:
        """Stop a read, with all that it has not got to; False if it is not one of ours."""
        run = self._runs.get(transfer)
        if run is not None:
            run.scope.cancel()
        return run is not None

    def forget(self, version: VersionId) -> None:
        self._locations.pop(version, None)
        self._locating.pop(version, None)

    async def _fetch(self, run: _Run) -> None:
        run.has_begun = True
        try:
            with run.scope:
                await self._attempt(run)
        finally:
            for chunk, transfer in list(run.left.items()):
                failure = TransferFailed(transfer, FailureReason.CANCELLED)
                self._end(run, chunk, failure)

    async def _attempt(self, run: _Run) -> None:
        held = self._held.get(run.version)
        if held is None:
            return
        try:
            locations = await self._locate(held)
        except SwarmError as error:
            chunk = next(iter(run.left))
            self._on_problem(run.version, error)
            self._end(run, chunk, _failure(run.left[chunk], error))
            return
        for group in self._requests(run, held.manifest, locations):
            await self._client.fetch_chunks(
                held.manifest,
                held.store,
                group,
                run.connections if len(group) == 1 else 1,
                progress=lambda chunk, count: self._progressed(run, chunk, count),
                ended=lambda chunk, error: self._ended(run, chunk, error),
            )
            if run.has_failed:
                # The next request would meet the same.
                return

    def _requests(
        self, run: _Run, manifest: Manifest, locations: Locations
    ) -> list[list[tuple[ChunkIndex, Place]]]:
        """The chunks with their places, those together that one request can bring. One that lies
        nowhere ends here."""
        groups: list[list[tuple[ChunkIndex, Place]]] = []
        for chunk in list(run.left):
            try:
                place = locations.place(manifest, chunk)
            except NotFoundError as error:
                self._ended(run, chunk, error)
                continue
            if not groups or not _follows(place, groups[-1][-1][1]):
                groups.append([])
            groups[-1].append((chunk, place))
        return groups

    def _progressed(self, run: _Run, chunk: ChunkIndex, count: int) -> None:
        transfer = run.left[chunk]
        before = self.received[transfer]
        self.received[transfer] = before + count
        if self.watcher is not None:
            if not before:
                self.watcher.begun(transfer)
            if before + count >= self._held[run.version].manifest.lengths[chunk]:
                self.watcher.received(transfer)

    def _ended(self, run: _Run, chunk: ChunkIndex, error: SwarmError | None) -> None:
        transfer = run.left[chunk]
        if error is None:
            self._health.succeeded(run.version, chunk, now=trio.current_time())
            self._end(run, chunk, ChunkVerified(run.version, chunk, transfer))
        else:
            run.has_failed = True
            self._on_problem(run.version, error)
            self._health.failed(run.version, chunk, error, now=trio.current_time())
            self._end(run, chunk, _failure(transfer, error))

    def _end(self, run: _Run, chunk: ChunkIndex, event: Event) -> None:
        transfer = run.left.pop(chunk)
        del self._runs[transfer]
        del self.received[transfer]
        self._emit(event)

    async def _locate(self, held: HeldVersion) -> Locations:
        """Where the bytes of a version lie; read once, however many leases ask at the same time."""
        lock = self._locating.setdefault(held.version, trio.Lock())
        async with lock:
            if held.version not in self._locations:
                read = watched(self._health, Document.LOCATIONS, self._read_locations)
                self._locations[held.version] = await read(held.version)
            return self._locations[held.version]

    async def _read_locations(self, version: VersionId) -> Locations:
        return decode_locations(await self._client.fetch_locations(version))


def _failure(transfer: TransferId, error: SwarmError) -> TransferFailed:
    match error:
        case OriginThrottledError():
            return TransferFailed(
                transfer, FailureReason.THROTTLED, retry_after_s=error.retry_after_s
            )
        case IntegrityError():
            return TransferFailed(transfer, FailureReason.CORRUPT)
        case NotFoundError() | AuthError():
            return TransferFailed(transfer, FailureReason.UNAVAILABLE)
        case StoreError() | NoSpaceError() | PermissionDeniedError():
            return TransferFailed(transfer, FailureReason.LOCAL)
        case _:
            return TransferFailed(transfer, FailureReason.LOST)


def _follows(place: Place, before: Place) -> bool:
    return (place.key, place.etag, place.offset) == (
        before.key,
        before.etag,
        before.offset + before.length,
    )
