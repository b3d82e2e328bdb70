"""The small HTTP origin, over a real socket and a real HTTP client."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import trio

from swarm.origin.range_server import Pace, RangeServer, parse_range

PAYLOAD = bytes(range(256)) * 2048  # 512 KiB: several slices.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bytes=0-0", range(1)),
        ("bytes=5-", range(5, 10)),
        ("bytes=-3", range(7, 10)),
        ("bytes=-99", range(10)),
        ("bytes=4-99", range(4, 10)),
        ("bytes=10-", range(10, 10)),
        ("bytes=-0", range(10, 10)),
        ("", None),
        ("bytes=-", None),
        ("bytes=5-4", None),
        ("bytes=1-2,4-5", None),
        ("lines=1-2", None),
    ],
)
def test_ranges_are_read_as_http_means_them(text: str, expected: range | None) -> None:
    found = parse_range(text, 10)
    assert (found is None) == (expected is None)
    assert list(found or ()) == list(expected or ())


@pytest.fixture
async def served(tmp_path: Path, nursery: trio.Nursery) -> tuple[RangeServer, httpx.AsyncClient]:
    (tmp_path / "sub dir").mkdir()
    (tmp_path / "sub dir" / "f").write_bytes(PAYLOAD)
    os.mkfifo(tmp_path / "pipe")
    server = RangeServer(tmp_path)
    port = await nursery.start(server.serve, "127.0.0.1", 0)
    return server, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False)


async def test_one_connection_serves_whole_files_ranges_and_heads(
    served: tuple[RangeServer, httpx.AsyncClient],
) -> None:
    server, client = served
    async with client:
        whole = await client.get("/sub%20dir/f?query=ignored")
        assert (whole.status_code, whole.content) == (200, PAYLOAD)
        part = await client.get("/sub%20dir/f", headers={"range": "bytes=100-299999"})
        assert (part.status_code, part.content) == (206, PAYLOAD[100:300000])
        assert part.headers["content-range"] == f"bytes 100-299999/{len(PAYLOAD)}"
        head = await client.head("/sub%20dir/f")
        assert head.headers["content-length"] == str(len(PAYLOAD))
        same = {"if-match": head.headers["etag"]}
        assert (await client.get("/sub%20dir/f", headers=same)).status_code == 200
        other = {"if-match": '"other"'}
        assert (await client.get("/sub%20dir/f", headers=other)).status_code == 412
        past = {"range": f"bytes={len(PAYLOAD)}-"}
        assert (await client.get("/sub%20dir/f", headers=past)).status_code == 416
        counters = (await client.get("/-/counters")).json()
    assert counters["body_bytes"] == server.body_bytes_sent == 2 * len(PAYLOAD) + 299900
    assert counters["statuses"] == {"200": 3, "206": 1, "412": 1, "416": 1}


@pytest.mark.parametrize(
    "target",
    ["/none", "/sub%20dir", "/pipe", "/%2e%2e/x", "/sub%20dir/%2e%2e/%2e%2e/x", "//x", "/"],
)
async def test_nothing_but_files_of_the_directory_is_served(
    served: tuple[RangeServer, httpx.AsyncClient], target: str
) -> None:
    _, client = served
    async with client:
        url = client.base_url.copy_with(raw_path=target.encode())
        assert (await client.get(url)).status_code == 404
        assert (await client.put(url, content=b"x")).status_code == 405


async def test_the_rate_holds_over_all_connections(autojump_clock: trio.testing.MockClock) -> None:
    """Three readers share 1 MB/s: three seconds for three megabytes, evenly."""
    pace = Pace(1e6)
    ends: list[float] = []

    async def read() -> None:
        for _ in range(1_000_000 // pace.slice_bytes):
            await pace.wait_turn(pace.slice_bytes)
        ends.append(trio.current_time())

    started_at = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(read)
    assert [end - started_at for end in ends] == pytest.approx([3.0] * 3, abs=0.1)


def test_the_program_serves_and_refuses_bad_arguments(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"bytes")
    command = [sys.executable, "-m", "swarm.origin.range_server", str(tmp_path), "--listen"]
    refused = subprocess.run([*command, "nonsense"], capture_output=True, text=True, timeout=20)
    assert (refused.returncode, "E_USAGE" in refused.stderr) == (2, True)
    with subprocess.Popen(
        [*command, "127.0.0.1:0", "--rate", "1MB/s"], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            port = process.stderr.readline().strip().rpartition(":")[2]
            deadline = time.monotonic() + 10
            answer = httpx.get(f"http://127.0.0.1:{port}/f", trust_env=False)
            assert (answer.content, time.monotonic() < deadline) == (b"bytes", True)
        finally:
            process.terminate()
