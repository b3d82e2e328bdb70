"""What the kernel knows about a TCP connection (`struct tcp_info` of linux/tcp.h).

Wake-ups say little about progress: with SO_RCVLOWAT up to 256 KiB wait in the kernel unseen. So the
watchdog, the slow-source cut and the pre-send point read the kernel's own numbers. The structure
only ever grows at its end, so fixed offsets are safe; all fields used here exist since Linux 4.9.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

_READ_BYTES = 192
_RTT_OFFSET = 68
"""After eight u8 and fifteen u32: tcpi_rtt, in microseconds."""
_BYTES_ACKED_OFFSET = 120
"""tcpi_bytes_acked: bytes of ours that have arrived since the connection began."""
_BYTES_RECEIVED_OFFSET = 128
"""tcpi_bytes_received: in-order bytes since the connection began."""
_NOTSENT_BYTES_OFFSET = 144
"""tcpi_notsent_bytes: handed to the kernel, not on the wire yet."""
_DELIVERY_RATE_OFFSET = 160
"""tcpi_delivery_rate: what the other side lately acknowledged, in bytes/s."""
_U32 = struct.Struct("=I")
_U64 = struct.Struct("=Q")


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """One reading."""

    # Smoothed round trip, in seconds.
    rtt_s: float
    # Bytes received in order since the connection began, read by us or not.
    bytes_received: int
    # Bytes of ours that have arrived since the connection began.
    bytes_acked: int
    # Bytes of ours that the kernel holds and has not sent once.
    unsent_bytes: int
    # How fast bytes of ours arrive at the other side, in bytes/s; 0 before the first.
    delivery_rate: int


def read_tcp_info(sock: socket.socket) -> TcpInfo:
    """One system call; raises OSError on a socket that is closed or not TCP."""
    raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _READ_BYTES)
    (rtt_us,) = _U32.unpack_from(raw, _RTT_OFFSET)
    (bytes_received,) = _U64.unpack_from(raw, _BYTES_RECEIVED_OFFSET)
    (bytes_acked,) = _U64.unpack_from(raw, _BYTES_ACKED_OFFSET)
    (unsent_bytes,) = _U32.unpack_from(raw, _NOTSENT_BYTES_OFFSET)
    (delivery_rate,) = _U64.unpack_from(raw, _DELIVERY_RATE_OFFSET)
    return TcpInfo(rtt_us / 1e6, bytes_received, bytes_acked, unsent_bytes, delivery_rate)
