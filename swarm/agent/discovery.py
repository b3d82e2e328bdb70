"""Finding a tracker on the local network by mDNS (RFC 6762/6763), for laptops and labs only.

Off unless `--discover` is given: cloud networks carry no multicast, and an agent must not join
whatever answers first. The tracker's URL is all that is learned; the cluster key still decides whom
we believe."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from zeroconf import ServiceInfo, ServiceStateChange, Zeroconf

SERVICE_TYPE = "_weightswarm._tcp.local."
LOOKUP_TIMEOUT_S = 3.0
"""mDNS answers arrive within a few hundred milliseconds; three seconds cover one lost packet."""


async def find_trackers(timeout_s: float = LOOKUP_TIMEOUT_S) -> tuple[str, ...]:
    """URLs of the trackers that answer on this network; empty if none does in time."""
    return await trio.to_thread.run_sync(_find_blocking, timeout_s)


def _find_blocking(timeout_s: float) -> tuple[str, ...]:
    # Here, for it takes 25 ms to load and hardly anybody looks.
    from zeroconf import ServiceBrowser, ServiceStateChange, Zeroconf

    found: dict[str, None] = {}
    has_found = threading.Event()
    with Zeroconf() as zeroconf:

        def on_change(
            zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
        ) -> None:
            if state_change is not ServiceStateChange.Added:
                return
            info = zeroconf.get_service_info(service_type, name, timeout=1000)
            if info is not None:
                found.update(dict.fromkeys(_urls(info)))
                has_found.set()

        browser = ServiceBrowser(zeroconf, SERVICE_TYPE, handlers=[on_change])
        has_found.wait(timeout_s)
        browser.cancel()
    return tuple(found)


def _urls(info: ServiceInfo) -> list[str]:
    hosts = (f"[{host}]" if ":" in host else host for host in info.parsed_scoped_addresses())
    return [f"http://{host}:{info.port}" for host in hosts]
