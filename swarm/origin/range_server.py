"""A small origin over HTTP: the files of a directory, with ranges, at a given rate.

For demonstrations, tests and laptops; a fleet's origin is an object store. It serves GET and HEAD
with single ranges, ETags and If-Match, holds one rate over all its connections, and counts the body
bytes that it hands to its sockets. `GET /-/counters` says them as JSON.

    python -m swarm.origin.range_server DIRECTORY --listen HOST:PORT [--rate RATE]

Bodies go by sendfile in slices, so that a rate is held smoothly and connections share it. The pages
of a demonstration's files are warm; a cold disk would hold up all connections for one slice.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import h11
import trio

from swarm.errors import SwarmError
from swarm.protocol.ids import parse_address
from swarm.units import parse_rate

SLICE_BYTES = 256 * 1024
SLICE_S = 0.02  # With a rate a slice is at most this long, so that twelve readers share it evenly.
SLICE_BYTES_MIN = 4 * 1024
REQUEST_TIMEOUT_S = 60.0  # An idle connection is closed after this.
SEND_TIMEOUT_S = 30.0  # A reader that takes nothing for this long is gone.
READ_BYTES = 16 * 1024
COUNTERS_TARGET = "/-/counters"
RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class Pace:
    """One rate over all connections. `bytes_per_s` None: as fast as it goes."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = float("-inf")
        self.slice_bytes = SLICE_BYTES
        if bytes_per_s is not None:
            self.slice_bytes = max(SLICE_BYTES_MIN, min(SLICE_BYTES, int(bytes_per_s * SLICE_S)))

    async def wait_turn(self, count: int) -> None:
        """Until `count` bytes may be sent; turns are given in the order of asking."""
        if self._bytes_per_s is None:
            return
        # Up to one slice of silence is made up for: timers wake late, and the rate must hold.
        earliest = trio.current_time() - self.slice_bytes / self._bytes_per_s
        start_at = max(self._free_at, earliest)
        self._free_at = start_at + count / self._bytes_per_s
        await trio.sleep_until(start_at)


@dataclass(frozen=True, slots=True)
class _File:
    """An open file and what is wanted of it."""

    fd: int
    size: int
    etag: str


