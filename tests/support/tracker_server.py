"""A whole tracker inside the test's process: real sockets, real sqlite, real MACs."""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from swarm.agent.tracker_client import TrackerClient
from swarm.http.listeners import bound_port, open_tcp
from swarm.http.server import HttpServer
from swarm.protocol.ids import ChunkDigest, Identity, NodeId
from swarm.protocol.manifest import FileEntry, decode_manifest, encode_manifest
from swarm.protocol.request_auth import Role, role_key
from swarm.protocol.tracker_api import PublishRecord
from tests.support.tracker_fleet import AT_ONCE
from tracker.authentication import Guard
from tracker.metrics import TrackerMetrics
from tracker.routes import Routes
from tracker.service import TrackerService
from tracker.store.sqlite import SqliteStore

CLUSTER_KEY = bytes(range(32))
OPERATOR_KEY = bytes(range(32, 64))
CHUNK_BYTES = 64 << 10


@dataclass
class RunningTracker:
    """The parts that tests look into."""

    url: str
    service: TrackerService
    server: HttpServer
    # Closed when the block ends.
    clients: list[TrackerClient] = field(default_factory=list)

    def agent(self, *, generation: int = 1, key: bytes | None = CLUSTER_KEY) -> TrackerClient:
        identity = Identity(NodeId(os.urandom(16)), generation)
        return self.kept(TrackerClient([self.url], key=key, identity=identity))

    def operator(self, *, key: bytes | None = CLUSTER_KEY) -> TrackerClient:
        return self.kept(TrackerClient([self.url], key=key))

    def kept(self, client: TrackerClient) -> TrackerClient:
        self.clients.append(client)
        return client


@asynccontextmanager
async def running_tracker(
    directory: Path,
    *,
    cluster: bytes | None = CLUSTER_KEY,
    operator: bytes | None = None,
    port: int = 0,
) -> AsyncIterator[RunningTracker]:
    """Serve on loopback until the block ends, within 20 s."""
    store = SqliteStore(directory / "tracker.db")
    service = TrackerService(store, store.start_epoch(), AT_ONCE, random.Random(1))
    keys = None
    if cluster is not None:
        keys = {
            Role.AGENT: role_key(cluster, Role.AGENT),
            Role.OPERATOR: role_key(operator or cluster, Role.OPERATOR),
        }
    routes = Routes(service, Guard(keys, service.remember_nonce), TrackerMetrics(service))
    server = HttpServer(routes.router)
    listeners = await open_tcp("127.0.0.1", port)
    try:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                await nursery.start(server.serve, listeners)
                nursery.start_soon(service.run)
                url = f"http://127.0.0.1:{bound_port(listeners[0])}"
                tracker = RunningTracker(url, service, server)
                yield tracker
                for client in tracker.clients:
                    await client.aclose()
                nursery.cancel_scope.cancel()
    finally:
        store.close()


def made_version(*, chunks: int = 8, name: str = "", tag: str = "") -> tuple[PublishRecord, bytes]:
    """A publish record and the manifest of a version that exists nowhere else."""
    digests = tuple(ChunkDigest(os.urandom(32)) for _ in range(chunks))
    entry = FileEntry("weights.bin", chunks * CHUNK_BYTES, False, 0, digests)
    raw = encode_manifest([entry], CHUNK_BYTES)
    manifest = decode_manifest(raw)
    record = PublishRecord(
        version=manifest.version,
        name=name,
        tag=tag,
        origin="s3://models/w",
        files=1,
        bytes=manifest.total_bytes,
        unique_bytes=manifest.unique_bytes,
        chunks=len(manifest.chunks),
        chunk_bytes=CHUNK_BYTES,
        published_at=time.time(),
        published_by="ci",
        is_validated=True,
        contains_code=False,
        warnings=(),
        names=(f"{name}@{tag}",) if name else (),
    )
    return record, raw
