"""The node: one place where facts become orders.

Three doors: `handle` takes events and returns the commands they lead to, `next_deadline` says
when `TimerFired` is due at the latest, `statistics` describes. Each event is first recorded by the
part it concerns, then the node decides once for all: fill the sessions, read the origin where it
may, announce, dial. Nothing here waits, reads a clock or rolls global dice, so that the agent and
the simulator run the same node, and a story (the last few thousand steps) replays a bug.

Several versions share the neighbours, the upload slots and the NIC; bit fields, picking and leases
are per version, the version added first goes first.
"""

from __future__ import annotations

import math
import random
from collections import deque
from typing import assert_never

from swarm.policy.commands import Command
from swarm.policy.download import Download
from swarm.policy.endings import Endings
from swarm.policy.events import (
    BitfieldReceived,
    ChunkDamaged,
    ChunksRetracted,
    ChunkVerified,
    ClaimReceived,
    ConnectFailed,
    ControlEvent,
    Event,
    HandoutReceived,
    HavesReceived,
    LeasesReceived,
    LeaveRequested,
    ModeReceived,
    PeerConnected,
    PeerEvent,
    PeerLost,
    ProgressSampled,
    TimerFired,
    TrackerLost,
    TrackerRegained,
    TransferEvent,
    TransferFailed,
    TransferNearEnd,
    UploadEvent,
    VersionAdded,
    VersionRemoved,
)  # fmt: skip
from swarm.policy.gossip import Gossip
from swarm.policy.holdings import Holdings
from swarm.policy.leases import Leases
from swarm.policy.nic import NicEstimate
from swarm.policy.origin import OriginReads
from swarm.policy.peers import Neighbourhood
from swarm.policy.requests import Requests
from swarm.policy.settings import NodeSettings
from swarm.policy.statistics import NodeStatistics, node_statistics
from swarm.policy.transfers import TransferTable
from swarm.policy.uploads import Uploads
from swarm.protocol.ids import NodeId, VersionId

Step = tuple[float, tuple[Event, ...], tuple[Command, ...]]


