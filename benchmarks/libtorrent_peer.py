"""One libtorrent peer as a process: `python -m benchmarks.libtorrent_peer ROLE TORRENT DIR ADDRESS
PEER,PEER… FINISHED`, or `make-torrent FILE TORRENT PIECE_BYTES`.

It says `ready`, waits for a line on its input, then takes part until it is stopped; a fetching peer
creates the file FINISHED when it has verified and written the last piece.

The settings favour it: TCP only (its own transport yields to other traffic), no encryption, no
discovery beside the given addresses, eight peers served at once.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import NoReturn

import libtorrent

PORT = 6881
POLL_S = 0.02
WRITE_TIMEOUT_S = 300.0  # As long as any race takes.
SETTINGS: libtorrent.settings_pack = {
    "enable_dht": False,
    "enable_lsd": False,
    "enable_upnp": False,
    "enable_natpmp": False,
    "enable_outgoing_utp": False,
    "enable_incoming_utp": False,
    "out_enc_policy": 2,
    "in_enc_policy": 2,
    "alert_mask": libtorrent.alert.category_t.storage_notification,
    # Eight senders at once; libtorrent's default for an unknown uplink.
    "unchoke_slots_limit": 8,
    "choking_algorithm": 0,
    "connections_limit": 200,
    "smooth_connects": False,
    "send_buffer_watermark": 4 << 20,
    "request_queue_time": 3,
}


def make_torrent(file: Path, torrent: Path, piece_bytes: int) -> None:
    storage = libtorrent.file_storage()
    libtorrent.add_files(storage, str(file))
    creator = libtorrent.create_torrent(storage, piece_size=piece_bytes)
    libtorrent.set_piece_hashes(creator, str(file.parent))
    torrent.write_bytes(libtorrent.bencode(creator.generate()))


def take_part(
    role: str, torrent: Path, directory: Path, address: str, peers: list[str], finished: Path
) -> NoReturn:
    """Waits for the word to go, then seeds or fetches; runs until the process is stopped."""
    settings = SETTINGS.copy()
    settings["listen_interfaces"] = f"{address}:{PORT}"
    session = libtorrent.session(settings)
    parameters = libtorrent.add_torrent_params()
    parameters.ti = libtorrent.torrent_info(str(torrent))
    parameters.save_path = str(directory)
    parameters.flags &= ~libtorrent.torrent_flags.auto_managed
    parameters.flags &= ~libtorrent.torrent_flags.paused
    if role == "seed":
        parameters.flags |= libtorrent.torrent_flags.seed_mode
    print("ready", flush=True)
    sys.stdin.readline()
    handle = session.add_torrent(parameters)
    for peer in peers:
        handle.connect_peer((peer, PORT))
    while not handle.status().is_seeding:
        time.sleep(POLL_S)
    _wait_written(session, handle)
    finished.touch()
    while True:  # Whole copies go on serving the others.
        time.sleep(60)


def _wait_written(session: libtorrent.session, handle: libtorrent.torrent_handle) -> None:
    """A torrent counts as complete when its pieces are verified in memory; on a slow disk they are
    written seconds later."""
    handle.flush_cache()
    deadline = time.monotonic() + WRITE_TIMEOUT_S
    while time.monotonic() < deadline:
        session.wait_for_alert(1000)
        for alert in session.pop_alerts():
            if isinstance(alert, libtorrent.cache_flushed_alert):
                return
    raise TimeoutError(f"libtorrent did not write its pieces within {WRITE_TIMEOUT_S} s")


def main(arguments: list[str]) -> None:
    match arguments:
        case ["make-torrent", file, torrent, piece_bytes]:
            make_torrent(Path(file), Path(torrent), int(piece_bytes))
        case [("seed" | "fetch") as role, torrent, directory, address, peers, finished]:
            others = peers.split(",")
            take_part(role, Path(torrent), Path(directory), address, others, Path(finished))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
