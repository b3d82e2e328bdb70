"""How long a tracker lets agents wait when a whole fleet comes at once, and after its restart.

A real ``swarm-tracker serve`` process, sqlite store and cluster key included, and N agents' sides
of the conversation in this process: the agents' own `TrackerSession` and `TrackerClient` (back-off,
jitter, signatures), with facts that a download would give instead of a store. Nothing is read from
an origin: every chunk has holders from the start, so that no agent holds a lease and each reports
every five seconds, as most of a fleet does.

Three phases, one tracker core:

- *start*: all agents come within a second. Each sends a report with its whole bit set and opens a
  listen: 2 N connections, 2 N signed requests, N bit sets of `chunks` / 8 bytes to unpack.
- *steady*: N / 5 reports a second with what was verified since, N / 15 listens that end of
  themselves, and every second the operator moves a channel, which ends all N listens at once: the
  p99 of *event → listener* is that burst, from before the operator's call until the agent has the
  answer.
- *restart*: the tracker is killed (SIGKILL) and started again at once. Every agent finds its
  connections broken, comes back with jitter and sends its whole bit set again. `back_s` says when
  the last one was known again.

Theory. One Python process answers requests one after the other, about `cpu_ms_per_request` each,
so a burst of B requests is served in B times that: the median of a burst waits for half of it, its
p99 for nearly all. A move of the channel is a burst of B = N answers and N new listens. An agent's
first words are three calls (report, listen, and the report of a tracker that asks for everything),
so a start or a restart is B = 3 N, thinned by the jitter it is spread over. Between bursts a call
waits for nobody. A p99 far above B times the CPU of a request means that something else held the
core: see `load_before` and `client_lag_ms`, the lateness of this process's own timers. Latency is
measured here, in the client, which needs about as much CPU as the tracker; on fewer than two free
cores the figures are upper bounds.

    python -m benchmarks.tracker_storm --json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import trio

from swarm.agent.tracker_client import TrackerClient
from swarm.agent.tracker_session import TrackerSession, VersionFacts
from swarm.errors import SwarmError
from swarm.protocol.ids import Address, Identity, NodeId, VersionId
from swarm.protocol.tracker_api import LeaseProgress, Listen, ListenReply, Report, ReportReply
from tests.support.tracker_server import CLUSTER_KEY, made_version

CHANNEL = "production"
START_S = 6.0
"""Counted as start: the first second's arrivals and the round that follows them."""
STEADY_S = 20.0
FLIP_S = 1.0
RESTART_S = 30.0
"""At most, until all agents are known again."""
HELD_AT_FIRST = 0.1
"""Of the chunks, at random: each chunk has N / 10 holders."""
CHUNKS_PER_S = 50
"""Verified by each agent: a chunk of 64 MiB at 25 Gbit/s takes 20 ms."""
LAG_S = 0.02
TRACKER_START_S = 20.0


@dataclass
class Latencies:
    """What one phase saw, in seconds."""

    report_s: list[float] = field(default_factory=list)
    event_s: list[float] = field(default_factory=list)
    lag_s: list[float] = field(default_factory=list)
    failures: int = 0


@dataclass
class Storm:
    """What all agents share."""

    version: VersionId
    chunk_count: int
    now: Latencies = field(default_factory=Latencies)
    # When the move of the channel to a revision was asked for.
    moved_at: dict[int, float] = field(default_factory=dict)


class TimedClient(TrackerClient):
    """An agent's client that notes how long its reports took."""

    storm: Storm

    async def report(self, report: Report) -> ReportReply:
        began, into = trio.current_time(), self.storm.now
        try:
            reply = await super().report(report)
        except SwarmError:
            into.failures += 1
            raise
        into.report_s.append(trio.current_time() - began)
        return reply

    async def listen(self, listen: Listen) -> ListenReply:
        try:
            return await super().listen(listen)
        except SwarmError:
            self.storm.now.failures += 1
            raise