class Node:
    """All decisions of one agent. Called by its agent (or simulator) alone, from one task."""

    def __init__(self, settings: NodeSettings, me: NodeId, rng: random.Random) -> None:
        self._settings = settings
        self._me = me
        # The parts append their commands here; `handle` empties it.
        self._orders: list[Command] = []
        orders = self._orders
        self._downloads: dict[VersionId, Download] = {}
        self._nic = NicEstimate(settings.nic_bytes_per_s, settings.link_bytes_per_s)
        self._table = TransferTable()
        self._neighbourhood = Neighbourhood(settings, me, rng, orders)
        self._holdings = Holdings(self._downloads, self._neighbourhood, orders)
        self._requests = Requests(
            settings, rng, self._downloads, self._neighbourhood, self._table, self._nic, orders
        )
        self._leases = Leases(
            settings, me, self._neighbourhood, self._table, self._requests.stripes, orders
        )
        self._origin = OriginReads(
            settings, me, rng, self._neighbourhood, self._table, self._nic, orders
        )
        self._endings = Endings(
            self._downloads,
            self._table,
            self._neighbourhood,
            self._holdings,
            self._requests,
            self._leases,
            self._origin,
        )
        self._uploads = Uploads(settings.upload_queue_count, self._neighbourhood, orders)
        self._gossip = Gossip(self._downloads, self._neighbourhood, self._uploads, orders)
        self._story: deque[Step] = deque(maxlen=settings.story_count)
        self._retune()

    # -- the three doors

    def handle(self, *events: Event, now: float) -> list[Command]:
        """Take in facts, oldest first, and return what to do about them, in this order."""
        for event in events:
            # Haves are eight events of ten, and a look at a union of ten classes costs more than
            # taking one in.
            if type(event) is HavesReceived:
                self._haves_received(event, now)
            elif isinstance(event, TransferEvent):
                self._transfer_event(event, now)
            elif isinstance(event, PeerEvent):
                self._peer_event(event, now)
            elif isinstance(event, UploadEvent):
                self._uploads.handle(event, self._downloads, now)
            else:
                self._control_event(event, now)
        self._decide(now)
        commands = self._orders.copy()
        self._orders.clear()
        self._story.append((now, events, tuple(commands)))
        return commands

    def next_deadline(self) -> float | None:
        """When `TimerFired` is due at the latest; None while only an event can change anything."""
        deadline = min(
            self._requests.fill_at,
            self._origin.act_at,
            self._neighbourhood.dial_at,
            self._neighbourhood.rewire_at,
            self._holdings.second_chance_at,
            self._uploads.doubt_ends_at,
        )
        for download in self._downloads.values():
            deadline = min(deadline, download.announce_at)
        return None if deadline == math.inf else deadline

    def statistics(self) -> NodeStatistics:
        """A snapshot as of the last event."""
        now = self._story[-1][0] if self._story else 0.0
        return node_statistics(
            self._downloads.values(),
            self._nic,
            self._neighbourhood,
            self._requests,
            self._uploads,
            self._origin,
            now,
        )

    def story(self) -> list[Step]:
        """The last steps, oldest first: an instant, its events, the commands they led to."""
        return list(self._story)

    def check_invariants(self) -> None:
        """Everything that must hold between two events; for tests and sampled checks."""
        assert not self._orders
        for download in self._downloads.values():
            download.check_invariants()
        self._table.check_invariants()
        self._neighbourhood.check_invariants()
        self._holdings.check_invariants()
        self._requests.check_invariants()
        self._leases.check_invariants(self._downloads.values())
        self._uploads.check_invariants()

    # -- transfers

    def _transfer_event(self, event: TransferEvent, now: float) -> None:
        match event:
            case ChunkVerified():
                self._endings.verified(event, now)
                self._wake(now)
            case TransferNearEnd():
                transfer = self._table.live.get(event.transfer)
                if transfer is not None:
                    self._requests.near_end(transfer, now)
            case ProgressSampled():
                self._progress_sampled(event, now)
            case TransferFailed():
                self._endings.failed(event, now)
                self._wake(now)
            case ChunkDamaged():
                self._chunk_damaged(event, now)
            case _:
                assert_never(event)

    def _wake(self, now: float) -> None:
        """Something changed that may fill a session or need the origin."""
        self._requests.wake(now)
        self._origin.act_at = now

    def _progress_sampled(self, event: ProgressSampled, now: float) -> None:
        is_busy = bool(self._table.live) or self._uploads.active_count > 0
        has_changed = self._nic.sample(event.bytes_in, event.bytes_out, is_busy=is_busy, now=now)
        uplink = self._nic.bytes_per_s if self._nic.is_known else 0.0
        largest = max((download.chunk_bytes for download in self._downloads.values()), default=0)
        self._uploads.sampled(event.bytes_out, uplink, largest, now)
        self._requests.sample(event.received, now)
        if has_changed:
            self._retune()
        self._requests.wake(now)

    def _chunk_damaged(self, event: ChunkDamaged, now: float) -> None:
        download = self._downloads.get(event.version)
        if download is None or not download.held >> event.chunk & 1:
            return
        download.lose(event.chunk, now)
        self._uploads.forget(event.version, event.chunk)
        self._gossip.retract(download, event.chunk)
        self._wake(now)

    # -- peers

    def _peer_event(self, event: PeerEvent, now: float) -> None:
        match event:
            case HavesReceived():
                self._haves_received(event, now)
            case BitfieldReceived():
                self._bitfield_received(event, now)
            case ChunksRetracted():
                self._chunks_retracted(event)
            case ClaimReceived():
                download = self._downloads.get(event.version)
                self._requests.rack.heard(event, download, now)
            case HandoutReceived():
                self._neighbourhood.learn(event.peers, now)
                self._origin.act_at = now
            case PeerConnected():
                self._peer_connected(event, now)
            case ConnectFailed():
                self._neighbourhood.connect_failed(event, now)
                self._origin.act_at = now
            case PeerLost():
                self._peer_lost(event, now)
            case _:
                assert_never(event)

    def _haves_received(self, event: HavesReceived, now: float) -> None:
        link = self._neighbourhood.links.get(event.peer)
        if link is None:
            return
        link.hear_load(event.load, now)
        if self._holdings.add(link, event.version, event.bits):
            self._requests.go_on_with(link, now)
            self._requests.wake(now)

    def _bitfield_received(self, event: BitfieldReceived, now: float) -> None:
        link = self._neighbourhood.links.get(event.peer)
        if link is None:
            return
        link.hear_load(event.load, now)
        self._holdings.replace(link, event.version, event.bits)
        self._gossip.joined(link, event.version)
        self._requests.go_on_with(link, now)
        self._requests.wake(now)

    def _chunks_retracted(self, event: ChunksRetracted) -> None:
        """No bits mean the whole version."""
        link = self._neighbourhood.links.get(event.peer)
        if link is None:
            return
        if event.bits:
            self._holdings.remove(link, event.version, event.bits)
            self._gossip.retracted(link, event.version, event.bits)
        else:
            self._holdings.forget(link, event.version)

    def _peer_connected(self, event: PeerConnected, now: float) -> None:
        if event.peer.node_id in self._neighbourhood.links:
            self._peer_lost(PeerLost(event.peer.node_id, is_clean=False), now)
        link = self._neighbourhood.connected(event, now)
        if link is not None:
            self._retune()
            self._gossip.connected(link)
        self._origin.act_at = now

    def _peer_lost(self, event: PeerLost, now: float) -> None:
        link = self._neighbourhood.lost(event, now)
        if link is None:
            return
        self._holdings.forget_all(link)
        self._requests.peer_gone(event.peer)
        self._uploads.close_peer(event.peer)
        self._retune()
        self._wake(now)

    # -- versions, tracker, leaving

    def _control_event(self, event: ControlEvent, now: float) -> None:
        match event:
            case TimerFired():
                return
            case VersionAdded():
                self._version_added(event, now)
            case VersionRemoved():
                self._version_removed(event)
            case LeasesReceived():
                download = self._downloads.get(event.version)
                if download is not None:
                    download.is_zoned = event.is_zoned
                    for transfer in self._leases.received(event, download, now):
                        self._requests.cancel(transfer)
            case ModeReceived():
                self._mode_received(event)
            case TrackerLost():
                self._origin.is_tracker_lost = self._requests.zones.is_tracker_lost = True
            case TrackerRegained():
                self._origin.is_tracker_lost = self._requests.zones.is_tracker_lost = False
            case LeaveRequested():
                self._leave()
            case _:
                assert_never(event)
        self._wake(now)

    def _version_added(self, event: VersionAdded, now: float) -> None:
        assert event.version not in self._downloads
        download = Download(event.version, event.lengths, event.have_bits, self._settings, now)
        self._downloads[event.version] = download
        self._holdings.adopt(download)
        self._gossip.version_added(download)

    def _version_removed(self, event: VersionRemoved) -> None:
        download = self._downloads.pop(event.version, None)
        if download is None:
            return
        for transfer in list(self._table.live.values()):
            if transfer.download is download:
                self._leases.give_back(transfer)
                self._requests.cancel(transfer)
        self._uploads.forget(event.version)
        self._origin.forget(event.version)
        self._requests.forget(event.version)
        self._gossip.retract_all(download)

    def _mode_received(self, event: ModeReceived) -> None:
        download = self._downloads.get(event.version)
        if download is None:
            return
        download.mode = event.mode
        if download.takes_from_origin:
            return
        # Chunks from peers may finish, whatever the mode: they cost nothing more.
        for transfer in list(self._table.live.values()):
            if transfer.download is download and transfer.session is None:
                self._leases.give_back(transfer)
                self._requests.cancel(transfer)

    def _leave(self) -> None:
        """Finish what runs; start and serve nothing new."""
        self._requests.leave()
        self._leases.is_leaving = True
        self._origin.is_leaving = True
        self._neighbourhood.is_leaving = True
        self._uploads.leave()
        self._gossip.leave()

    # -- deciding

    def _decide(self, now: float) -> None:
        """One pass over what is due; each part notes its own next deadline."""
        if self._holdings.second_chance_at <= now:
            self._holdings.give_second_chances(now)
            self._requests.wake(now)
        if self._uploads.doubt_ends_at <= now:
            for version, chunk in self._uploads.end_doubts(now):
                self._gossip.announce_again(version, chunk)
        if self._requests.fill_at <= now:
            self._requests.fill(now)
        if self._origin.act_at <= now:
            self._origin.act(self._downloads.values(), now, self._requests.rest_until)
        for download in self._downloads.values():
            if download.announce_at <= now:
                self._gossip.announce(download, now)
        if self._neighbourhood.dial_at <= now:
            self._neighbourhood.dial(now)
        if self._neighbourhood.rewire_at <= now:
            self._neighbourhood.rewire(self._holdings.useless(), now)

    def _retune(self) -> None:
        """Take in a new NIC estimate or other neighbours: sessions each way."""
        self._requests.retune()
        self._uploads.resize(self._requests.upload_slots())
