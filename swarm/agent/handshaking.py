"""Carries handshakes over connections: fresh nonces, deadlines, and the memory of who was proven.

The rules are the machine's (`swarm.protocol.handshake`); this keeps what outlives one connection:
the highest proven generation of each node, and how many handshakes ended for which reason."""

from __future__ import annotations

import os
from collections import Counter

import trio

from swarm.agent.frame_stream import LINK_FAULTS, FrameStream
from swarm.agent.network_settings import NetworkSettings
from swarm.protocol.codec import FRAME_BYTES_MAX
from swarm.protocol.frames import NONCE_BYTES
from swarm.protocol.handshake import Handshake, Rejection, Role
from swarm.protocol.ids import Address, Identity, NodeId
from swarm.protocol.messages import PROTOCOL_VERSION, Hello, LinkKind, RejectReason

NODES_REMEMBERED_MAX = 16_384
"""Generations kept; several times any fleet that one agent meets."""


class HandshakeRejectedError(Exception):
    """One side refused; `rejection` says which and why."""

    def __init__(self, rejection: Rejection) -> None:
        side = "we" if rejection.is_ours else "the peer"
        super().__init__(f"{side} refused: {rejection.reason.name}: {rejection.detail}")
        self.rejection = rejection


DIAL_FAULTS = (*LINK_FAULTS, HandshakeRejectedError)
"""All that ends a connection before or after its handshake."""


class HandshakeDesk:
    """One per agent."""

    def __init__(self, identity: Identity, key: bytes, settings: NetworkSettings) -> None:
        self.identity = identity
        # What peers are told; set when the listener is bound.
        self.address = Address("", 0)
        self.rejections: Counter[RejectReason] = Counter()
        self._key = key
        self._settings = settings
        self._generations: dict[NodeId, int] = {}

    async def open(
        self, stream: FrameStream, kind: LinkKind, expected: Identity | None
    ) -> tuple[Hello, float]:
        """As the side that dialled: the peer, and the round trip in seconds. `expected` None
        takes whoever is there."""
        machine = Handshake(
            Role.OPENER,
            self._hello(kind),
            self._key,
            highest_generation=self._highest_generation,
            expected=expected,
        )
        started_at = trio.current_time()
        peer = await self._carry(stream, machine)
        return peer, trio.current_time() - started_at

    async def accept(self, stream: FrameStream, refusal: tuple[RejectReason, str] | None) -> Hello:
        """As the side that was dialled; `refusal` turns the opener away after its Hello."""
        # The machine takes the kind from the opener.
        ours = self._hello(LinkKind.CONTROL)
        machine = Handshake(
            Role.ACCEPTOR, ours, self._key, highest_generation=self._highest_generation
        )
        if refusal is not None:
            with trio.fail_after(self._settings.handshake_timeout_s):
                await stream.receive()
                await stream.send(machine.refuse(*refusal))
            self._count(machine.rejection)
        return await self._carry(stream, machine)

    def _hello(self, kind: LinkKind) -> Hello:
        settings = self._settings
        return Hello(
            PROTOCOL_VERSION,
            kind,
            self.identity.node_id,
            self.identity.generation,
            os.urandom(NONCE_BYTES),
            self.address,
            settings.zone,
            settings.rack,
            settings.nic_bytes_per_s,
        )

    async def _carry(self, stream: FrameStream, machine: Handshake) -> Hello:
        """Raises HandshakeRejectedError, PeerProtocolError, LinkClosedError, OSError,
        trio.TooSlowError."""
        with trio.fail_after(self._settings.handshake_timeout_s):
            outgoing = machine.start()
            while True:
                if outgoing:
                    await stream.send(outgoing)
                if machine.is_over:
                    break
                outgoing = machine.receive(await stream.receive())
        if machine.peer is None:
            self._count(machine.rejection)
        assert machine.peer is not None
        stream.decoder.frame_bytes_max = FRAME_BYTES_MAX
        self._remember(machine.peer)
        return machine.peer

    def _count(self, rejection: Rejection | None) -> None:
        assert rejection is not None
        self.rejections[rejection.reason] += 1
        raise HandshakeRejectedError(rejection)

    def _highest_generation(self, node: NodeId) -> int:
        return self._generations.get(node, 0)

    def _remember(self, peer: Hello) -> None:
        if len(self._generations) >= NODES_REMEMBERED_MAX:
            # The oldest entry; a node met again enters anew.
            del self._generations[next(iter(self._generations))]
        known = self._generations.pop(peer.node_id, 0)
        self._generations[peer.node_id] = max(known, peer.generation)
