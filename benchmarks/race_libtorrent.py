"""libtorrent, the engine of the usual BitTorrent deployments, with the origin as its only seed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.arena import Arena, say_go

PEER = [sys.executable, "-W", "ignore", "-m", "benchmarks.libtorrent_peer"]
# libtorrent asks within a piece for blocks of 16 KiB, so its pieces can be large; 1 MiB is what
# clients choose for files of this size.
PIECE_BYTES = 1 << 20


class Libtorrent:
    """A seed on the origin, a fetching peer per node, each told the address of every other."""

    name = "libtorrent"

    def __init__(self) -> None:
        self._peers: list[subprocess.Popen[bytes]] = []

    def prepare(self, arena: Arena) -> None:
        torrent = arena.work / "model.torrent"
        make = [*PEER, "make-torrent", str(arena.file), str(torrent), str(PIECE_BYTES)]
        arena.run("origin", make)
        seed = self._start(arena, "origin", "seed", torrent, arena.source)
        say_go([seed])
        for node in arena.scenario.node_names():
            directory = arena.node_directory(node)
            self._peers.append(self._start(arena, node, "fetch", torrent, directory))
        expected = len(self._peers) + 1
        log = Path(arena.log.name)
        arena.wait_until(
            lambda: log.read_bytes().count(b"ready\n") >= expected, "libtorrent peers load"
        )

    def go(self, arena: Arena) -> None:
        say_go(self._peers)

    def is_finished(self, arena: Arena, node: str) -> bool:
        return _finished_mark(arena, node).exists()

    def copy_of(self, arena: Arena, node: str) -> Path:
        return arena.node_directory(node) / arena.file.name

    def node_processes(self) -> list[subprocess.Popen[bytes]]:
        return self._peers

    def _start(
        self, arena: Arena, host: str, role: str, torrent: Path, directory: Path
    ) -> subprocess.Popen[bytes]:
        addresses = arena.lab.addresses
        others = [addresses["origin"], *(addresses[node] for node in arena.scenario.node_names())]
        others.remove(addresses[host])
        argv = [*PEER, role, str(torrent), str(directory), addresses[host], ",".join(others)]
        return arena.start(host, [*argv, str(_finished_mark(arena, host))])


def _finished_mark(arena: Arena, host: str) -> Path:
    return arena.work / f"{host}.finished"
