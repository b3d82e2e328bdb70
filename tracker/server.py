"""One tracker process: opens the store, listens, keeps time, and ends in order."""

from __future__ import annotations

import logging
import random
import resource
import signal
from collections.abc import Callable

import trio

from swarm.http.listeners import bound_port, open_tcp
from swarm.http.server import HttpLimits, HttpServer
from swarm.protocol.ids import Address
from tracker.authentication import Guard
from tracker.config import ServeSettings
from tracker.metrics import TrackerMetrics
from tracker.policy.settings import TrackerSettings, ZoneSettings
from tracker.routes import Routes
from tracker.service import TrackerService
from tracker.store.sqlite import SqliteStore

logger = logging.getLogger(__name__)

_OTHER_DESCRIPTORS = 64
"""The store, its log, the listeners, and what the interpreter has open."""


async def serve(settings: ServeSettings, *, announce: Callable[[Address], None]) -> None:
    """Serve until SIGTERM or SIGINT, then drain; `announce` is called once requests are taken.

    Raises UsageError (cannot listen), TrackerError (the store cannot be used).
    """
    store = await trio.to_thread.run_sync(SqliteStore, settings.store)
    try:
        state = await trio.to_thread.run_sync(store.start_epoch)
        policy = TrackerSettings(zones=ZoneSettings(copies=settings.zone_copies))
        service = TrackerService(store, state, policy, random.Random())
        await _serve_service(settings, service, announce)
    finally:
        store.close()


async def _serve_service(
    settings: ServeSettings, service: TrackerService, announce: Callable[[Address], None]
) -> None:
    guard = Guard(settings.keys, service.remember_nonce)
    if settings.keys is None:
        logger.warning(
            "no --cluster-key-file: ANYBODY who reaches %s can read, change and redirect this"
            " fleet's versions; for trials on a machine of your own only",
            settings.listen,
        )
    routes = Routes(service, guard, TrackerMetrics(service))
    limits = HttpLimits(connections=_connections_possible(HttpLimits().connections))
    server = HttpServer(routes.router, limits=limits)
    listeners = await open_tcp(settings.listen.host, settings.listen.port)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, listeners)
            nursery.start_soon(service.run)
            announce(Address(settings.listen.host, bound_port(listeners[0])))
            async for number in signals:
                logger.info("%s: draining", signal.Signals(number).name)
                break
            routes.is_draining = True
            server.drain(settings.drain_s)
            service.stop()
            with trio.move_on_after(settings.drain_s + 1.0):
                await server.wait_drained()
            nursery.cancel_scope.cancel()


def _connections_possible(wanted: int) -> int:
    """Raise the descriptor limit as far as the system lets us; the connections it allows. Past it
    accepting would fail for everybody, so the server refuses politely before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_DESCRIPTORS
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed:
        logger.warning(
            "%d open files are allowed: %d connections at most, and an agent needs two;"
            " raise the limit (ulimit -Hn, LimitNOFILE=)",
            allowed,
            allowed - _OTHER_DESCRIPTORS,
        )
    return allowed - _OTHER_DESCRIPTORS
