"""`status` and `wait --socket` against an agent's local API, served from a literal document."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from swarm.cli.agent_api import AgentPlace, StatusDocument, VersionDocument, read_status
from swarm.cli.local_version import look_at_agent
from swarm.cli.status import format_status
from swarm.protocol.ids import VersionId
from swarm.store.readiness import write_durable
from swarm.store.tree import Tree
from tests.support.command_line import error_class, swarm

ID = VersionId(bytes(range(32)))


def version_document(directory: str, *, is_ready: bool) -> VersionDocument:
    return VersionDocument(
        version=ID.hex(),
        directory=directory,
        ready=is_ready,
        chunks=10,
        chunks_held=10 if is_ready else 4,
        seconds=2.5,
        bytes=1000,
        bytes_held=1000 if is_ready else 400,
        bytes_by_source={"origin": 100, "peer_same_zone": 300, "local": 0},
        wasted_bytes=7,
        idle_s=0.1,
        waiting="" if is_ready else "6 chunk(s) wait for an origin lease",
        problem="",
    )


def status_document(version: VersionDocument) -> StatusDocument:
    return StatusDocument(
        node="ab" * 16,
        generation=3,
        cache="/cache",
        neighbours=5,
        nic_bytes_per_s=125_000_000,
        sent_bytes=300,
        tracker={"lost": False, "failure": ""},
        origin={"url": "s3://models/w", "degraded": []},
        channels=[
            {
                "channel": "prod",
                "target": ID.hex(),
                "serves": ID.hex() if version["ready"] else None,
                "revision": 4,
                "confirmed": True,
            }
        ],
        versions=[version],
        opening=[],
        waiting=[] if version["ready"] else ["version 000102030405: 6 chunk(s) wait"],
        problems=[],
        names={},
    )


@contextmanager
def agent(path: Path, document: object) -> Iterator[None]:
    """Something that answers at a Unix socket as an agent does."""
    body = json.dumps(document).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/v1/status" else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Stay silent; the peer of a Unix socket has no address to log."""

    with socketserver.ThreadingUnixStreamServer(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def ready_directory(path: Path) -> Path:
    (path / ".swarm").mkdir(parents=True)
    tree = Tree(str(path))
    write_durable(tree, ID)
    tree.close()
    return path


def test_status_says_what_is_waited_for(tmp_path: Path) -> None:
    document = status_document(version_document("/d", is_ready=False))
    with agent(tmp_path / "s", document):
        shown = swarm("status", "--socket", str(tmp_path / "s"))
        as_json = swarm("status", "--socket", str(tmp_path / "s"), "--json")
    assert shown.stdout.rstrip() == format_status(document)
    assert "waiting: version 000102030405: 6 chunk(s) wait" in shown.stdout
    assert "channel prod serves nothing, on its way to 000102030405" in shown.stdout
    assert "40%" in shown.stdout
    assert json.loads(as_json.stdout) == document


def test_wait_asks_the_agent(tmp_path: Path) -> None:
    directory = ready_directory(tmp_path / "d")
    place = AgentPlace(tmp_path / "s")
    with agent(tmp_path / "s", status_document(version_document(str(directory), is_ready=True))):
        for reference in (ID.hex(), ID.hex()[:12], "channel:prod"):
            assert look_at_agent(place, reference).directory == str(directory)
        assert "follow" in look_at_agent(place, "channel:other").reason
        assert "no version" in look_at_agent(place, "ff" * 32).reason


def test_wait_passes_on_why_not_yet(tmp_path: Path) -> None:
    with agent(tmp_path / "s", status_document(version_document("/d", is_ready=False))):
        result = swarm("wait", ID.hex(), "--socket", str(tmp_path / "s"), "--timeout", "0")
    assert error_class(result) == "E_STALLED"
    assert "6 chunk(s) wait for an origin lease" in result.stderr


def test_what_the_agent_calls_ready_must_be_so_from_here(tmp_path: Path) -> None:
    """Its path may belong to another container."""
    elsewhere = str(tmp_path / "not-mounted-here")
    with agent(tmp_path / "s", status_document(version_document(elsewhere, is_ready=True))):
        look = look_at_agent(AgentPlace(tmp_path / "s"), ID.hex())
    assert look.directory == ""
    assert elsewhere in look.reason


def test_what_is_no_agent_is_told_apart(tmp_path: Path) -> None:
    with agent(tmp_path / "s", ["something else"]):
        result = swarm("status", "--socket", str(tmp_path / "s"))
    assert error_class(result) == "E_NOTFOUND"
    with agent(tmp_path / "t", status_document(version_document("/d", is_ready=True))):
        assert read_status(AgentPlace(tmp_path / "t"))["node"] == "ab" * 16