class DownloadFacts:
    """What an agent says that verifies `CHUNKS_PER_S` chunks in a random order."""

    def __init__(self, storm: Storm, rng: random.Random) -> None:
        """Made before the storm: what it costs is no agent's waiting."""
        self._storm = storm
        self._order = rng.sample(range(storm.chunk_count), storm.chunk_count)
        self._held_count = int(HELD_AT_FIRST * storm.chunk_count)
        self._bits = sum(1 << chunk for chunk in self._order[: self._held_count])
        self._first_count = self._held_count
        self._began_at = trio.current_time()
        self.revision = 0

    def versions_held(self) -> tuple[VersionFacts, ...]:
        elapsed_s = trio.current_time() - self._began_at
        count = min(self._first_count + int(CHUNKS_PER_S * elapsed_s), self._storm.chunk_count)
        for chunk in self._order[self._held_count : count]:
            self._bits |= 1 << chunk
        self._held_count = count
        is_ready = count == self._storm.chunk_count
        return (
            VersionFacts(
                self._storm.version, self._storm.chunk_count, 64 << 20, self._bits, is_ready
            ),
        )

    def versions_wanted(self) -> tuple[VersionId, ...]:
        return (self._storm.version,)

    def channels_followed(self) -> tuple[str, ...]:
        return (CHANNEL,)

    def channels_served(self) -> tuple[tuple[str, int], ...]:
        return ((CHANNEL, self.revision),)

    def lease_progress(self) -> tuple[LeaseProgress, ...]:
        return ()

    def nic_bytes_per_s(self) -> int:
        return 3_125_000_000

    def problem(self) -> str:
        return ""


async def live_one_agent(storm: Storm, url: str, number: int, facts: DownloadFacts) -> None:
    """From somewhere in the first second, until cancelled."""
    rng = random.Random(number)
    await trio.sleep(rng.random())
    identity = Identity(NodeId(number.to_bytes(16, "big")), 1)
    client = TimedClient([url], key=CLUSTER_KEY, identity=identity, rng=rng)
    client.storm = storm

    def heard(reply: ListenReply) -> None:
        for target in reply.channels:
            asked_at = storm.moved_at.get(target.revision)
            if asked_at is not None and target.revision > facts.revision:
                storm.now.event_s.append(trio.current_time() - asked_at)
            facts.revision = target.revision

    session = TrackerSession(
        client,
        facts,
        address=Address(f"10.{number >> 8}.{number & 255}.1", 7000),
        zone="",
        rack="",
        on_reply=heard,
        on_lost=lambda: None,
        on_regained=lambda: None,
        rng=rng,
    )
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.report_forever)
            nursery.start_soon(session.listen_forever)
    finally:
        with trio.CancelScope(shield=True):
            await client.aclose()


async def watch_lag(storm: Storm) -> None:
    """How late this process's own timers are."""
    while True:
        due_at = trio.current_time() + LAG_S
        await trio.sleep_until(due_at)
        storm.now.lag_s.append(trio.current_time() - due_at)


async def flip(storm: Storm, operator: TrackerClient, others: tuple[VersionId, VersionId]) -> None:
    """Move the channel to and fro, until cancelled."""
    revision = (await operator.show_channel(CHANNEL)).revision
    while True:
        await trio.sleep(FLIP_S)
        revision += 1
        storm.moved_at[revision] = trio.current_time()
        target = await operator.set_channel(CHANNEL, others[revision % 2].hex(), "benchmark")
        assert target.revision == revision, "a move that changed nothing measures nothing"


