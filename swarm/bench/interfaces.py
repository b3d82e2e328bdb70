"""The network interface that leads to a peer, and the bytes it has counted."""

from __future__ import annotations

import fcntl
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from swarm.protocol.ids import Address

_CLASS = Path("/sys/class/net")
_SIOCGIFADDR = 0x8915
_IFREQ_BYTES = 256


@dataclass(frozen=True, slots=True)
class Interface:
    """By name. Its counters hold everything that passes, not only what we measure."""

    name: str

    @property
    def is_loopback(self) -> bool:
        return self.name == "lo"

    def passed_bytes(self) -> tuple[int, int]:
        """(received, sent): frames with their headers, as the card counts them."""
        place = _CLASS / self.name / "statistics"
        return int((place / "rx_bytes").read_text()), int((place / "tx_bytes").read_text())


def interface_of(peer: Address) -> Interface | None:
    """The one whose address a connection to `peer` would have; None where that cannot be told
    (IPv6, an address on no interface)."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((peer.host, peer.port))
            local = sock.getsockname()[0]
            for _, name in socket.if_nameindex():
                if _address_of(sock, name) == local:
                    return Interface(name)
    except OSError:
        return None
    return None


def _address_of(sock: socket.socket, name: str) -> str:
    """An interface's IPv4 address; "" without one."""
    request = struct.pack(f"{_IFREQ_BYTES}s", name.encode()[:15])
    try:
        answer = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)
    except OSError:
        return ""
    return socket.inet_ntoa(answer[20:24])
