"""Runs `FetchFromOrigin`: one task per transfer, each ending in exactly one event."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import trio

from swarm.agent.held_version import HeldVersion
from swarm.agent.origin_client import OriginClient
from swarm.agent.origin_health import Document, OriginHealth, watched
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
from swarm.protocol.ids import VersionId
from swarm.protocol.locations import Locations, decode_locations


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
        self._scopes: dict[TransferId, trio.CancelScope] = {}
        self._locations: dict[VersionId, Locations] = {}
        self._locating: dict[VersionId, trio.Lock] = {}
        # Payload bytes so far, by live transfer.
        self.received: dict[TransferId, int] = {}

    def start(self, command: FetchFromOrigin, nursery: trio.Nursery) -> None:
        scope = trio.CancelScope()
        self._scopes[command.transfer] = scope
        self.received[command.transfer] = 0
        nursery.start_soon(self._fetch, command, scope)

    def cancel(self, transfer: TransferId) -> bool:
        """Stop a read; False if it is not one of ours."""
        scope = self._scopes.get(transfer)
        if scope is not None:
            scope.cancel()
        return scope is not None

    def forget(self, version: VersionId) -> None:
        self._locations.pop(version, None)
        self._locating.pop(version, None)

    async def _fetch(self, command: FetchFromOrigin, scope: trio.CancelScope) -> None:
        event: Event = TransferFailed(command.transfer, FailureReason.CANCELLED)
        try:
            with scope:
                event = await self._attempt(command)
        finally:
            del self._scopes[command.transfer]
            del self.received[command.transfer]
            self._emit(event)

    async def _attempt(self, command: FetchFromOrigin) -> Event:
        held = self._held.get(command.version)
        if held is None:
            return TransferFailed(command.transfer, FailureReason.CANCELLED)

        def progress(count: int) -> None:
            self.received[command.transfer] += count

        try:
            locations = await self._locate(held)
        except SwarmError as error:
            self._on_problem(command.version, error)
            return _failure(command.transfer, error)
        try:
            await self._client.fetch_chunk(
                held.manifest,
                locations,
                command.chunk,
                command.connections,
                partial(held.store.writer, command.chunk),
                progress=progress,
            )
        except SwarmError as error:
            self._on_problem(command.version, error)
            self._health.failed(command.version, command.chunk, error, now=trio.current_time())
            return _failure(command.transfer, error)
        self._health.succeeded(command.version, command.chunk, now=trio.current_time())
        return ChunkVerified(command.version, command.chunk, command.transfer)

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
