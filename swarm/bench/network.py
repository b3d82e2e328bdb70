"""What the network between machines gives an agent, from real pulls and their traces.

Three pulls of the payload, each by an agent of its own, each cut off after its time:

* one session, large chunks: the rate of one flow;
* one session, small chunks: the gap between chunks, and with the first one, what a chunk costs the
  processor beside its bytes;
* as a fleet would, from all peers: the rate of the card, what headers add, how unevenly flows
  share.
"""

from __future__ import annotations

import math
import resource
import socket
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import trio

from swarm.agent.agent import Agent
from swarm.agent.run import pull
from swarm.agent.settings import AgentSettings
from swarm.agent.status import VersionStatus
from swarm.agent.tcp_info import read_tcp_info
from swarm.bench.interfaces import Interface, interface_of
from swarm.bench.payload import Payload
from swarm.capacity.cold_start import VERIFIED, Attempt, Trace, parse_trace
from swarm.capacity.profile import AgentProfile, NetworkProfile
from swarm.errors import NotFoundError, StalledError, SwarmError
from swarm.protocol.ids import Address, VersionId

CONNECT_TIMEOUT_S = 3.0
CONNECT_COUNT = 5
SAMPLES_MIN = 8
"""Looks at a pull, a quarter of a second apart: two seconds tell a rate."""
SETTLED_SHARE = 0.2
"""Left out at both ends where flows are compared: they start and end one by one."""
SETTLED_COUNT_MIN = 8
"""Of fewer the deviation is itself uncertain by more than a quarter: 1 / sqrt(2 (n - 1))."""


@dataclass(frozen=True, slots=True)
class _Pulled:
    """One pull: its chunks that arrived, the processor time of this process, and what passed the
    interface meanwhile."""

    trace: Trace
    cpu_s: float
    interface_bytes: tuple[int, int] | None
    # (time, payload bytes received by then), at least one.
    samples: tuple[tuple[float, int], ...]

    @property
    def chunks(self) -> list[Attempt]:
        return [each for each in self.trace.attempts if each.outcome == VERIFIED]

    @property
    def bytes(self) -> int:
        return sum(chunk.bytes for chunk in self.chunks)

    @property
    def bytes_per_s(self) -> float | None:
        """While bytes came: from the first look that saw some to the last but one, or if it was too
        short for looks, from the first byte to the last."""
        moving = [b for a, b in pairwise(self.samples) if b[1] > a[1]][:-1]
        if len(moving) >= SAMPLES_MIN:
            (begun, before), (ended, after) = moving[0], moving[-1]
            return (after - before) / (ended - begun)
        first = [chunk.begun_s for chunk in self.chunks if chunk.begun_s is not None]
        last = [chunk.received_s for chunk in self.chunks if chunk.received_s is not None]
        if not first or not last or max(last) <= min(first):
            return None
        return self.bytes / (max(last) - min(first))


async def measure_network(
    settings: AgentSettings, payload: Payload, work: Path, limit_s: float
) -> tuple[NetworkProfile, AgentProfile, list[str]]:
    """`settings` name the peers and the key. Raises StalledError if no chunk came."""
    peers = settings.peers
    rtt_s = await trio.to_thread.run_sync(_round_trip_s, peers)
    interface = interface_of(peers[0])
    counter = None if interface is None or interface.is_loopback else interface
    alone = replace(settings, peers=peers[:1], session_count=1)
    flow = await _pull(alone, payload.large, work / "flow", limit_s, None)
    small = await _pull(alone, payload.small, work / "small", limit_s, None)
    card = await _pull(settings, payload.large, work / "card", limit_s, counter)
    headers, acknowledgements = _card_shares(card)
    notes = []
    if counter is None:
        notes.append("network.header_share: no card between the machines, not measured")
    if len(peers) < 2:
        notes.append("network.unevenness: needs two or more --peer, not measured")
    network = NetworkProfile(
        receive_bytes_per_s=card.bytes_per_s,
        flow_bytes_per_s=flow.bytes_per_s,
        rtt_s=rtt_s,
        header_share=headers,
        acknowledgement_share=acknowledgements,
        unevenness=_unevenness(card.chunks) if len(peers) > 1 else None,
    )
    chunk_core_s, payload_core_s_per_gb = _costs(flow, small)
    agent = AgentProfile(
        handshake_s=_median([s for each in (flow, small, card) for s in each.trace.handshakes_s]),
        chunk_gap_s=_gap_s(small.chunks),
        verify_s=_verify_s(small.chunks),
        chunk_core_s=chunk_core_s,
        payload_core_s_per_gb=payload_core_s_per_gb,
    )
    return network, agent, notes