@dataclass
class TrackerProcess:
    """One `swarm-tracker serve` on a fixed port; started again it is the next boot."""

    directory: Path
    popen: subprocess.Popen[str] | None = None
    port: int = 0

    def start(self) -> str:
        """Its URL, once it serves."""
        key_file = self.directory / "key"
        if not key_file.exists():
            key_file.touch(0o600)
            key_file.write_text(f"swarm-cluster-key:1:{CLUSTER_KEY.hex()}\n")
        command = [
            sys.executable, "-m", "tracker", "serve", "--listen", f"127.0.0.1:{self.port}",
            "--store", f"sqlite://{self.directory}/tracker.db", "--cluster-key-file", str(key_file),
            "--log-level", "warning",
        ]  # fmt: skip
        self.popen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.popen.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.popen.stdout.readline())
        assert found is not None, "the tracker did not start"
        self.port = int(found[1])
        return found[0]

    def kill(self) -> None:
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait(TRACKER_START_S)
            assert self.popen.stdout is not None
            self.popen.stdout.close()
            self.popen = None

    def cpu_s(self) -> float:
        assert self.popen is not None
        fields = Path(f"/proc/{self.popen.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        assert self.popen is not None
        status = Path(f"/proc/{self.popen.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024


async def requests_answered(url: str) -> float:
    async with httpx.AsyncClient(trust_env=False, timeout=30.0) as web:
        page = (await web.get(f"{url}/metrics")).text
    counts = re.findall(r"^swarm_tracker_requests_total\{.*\} (\S+)$", page, re.MULTILINE)
    return sum(float(count) for count in counts)


@asynccontextmanager
async def phase(
    storm: Storm, tracker: TrackerProcess, url: str, results: dict[str, object], name: str
) -> AsyncIterator[None]:
    """Measure what the body waits for; the tracker is one process all the time."""
    storm.now = Latencies()
    answered = await requests_answered(url)
    began, cpu_s, own_cpu_s = trio.current_time(), tracker.cpu_s(), time.process_time()
    yield
    seen, storm.now = storm.now, Latencies()
    took_s = trio.current_time() - began
    own_cpu_s = time.process_time() - own_cpu_s
    requests = await requests_answered(url) - answered
    cpu_s = tracker.cpu_s() - cpu_s
    results[name] = {
        "seconds": round(took_s, 2),
        "requests": int(requests),
        "requests_per_s": round(requests / took_s, 1),
        "cpu_share": round(cpu_s / took_s, 3),
        "cpu_ms_per_request": round(1000 * cpu_s / max(requests, 1), 3),
        "report_ms": percentiles(seen.report_s),
        "event_to_listener_ms": percentiles(seen.event_s),
        "client_cpu_share": round(own_cpu_s / took_s, 3),
        "client_lag_ms": percentiles(seen.lag_s),
        "failed_calls": seen.failures,
        "rss_mib": round(tracker.rss_mib(), 1),
    }


def percentiles(seconds: list[float]) -> dict[str, float | int]:
    """p50, p99 and the worst in ms, and of how many."""
    ordered = sorted(seconds)
    if not ordered:
        return {"count": 0}
    last = len(ordered) - 1
    return {
        "count": len(ordered),
        "p50": round(1000 * ordered[last // 2], 1),
        "p99": round(1000 * ordered[round(0.99 * last)], 1),
        "max": round(1000 * ordered[last], 1),
    }


async def run_storm(
    directory: Path,
    agents: int,
    chunks: int,
    *,
    start_s: float = START_S,
    steady_s: float = STEADY_S,
) -> dict[str, object]:
    """All phases on a tracker whose files are below `directory`; what ``--json`` prints."""
    record, manifest = made_version(chunks=chunks)
    other, other_manifest = made_version(chunks=chunks)
    storm = Storm(record.version, chunks)
    tracker = TrackerProcess(directory)
    results: dict[str, object] = {
        "agents": agents,
        "chunks": chunks,
        "load_before": round(os.getloadavg()[0], 2),
    }
    try:
        url = await trio.to_thread.run_sync(tracker.start)
        operator = TrackerClient([url], key=CLUSTER_KEY)
        await operator.register_version(record, manifest)
        await operator.register_version(other, other_manifest)
        await operator.set_channel(CHANNEL, record.version.hex(), "benchmark")
        facts = [DownloadFacts(storm, random.Random(number)) for number in range(agents)]
        async with trio.open_nursery() as nursery:
            async with phase(storm, tracker, url, results, "start"):
                for number, said in enumerate(facts):
                    nursery.start_soon(live_one_agent, storm, url, number, said)
                nursery.start_soon(watch_lag, storm)
                await trio.sleep(start_s)
            async with phase(storm, tracker, url, results, "steady"), trio.open_nursery() as moves:
                moves.start_soon(flip, storm, operator, (other.version, record.version))
                await trio.sleep(steady_s)
                moves.cancel_scope.cancel()
            tracker.kill()
            await trio.to_thread.run_sync(tracker.start)
            async with phase(storm, tracker, url, results, "restart"):
                back_s = await all_are_back(operator, agents)
            results["back_s"] = round(back_s, 2)
            nursery.cancel_scope.cancel()
        await operator.aclose()
    finally:
        tracker.kill()
    results["load_after"] = round(os.getloadavg()[0], 2)
    return results


async def all_are_back(operator: TrackerClient, agents: int) -> float:
    """Seconds until the tracker knows every agent again."""
    began = trio.current_time()
    while len(await operator.peers()) < agents:
        assert trio.current_time() - began < RESTART_S, "agents have not come back"
        await trio.sleep(0.5)
    return trio.current_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--agents", type=int, default=500)
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        results = trio.run(partial(run_storm, Path(directory), given.agents, given.chunks))
    results["seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps(results, indent=None if given.json else 2))


if __name__ == "__main__":
    main()
