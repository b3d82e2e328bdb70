"""The control link: one per neighbour pair, for everything that is said between neighbours.

Frames are read by `control_reader`, for all links together, and become events. Writing is
immediate: a frame goes to the kernel in the call that orders it, and only what the kernel does not
take waits in a bounded buffer for the writing task. So an announcement to eleven neighbours costs
eleven system calls and wakes nobody.

A peer that is silent is pinged; one that stays silent, or does not read what we say, is dropped.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from swarm.agent.control_reader import ControlReader
from swarm.agent.frame_stream import LINK_FAULTS, FrameStream, LinkClosedError, run_until_fault
from swarm.errors import PeerProtocolError
from swarm.policy.events import (
    BadChunkReported,
    BitfieldReceived,
    ChunksRetracted,
    ClaimReceived,
    Event,
    HavesReceived,
)
from swarm.protocol.chunk_set import bits_of
from swarm.protocol.codec import encode
from swarm.protocol.ids import ChunkIndex, NodeId, VersionId
from swarm.protocol.messages import (
    BadChunk,
    Bitfield,
    Bye,
    Claim,
    Have,
    Message,
    PeerInfo,
    Peers,
    Ping,
    Reject,
    Retract,
)

READ_BYTES = 64 * 1024
"""Several batches of news in one system call."""
UNSENT_BYTES_MAX = 4 << 20
"""News for minutes; a peer that far behind does not read."""
SILENT_PINGS = 3
"""Unanswered, after which a peer counts as gone."""
FEW_CHUNKS = 16
"""Up to here a bit set is built bit by bit, beyond it byte by byte, which is linear."""


class PeerLink:
    """One neighbour. Made when the handshake is over."""

    def __init__(
        self,
        stream: FrameStream,
        peer: PeerInfo,
        reader: ControlReader,
        *,
        is_outgoing: bool,
        emit: Callable[[Event], None],
        on_peers: Callable[[NodeId, tuple[PeerInfo, ...]], None],
        version_chunks: Callable[[VersionId], int],
    ) -> None:
        """`version_chunks` says how many chunks a version has; 0 if it is not known here."""
        self.peer = peer
        self.is_outgoing = is_outgoing
        self.is_closed = False
        # The peer said Bye, or we closed the link.
        self.is_clean = False
        self._stream = stream
        self._reader = reader
        # What ended the link.
        self._fault: Exception | None = None
        self._ended = trio.Event()
        self._emit = emit
        self._on_peers = on_peers
        self._version_chunks = version_chunks
        self._unsent = bytearray()
        self._has_unsent = trio.Event()
        self._heard_at = trio.current_time()
        self._pinged_at = self._heard_at

    # ---- immediate

    def send(self, message: Message) -> None:
        self.send_frame(encode(message))

    def send_frame(self, frame: bytes) -> None:
        """An encoded message, as one of several neighbours gets it."""
        if self.is_closed:
            return
        if not self._unsent:
            frame = frame[self._send_some(frame) :]
        if frame:
            self._unsent += frame
            self._has_unsent.set()
            if len(self._unsent) > UNSENT_BYTES_MAX:
                self._end(PeerProtocolError("does not read what we say"))

    def close(self, last_words: Message) -> None:
        """Say why and go; what the kernel does not take at once is not said."""
        if not self.is_closed:
            self.send(last_words)
            self.is_clean = True
            self._end(LinkClosedError())

    def tick(self, now: float, ping_interval_s: float) -> None:
        """Every second or so: ping who is silent, drop who stays silent."""
        if self.is_closed:
            return
        silent_s = now - self._heard_at
        if silent_s >= SILENT_PINGS * ping_interval_s:
            self._end(TimeoutError(f"silent for {silent_s:.1f} s"))
        elif silent_s >= ping_interval_s and now - self._pinged_at >= ping_interval_s:
            self._pinged_at = now
            self.send(Ping(0, is_reply=False))

    def _send_some(self, data: bytes | bytearray) -> int:
        try:
            return self._stream.sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._end(error)
            return len(data)

    def _end(self, fault: Exception) -> None:
        """The link is over; `run` raises the first fault."""
        if not self.is_closed:
            self.is_closed = True
            self._fault = fault
            self._reader.remove(self._stream.fd)
            self._stream.close()
            self._ended.set()

    # ---- the link's own task

    async def run(self) -> None:
        """Until the link ends, by whatever; raises it."""
        if not self.is_closed:
            self._reader.add(self._stream.fd, self._read)
            # What came in right behind the handshake.
            self._take_in(b"")
        try:
            await run_until_fault(self._wait_ended, self._write_forever)
        finally:
            self._end(LinkClosedError())

    def _read(self) -> None:
        try:
            data = self._stream.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error)
            return
        if data:
            self._take_in(data)
        else:
            self._end(LinkClosedError())

    def _take_in(self, data: bytes) -> None:
        decoder = self._stream.decoder
        try:
            decoder.receive_data(data)
            while not self.is_closed and (message := decoder.next_message()) is not None:
                self._handle(message)
        except LINK_FAULTS as error:
            self._end(error)

    async def _wait_ended(self) -> None:
        await self._ended.wait()
        assert self._fault is not None
        raise self._fault

    async def _write_forever(self) -> None:
        while True:
            await self._has_unsent.wait()
            self._has_unsent = trio.Event()
            while self._unsent:
                await self._stream.wait_writable()
                del self._unsent[: self._send_some(self._unsent)]

    def _handle(self, message: Message) -> None:
        self._heard_at = trio.current_time()
        peer = self.peer.node_id
        match message:
            case Have(version, chunks, load):
                self._emit(HavesReceived(peer, version, chunk_bits(chunks), load))
            case Bitfield(version, _, bits, load):
                self._emit(BitfieldReceived(peer, version, int.from_bytes(bits, "little"), load))
            case Retract(version, chunks):
                gone = chunk_bits(chunks) if chunks else (1 << self._version_chunks(version)) - 1
                self._emit(ChunksRetracted(peer, version, gone))
            case Claim(version, chunk):
                self._emit(ClaimReceived(peer, version, chunk))
            case BadChunk(version, chunk):
                self._emit(BadChunkReported(peer, version, chunk))
            case Peers(peers):
                self._on_peers(peer, peers)
            case Ping(token, is_reply):
                if not is_reply:
                    self.send(Ping(token, is_reply=True))
            case Bye() | Reject():
                # Reject after the handshake: the peer keeps another link to us instead.
                self.is_clean = True
                raise LinkClosedError
            case _:
                # Frames of data links have no meaning here.
                pass


def chunk_bits(chunks: tuple[ChunkIndex, ...]) -> int:
    """The integer whose set bits are `chunks`; linear in the number and the highest of them."""
    if len(chunks) <= FEW_CHUNKS:
        return bits_of(chunks)
    table = bytearray(max(chunks) // 8 + 1)
    for chunk in chunks:
        table[chunk >> 3] |= 1 << (chunk & 7)
    return int.from_bytes(table, "little")
