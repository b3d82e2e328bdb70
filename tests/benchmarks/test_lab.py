"""The lab does to real TCP connections what it promises, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from benchmarks.lab import NAMESPACE_DIRECTORY, Lab, remove_dead_labs
from benchmarks.shaping import BURST_BYTES, FLOW_BURST_BYTES, Nic

pytestmark = pytest.mark.root

PORT = 5000
RATE_MBIT = 64.0
MIB = 1024 * 1024

# Sends argv[3] bytes over each of the first argv[2] connections, all at once.
SENDER = """
import socket, sys, threading
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], int(sys.argv[4])), family=family)
print("listening", flush=True)
connections = [server.accept()[0] for _ in range(int(sys.argv[2]))]
payload = bytes(int(sys.argv[3]))
def send(connection):
    connection.sendall(payload)
    connection.shutdown(socket.SHUT_WR)
threads = [threading.Thread(target=send, args=(c,)) for c in connections]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
# Opens argv[2] connections, as a peer does that fetches over several, reads each to its end, and
# prints the seconds from the first byte of any to the last byte of all.
RECEIVER = """
import socket, sys, threading, time
target = sys.argv[1], int(sys.argv[4])
connections = [socket.create_connection(target, timeout=20) for _ in range(int(sys.argv[2]))]
begun, ended = [], []
def receive(connection):
    begun.append(time.monotonic()) if connection.recv(1) else None
    while connection.recv(1 << 20): pass
    ended.append(time.monotonic())
threads = [threading.Thread(target=receive, args=(c,)) for c in connections]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(max(ended) - min(begun), flush=True)
"""


def send(lab: Lab, *, source: str, target: str, connections: int, size: int) -> float:
    """Seconds that `connections` parallel TCP connections of `size` bytes each take together."""
    arguments = [lab.addresses[source], str(connections), str(size), str(PORT)]
    sender = lab.start(source, [sys.executable, "-c", SENDER, *arguments], stdout=subprocess.PIPE)
    assert sender.stdout is not None
    assert sender.stdout.readline() == b"listening\n"
    sender.stdout.close()
    done = lab.run(target, [sys.executable, "-c", RECEIVER, *arguments], timeout_s=30)
    lab.stop(sender)
    return float(done.stdout)


def fastest_s(size: int, rate_mbit: float, burst_bytes: int) -> float:
    """Seconds below which a bucket of that rate lets nothing pass; two buckets may be full."""
    return (size - 2 * burst_bytes) * 8 / (rate_mbit * 1e6)


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Lab]:
    version: Literal[4, 6] = getattr(request, "param", 4)
    with Lab({"a": Nic(RATE_MBIT), "b": Nic(RATE_MBIT)}, ip_version=version) as lab:
        yield lab


@pytest.mark.parametrize("pair", [4, 6], indirect=True, ids=["ipv4", "ipv6"])
def test_a_transfer_runs_at_the_rate_of_the_card(pair: Lab) -> None:
    size = 3 * MIB
    seconds = send(pair, source="a", target="b", connections=1, size=size)
    assert fastest_s(size, RATE_MBIT, BURST_BYTES) <= seconds
    assert seconds <= 3 * size * 8 / (RATE_MBIT * 1e6), "paced, but far below the rate"


def test_the_counters_see_what_was_sent(pair: Lab) -> None:
    before = pair.sent_bytes("a"), pair.received_bytes("b")
    send(pair, source="a", target="b", connections=1, size=MIB)
    sent, received = pair.sent_bytes("a") - before[0], pair.received_bytes("b") - before[1]
    assert MIB < sent < 1.05 * MIB
    assert abs(received - sent) < 0.02 * MIB


@pytest.mark.parametrize("version", [4, 6])
def test_a_flow_cap_holds_for_each_connection_alone(version: Literal[4, 6]) -> None:
    size, cap = MIB, 16.0
    with Lab({"a": Nic(RATE_MBIT, cap), "b": Nic(RATE_MBIT, cap)}, ip_version=version) as lab:
        one = send(lab, source="a", target="b", connections=1, size=size)
        four = send(lab, source="a", target="b", connections=4, size=size // 4)
    assert one >= fastest_s(size, cap, FLOW_BURST_BYTES)
    assert four < one * 0.75


def test_a_pulled_cable_stops_the_traffic(pair: Lab) -> None:
    pair.disconnect("b")
    argv = [sys.executable, "-c", RECEIVER, pair.addresses["b"], "1", "1", str(PORT)]
    with pytest.raises(subprocess.TimeoutExpired):
        pair.run("a", argv, timeout_s=0.5)
    pair.connect("b")
    assert send(pair, source="a", target="b", connections=1, size=1000) < 5


def test_leaving_stops_the_processes_and_removes_the_network() -> None:
    with Lab({"a": Nic()}) as lab:
        process = lab.start("a", ["sleep", "60"])
        stubborn = lab.start("a", ["sleep", "60"])
        namespace = NAMESPACE_DIRECTORY / lab.namespace("a")
        assert namespace.exists()
        comm = Path(f"/proc/{process.pid}/comm")
        assert wait_until(lambda: comm.read_text() == "sleep\n"), "not the process itself"
        lab.stop(stubborn)
        assert stubborn.returncode is not None
    assert process.returncode is not None
    assert not namespace.exists()


def test_labs_run_side_by_side_with_the_same_addresses() -> None:
    with Lab({"a": Nic(), "b": Nic()}) as first, Lab({"a": Nic(), "b": Nic()}) as second:
        assert first.addresses == second.addresses
        threads = [
            threading.Thread(
                target=send,
                args=(lab,),
                kwargs={"source": "a", "target": "b", "connections": 1, "size": MIB},
            )
            for lab in (first, second)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=10)
        assert first.received_bytes("b") > MIB
        assert second.received_bytes("b") > MIB


def test_the_next_lab_clears_up_after_a_killed_one() -> None:
    script = (
        "import sys; from benchmarks.lab import Lab; from benchmarks.shaping import Nic\n"
        "lab = Lab({'a': Nic()}).__enter__(); child = lab.start('a', ['sleep', '60'])\n"
        "print(lab.namespace('a'), child.pid, flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", script]
    root = Path(__file__).resolve().parents[2]
    owner = subprocess.Popen(
        argv, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    namespace, child = owner.stdout.readline().split()
    owner.kill()
    owner.wait()
    assert (NAMESPACE_DIRECTORY / namespace).exists()
    remove_dead_labs()
    assert not (NAMESPACE_DIRECTORY / namespace).exists()
    assert wait_until(lambda: not _is_running(int(child)))
    owner.stdin.close()
    owner.stdout.close()


def wait_until(is_true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_true()


def _is_running(process_id: int) -> bool:
    """Whether the process runs; one that ended and was not yet collected by its parent does not."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_an_unknown_host_is_an_error(pair: Lab) -> None:
    with pytest.raises(KeyError, match="no host 'c'"):
        pair.namespace("c")


@pytest.mark.parametrize("name", ["", "A", "a-b", "switch", "x" * 17])
def test_a_bad_host_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="host's name"):
        Lab({name: Nic()})
