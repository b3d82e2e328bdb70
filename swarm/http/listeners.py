"""Opens what a server listens on: a TCP address or a Unix socket."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import trio

from swarm.errors import LockedError, UsageError

BACKLOG = 4096
"""A fleet of thousands starts at one moment; the kernel cuts this to net.core.somaxconn."""
SOCKET_MODE = 0o600


async def open_tcp(host: str, port: int) -> list[trio.SocketListener]:
    """Listen on `host` (empty or ``*``: everywhere) and `port` (0: any free one); raises
    UsageError."""
    try:
        return list(
            await trio.open_tcp_listeners(
                port, host=None if host in ("", "*") else host, backlog=BACKLOG
            )
        )
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            object_name=f"{host}:{port}",
            hint="is another process there? choose another --listen address",
        ) from error


def bound_port(listener: trio.SocketListener) -> int:
    """The port that a TCP listener was given."""
    name: tuple[str, int] = listener.socket.getsockname()
    return name[1]


async def open_unix(path: Path, *, mode: int = SOCKET_MODE) -> trio.SocketListener:
    """Listen on a Unix socket, in place of one whose owner is gone.

    The mode is set between bind and listen: until then nobody can connect. Raises LockedError when
    somebody answers there, UsageError when the path cannot be used.
    """
    _remove_stale(path)
    sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        await sock.bind(str(path))
        os.chmod(path, mode)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise UsageError(
            f"cannot listen on {path}: {error.strerror or error}",
            object_name=str(path),
            hint="the directory must exist and the whole path have fewer than 108 bytes",
        ) from error
    return trio.SocketListener(sock)


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody listens on any more; anything else at `path` stays."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise UsageError(f"{path} exists and is no socket", object_name=str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass  # Its backlog is full: somebody listens.
    raise LockedError(
        f"another process listens on {path}", object_name=str(path), hint="stop it first"
    )
