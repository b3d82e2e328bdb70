"""The relay of a demonstration passes bytes unchanged, at its rate, and counts them."""

from __future__ import annotations

import mmap
from pathlib import Path

import trio

from swarm.cli.demo_relay import COUNTER, Wire, read_counter, relay


def counter_file(path: Path) -> Path:
    path.write_bytes(bytes(COUNTER.size))
    return path


def test_a_wire_gives_each_byte_its_time(tmp_path: Path) -> None:
    counter = counter_file(tmp_path / "count")
    with counter.open("r+b") as file, mmap.mmap(file.fileno(), COUNTER.size) as mapped:
        wire = Wire(1000.0, mapped)
        delays = [wire.delay_for(100, now=5.0) for _ in range(3)]
        assert [round(delay, 2) for delay in delays] == [0.08, 0.18, 0.28]
        # After a silence it is as it was at first: no credit is saved up.
        assert round(wire.delay_for(100, now=50.0), 2) == 0.08
    assert read_counter(counter) == 400


async def test_bytes_pass_in_both_directions(tmp_path: Path) -> None:
    counter = counter_file(tmp_path / "count")
    payload = bytes(range(256)) * 4000

    async def echo(stream: trio.SocketStream) -> None:
        async for piece in stream:
            await stream.send_all(piece)

    with counter.open("r+b") as file, mmap.mmap(file.fileno(), COUNTER.size) as mapped:
        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, echo, [listener])
            target: int = listener.socket.getsockname()[1]
            (relaying,) = await nursery.start(relay, 0, target, Wire(1e9, mapped))
            port: int = relaying.socket.getsockname()[1]
            with trio.fail_after(5):
                assert await exchange(port, payload) == payload
            nursery.cancel_scope.cancel()
    assert read_counter(counter) == len(payload)


async def exchange(port: int, payload: bytes) -> bytes:
    """Send `payload` while reading as many bytes back."""
    received = bytearray()
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream, trio.open_nursery() as both:
        both.start_soon(stream.send_all, payload)
        while len(received) < len(payload):
            received += await stream.receive_some()
    return bytes(received)
