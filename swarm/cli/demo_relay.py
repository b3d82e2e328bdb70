"""A relay on the loopback address that holds a rate towards its clients: the network in front of a
demonstration's S3 server. Run as ``python -m swarm.cli.demo_relay PORT TARGET_PORT BYTES_PER_S
COUNTER``, where COUNTER is a file of eight bytes that holds the number of bytes sent to clients.

Bytes pass unchanged in both directions. One schedule serves all connections: each piece is sent
when the bytes before it have had their time, so the sum over connections is the rate.
"""

from __future__ import annotations

import mmap
import struct
import sys
from pathlib import Path

import trio

COUNTER = struct.Struct("<Q")

PIECE_BYTES = 64 * 1024
"""At 50 MB/s a piece takes 1.3 ms: smooth enough to look like a wire, few enough wake-ups."""
BURST_S = 0.02
"""What an idle wire may send at once: the queue of a switch port."""


class Wire:
    """Says when the next bytes may leave."""

    def __init__(self, bytes_per_s: float, counter: mmap.mmap) -> None:
        self._bytes_per_s = bytes_per_s
        self._counter = counter
        self._sent_bytes = 0
        # When all that was granted will have left.
        self._free_at = 0.0

    def delay_for(self, count: int, now: float) -> float:
        """Seconds to wait before `count` bytes are sent."""
        self._free_at = max(self._free_at, now - BURST_S) + count / self._bytes_per_s
        self._sent_bytes += count
        COUNTER.pack_into(self._counter, 0, self._sent_bytes)
        return max(0.0, self._free_at - now)


def read_counter(path: Path) -> int:
    """The number of bytes that a relay has sent to its clients."""
    count: int = COUNTER.unpack(path.read_bytes())[0]
    return count


async def relay(
    port: int,
    target_port: int,
    wire: Wire,
    *,
    task_status: trio.TaskStatus[list[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled."""

    async def serve(client: trio.SocketStream) -> None:
        try:
            server = await trio.open_tcp_stream("127.0.0.1", target_port)
        except OSError:
            return
        async with server, trio.open_nursery() as nursery:
            nursery.start_soon(_pass_on, client, server, None, nursery.cancel_scope)
            nursery.start_soon(_pass_on, server, client, wire, nursery.cancel_scope)

    await trio.serve_tcp(serve, port, host="127.0.0.1", task_status=task_status)


async def _pass_on(
    source: trio.SocketStream,
    target: trio.SocketStream,
    wire: Wire | None,
    scope: trio.CancelScope,
) -> None:
    """Copy one direction; its end is the end of the connection."""
    try:
        async for piece in source:
            for start in range(0, len(piece), PIECE_BYTES):
                part = piece[start : start + PIECE_BYTES]
                if wire is not None:
                    await trio.sleep(wire.delay_for(len(part), trio.current_time()))
                await target.send_all(part)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return
    finally:
        scope.cancel()


def main(port: str, target_port: str, bytes_per_s: str, counter: str) -> None:
    """The program."""
    with open(counter, "r+b") as file, mmap.mmap(file.fileno(), COUNTER.size) as mapped:
        trio.run(relay, int(port), int(target_port), Wire(float(bytes_per_s), mapped))


if __name__ == "__main__":
    main(*sys.argv[1:])