class RangeServer:
    """Serves one directory. `serve` runs until it is cancelled."""

    def __init__(self, directory: Path, *, bytes_per_s: float | None = None) -> None:
        self._directory = directory
        self._pace = Pace(bytes_per_s)
        self.body_bytes_sent = 0
        self.statuses: Counter[int] = Counter()

    async def serve(
        self,
        host: str,
        port: int,
        *,
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen; the started value is the port."""
        listeners = await trio.open_tcp_listeners(port, host=host)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, self._serve_client, listeners)
            task_status.started(int(listeners[0].socket.getsockname()[1]))

    def counters(self) -> dict[str, int | dict[str, int]]:
        """Body bytes of files, and answers by status; the counters' own answers are in neither."""
        return {
            "body_bytes": self.body_bytes_sent,
            "requests": sum(self.statuses.values()),
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
        }

    async def _serve_client(self, stream: trio.SocketStream) -> None:
        http = h11.Connection(h11.SERVER)
        try:
            while (request := await _next_request(stream, http)) is not None:
                await self._answer(stream, http, request)
                if {http.our_state, http.their_state} != {h11.DONE}:
                    return
                http.start_next_cycle()
        except (trio.BrokenResourceError, trio.TooSlowError, h11.ProtocolError, OSError):
            pass  # The reader went away or speaks something else; it sees the connection end.
        finally:
            await trio.aclose_forcefully(stream)

    async def _answer(
        self, stream: trio.SocketStream, http: h11.Connection, request: h11.Request
    ) -> None:
        target = request.target.decode("latin-1").partition("?")[0]
        if target == COUNTERS_TARGET:
            body = json.dumps(self.counters()).encode()
            headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
            await _send(stream, http, h11.Response(status_code=200, headers=headers))
            await _send(stream, http, h11.Data(data=body))
            await _send(stream, http, h11.EndOfMessage())
            return
        if request.method not in (b"GET", b"HEAD"):
            await self._refuse(stream, http, 405)
            return
        file = self._open(target)
        if file is None:
            await self._refuse(stream, http, 404)
            return
        try:
            await self._answer_file(stream, http, request, file)
        finally:
            os.close(file.fd)

    async def _answer_file(
        self, stream: trio.SocketStream, http: h11.Connection, request: h11.Request, file: _File
    ) -> None:
        given = {name: value.decode("latin-1") for name, value in request.headers}
        if given.get(b"if-match", "*") not in ("*", file.etag):
            await self._refuse(stream, http, 412)
            return
        wanted = parse_range(given.get(b"range", ""), file.size)
        if wanted is not None and not wanted:
            await self._refuse(stream, http, 416, ("content-range", f"bytes */{file.size}"))
            return
        span = range(file.size) if wanted is None else wanted
        headers = [
            ("accept-ranges", "bytes"),
            ("content-length", str(len(span))),
            ("content-type", "application/octet-stream"),
            ("etag", file.etag),
        ]
        if wanted is not None:
            headers.append(("content-range", f"bytes {span.start}-{span.stop - 1}/{file.size}"))
        status = 200 if wanted is None else 206
        self.statuses[status] += 1
        await _send(stream, http, h11.Response(status_code=status, headers=headers))
        if request.method == b"GET":
            await self._send_file(stream, file.fd, span)
            # h11 is told how much went past it, so that it keeps the account of the message; its
            # documentation allows any sized object here, its types only bytes.
            http.send_with_data_passthrough(h11.Data(data=_Passed(len(span))))  # type: ignore[arg-type]
        await _send(stream, http, h11.EndOfMessage())

    async def _send_file(self, stream: trio.SocketStream, fd: int, span: range) -> None:
        offset = span.start
        while offset < span.stop:
            count = min(self._pace.slice_bytes, span.stop - offset)
            await self._pace.wait_turn(count)
            with trio.fail_after(SEND_TIMEOUT_S):
                await _send_slice(stream, fd, offset, count)
            self.body_bytes_sent += count
            offset += count

    async def _refuse(
        self,
        stream: trio.SocketStream,
        http: h11.Connection,
        status: int,
        *headers: tuple[str, str],
    ) -> None:
        self.statuses[status] += 1
        response = h11.Response(status_code=status, headers=[("content-length", "0"), *headers])
        await _send(stream, http, response)
        await _send(stream, http, h11.EndOfMessage())

    def _open(self, target: str) -> _File | None:
        """The file behind a target, or None. Nothing above the directory is reachable."""
        parts = unquote(target).split("/")[1:]
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            return None
        try:
            # Without O_NONBLOCK a named pipe would stop the server.
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
            fd = os.open(self._directory.joinpath(*parts), flags)
        except OSError:
            return None
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            return None
        return _File(fd, status.st_size, f'"{status.st_size:x}-{status.st_mtime_ns:x}"')


class _Passed:
    """Stands for bytes that did not go through h11."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


def parse_range(text: str, size: int) -> range | None:
    """The bytes that a Range header asks for; None for the whole file (a header that is not
    understood counts as none, by RFC 9110), an empty range if there are none."""
    match = RANGE.fullmatch(text.strip())
    if match is None or match[0] == "bytes=-":
        return None
    first, last = match[1], match[2]
    if not first:
        return range(max(0, size - int(last)), size)
    if last and int(last) < int(first):
        return None
    return range(int(first), min(size, int(last) + 1) if last else size)


async def _next_request(stream: trio.SocketStream, http: h11.Connection) -> h11.Request | None:
    """The next request, its body dropped; None when the reader is gone."""
    found: h11.Request | None = None
    with trio.move_on_after(REQUEST_TIMEOUT_S):
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await stream.receive_some(READ_BYTES))
            elif isinstance(event, h11.Request):
                found = event
            elif isinstance(event, h11.EndOfMessage):
                return found
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                return None
    return None


async def _send(stream: trio.SocketStream, http: h11.Connection, event: h11.Event) -> None:
    payload = http.send(event)
    if payload:
        with trio.fail_after(SEND_TIMEOUT_S):
            await stream.send_all(payload)


async def _send_slice(stream: trio.SocketStream, fd: int, offset: int, count: int) -> None:
    sent = 0
    while sent < count:
        try:
            step = os.sendfile(stream.socket.fileno(), fd, offset + sent, count - sent)
        except BlockingIOError:
            await trio.lowlevel.wait_writable(stream.socket)
            continue
        if step == 0:
            raise OSError("the file became shorter")
        sent += step
    await trio.lowlevel.checkpoint()


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; 2 for a call that cannot be understood."""
    parser = argparse.ArgumentParser(prog="swarm.origin.range_server", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--listen", default="127.0.0.1:8080", metavar="HOST:PORT")
    parser.add_argument("--rate", default="", help="such as 100MB/s or 1Gbit/s; all by default")
    options = parser.parse_args(arguments)
    try:
        address = parse_address(options.listen)
        rate = parse_rate(options.rate) if options.rate else None
    except SwarmError as error:
        print(f"{error.code}: {error.message}", file=sys.stderr)
        return error.exit_code
    server = RangeServer(options.directory, bytes_per_s=rate)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            port = await nursery.start(server.serve, address.host, address.port)
            print(f"serving {options.directory} on {address.host}:{port}", file=sys.stderr)

    with contextlib.suppress(KeyboardInterrupt):
        trio.run(run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
