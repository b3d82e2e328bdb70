"""Opening, tuning and closing the TCP sockets between agents.

Buffers are left to the kernel's autotuning. A peer that vanishes without a word is noticed within
ten seconds: by TCP_USER_TIMEOUT while bytes are on their way, by keep-alive probes while none are.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

import trio

from swarm.protocol.ids import Address

SILENCE_MS_MAX = 10_000
KEEPALIVE_IDLE_S = 4
KEEPALIVE_INTERVAL_S = 2
KEEPALIVE_PROBES = 3
"""4 s + 3 × 2 s: ten seconds."""
BACKLOG = 1024
"""Thousands of agents boot at once; a full queue drops SYNs and costs each a second."""
CAPPED_RECEIVE_BYTES = 256 * 1024
"""Receive buffer under a downlink limit: what waits in it was
already sent to us, past the limit."""


SO_MAX_PACING_RATE = 47
"""Linux ≥ 3.13, socket(7); since 4.13 TCP spaces its segments without the fq scheduler. Not in
Python's socket module."""
NO_PACE = 2**64 - 1


def set_pace(sock: socket.socket, bytes_per_s: int) -> None:
    """Bound the rate of one connection; `NO_PACE` takes the bound away."""
    sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("Q", bytes_per_s))


async def dial(address: Address, timeout_s: float) -> socket.socket:
    """A connected, tuned, non-blocking socket; raises OSError (TimeoutError when late)."""
    with trio.move_on_after(timeout_s):
        targets = await trio.socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        last: OSError | None = None
        for family, _, _, _, target in targets:
            try:
                return await _connect(family, target)
            except OSError as error:
                last = error
        raise last or OSError(errno.EADDRNOTAVAIL, f"no address for {address}")
    raise TimeoutError(errno.ETIMEDOUT, f"{address} did not answer within {timeout_s} s")


async def _connect(
    family: socket.AddressFamily,
    target: tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes],
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        tune(sock)
        code = sock.connect_ex(target)
        if code == errno.EINPROGRESS:
            await trio.lowlevel.wait_writable(sock.fileno())
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, f"{target[0]!s} port {target[1]!r}: {os.strerror(code)}")
    except BaseException:
        close(sock)
        raise
    return sock


def listen(address: Address) -> socket.socket:
    """A listening socket; raises OSError. An unspecified IPv6 host takes IPv4 too."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((address.host, address.port))
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def tune(sock: socket.socket) -> None:
    """Options of every link, either end."""
    tcp = socket.IPPROTO_TCP
    sock.setsockopt(tcp, socket.TCP_NODELAY, 1)
    sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, SILENCE_MS_MAX)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(tcp, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(tcp, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(tcp, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


def limit_receive_buffer(sock: socket.socket) -> None:
    """Under a downlink limit: let TCP hold the sender back instead of the kernel's buffers."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CAPPED_RECEIVE_BYTES)


def close(sock: socket.socket) -> None:
    """Close, waking whoever waits on it; idempotent."""
    if sock.fileno() >= 0:
        trio.lowlevel.notify_closing(sock.fileno())
        sock.close()