async def _pull(
    settings: AgentSettings,
    version: VersionId,
    directory: Path,
    limit_s: float,
    counter: Interface | None,
) -> _Pulled:
    """Pull for at most `limit_s` and look at what came, and at what `counter` counted."""
    trace = directory.with_suffix(".trace")
    own = replace(settings, cache=directory, trace=trace, leave_grace_s=0.0)
    cpu_s = _cpu_s()
    before = counter.passed_bytes() if counter is not None else (0, 0)
    failure: SwarmError | None = None
    samples: list[tuple[float, int]] = []

    def look(agent: Agent, _status: VersionStatus | None, _waiting: str) -> None:
        samples.append((trio.current_time(), agent.network.bytes_in))

    with trio.move_on_after(limit_s):
        try:
            await pull(own, version.hex(), directory, watch=look)
        except StalledError as error:
            failure = error
    after = counter.passed_bytes() if counter is not None else (0, 0)
    cpu_s = _cpu_s() - cpu_s
    lines = trace.read_text(encoding="utf-8").splitlines() if trace.exists() else []
    if not any('"outcome":"verified"' in line for line in lines):
        names = ", ".join(map(str, settings.peers))
        raise StalledError(
            f"no chunk came from {names}" + (f": {failure.message}" if failure else ""),
            object_name=names,
            hint="run `swarm bench fleet --serve` there, with the same --size and key",
        )
    passed = (after[0] - before[0], after[1] - before[1]) if counter is not None else None
    return _Pulled(parse_trace(iter(lines), str(trace)), cpu_s, passed, tuple(samples))


def _round_trip_s(peers: Sequence[Address]) -> float:
    """The shortest that the kernel sees when it connects."""
    seen = []
    for _ in range(CONNECT_COUNT):
        for peer in peers:
            try:
                with socket.create_connection((peer.host, peer.port), CONNECT_TIMEOUT_S) as sock:
                    seen.append(read_tcp_info(sock).rtt_s)
            except OSError as error:
                raise NotFoundError(
                    f"nobody answers at {peer}: {error}",
                    object_name=str(peer),
                    hint="run `swarm bench fleet --serve` there",
                ) from error
    return min(seen)


def _card_shares(pulled: _Pulled) -> tuple[float | None, float | None]:
    """(headers, acknowledgements) over payload. A card that hands over what it has put together
    again counts few headers, but never fewer bytes than payload."""
    if pulled.interface_bytes is None:
        return None, None
    received, sent = pulled.interface_bytes
    # What came twice in the end game is payload too.
    payload = max(pulled.bytes, pulled.samples[-1][1])
    return max(received / payload - 1, 0.0), sent / payload


def _gap_s(chunks: Iterable[Attempt]) -> float | None:
    """The median pause between two chunks of one session."""
    sessions: defaultdict[tuple[str, int | None], list[Attempt]] = defaultdict(list)
    for chunk in chunks:
        if chunk.begun_s is not None and chunk.received_s is not None:
            sessions[chunk.source, chunk.session].append(chunk)
    gaps = []
    for session in sessions.values():
        session.sort(key=lambda chunk: chunk.begun_s or 0.0)
        for before, after in pairwise(session):
            assert before.received_s is not None
            assert after.begun_s is not None
            gaps.append(max(after.begun_s - before.received_s, 0.0))
    return _median(gaps)


def _verify_s(chunks: Iterable[Attempt]) -> float | None:
    took = [chunk.done_s - chunk.received_s for chunk in chunks if chunk.received_s is not None]
    return _median(took)


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _unevenness(chunks: Sequence[Attempt]) -> float | None:
    """How far the rates of single chunks are spread while all flows run. A weight that is even in
    its logarithm over [-ln(1 + u), ln(1 + u)] has a deviation of ln(1 + u) / sqrt(3)."""
    timed = [(c.begun_s, c.received_s, c.bytes) for c in chunks
             if c.begun_s is not None and c.received_s is not None]  # fmt: skip
    if not timed:
        return None
    last = max(received for _, received, _ in timed)
    settled = [
        math.log(count / (received - begun))
        for begun, received, count in timed
        if begun > SETTLED_SHARE * last
        and received < (1 - SETTLED_SHARE) * last
        and received > begun
    ]
    if len(settled) < SETTLED_COUNT_MIN:
        return None
    return math.exp(math.sqrt(3) * statistics.stdev(settled)) - 1


def _costs(large: _Pulled, small: _Pulled) -> tuple[float | None, float | None]:
    """(core seconds a chunk, core seconds a GB) of the same bytes in chunks of two sizes; None
    where the difference is lost in what else the process did."""
    small_bytes, large_bytes = (each.bytes / len(each.chunks) for each in (small, large))
    per_small = small.cpu_s / len(small.chunks)
    per_large = large.cpu_s / len(large.chunks)
    per_byte = (per_large - per_small) / (large_bytes - small_bytes)
    per_chunk = per_small - per_byte * small_bytes
    return (
        per_chunk if per_chunk > 0 else None,
        per_byte * 1e9 if per_byte > 0 else None,
    )


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def now_utc() -> str:
    """For `measured_at`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
