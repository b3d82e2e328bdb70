"""A directory behind our range server and a fault proxy: an HTTP origin that fails by a script."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trio

from swarm.origin.range_server import RangeServer
from tests.support.fault_proxy import FaultProxy


@dataclass(frozen=True, slots=True)
class ServedDirectory:
    """Files written below `directory` are served at `url`; `proxy` breaks and counts."""

    directory: Path
    proxy: FaultProxy

    @property
    def url(self) -> str:
        return self.proxy.url


async def serve_directory(directory: Path, nursery: trio.Nursery) -> ServedDirectory:
    """Serve until the nursery is cancelled."""
    port = await nursery.start(RangeServer(directory).serve, "127.0.0.1", 0)
    proxy = FaultProxy(port)
    await nursery.start(proxy.serve)
    return ServedDirectory(directory, proxy)
