"""Who is there: the first frames of every connection, as a pure machine for both ends.

The opener sends Hello; the other side answers Hello and Proof in one go; the opener sends its Proof
and may send requests right behind it. One round trip for the opener, one and a half for the other.

A Proof is BLAKE3, keyed with the 32-byte cluster key, over a domain string, the prover's role and
every field of both Hellos: protocol number, link kind, node ids, generations, fresh nonces,
addresses. So a Proof is worth nothing on another connection, in the other direction, for another
kind of link, or beside an altered Hello; and the key never travels. What a newer peer appends to a
Hello within this protocol number is not covered, and therefore not trusted either.

Refused, each with its own reason, in the order of the checks: another protocol number (both are
named, whatever the rest of that Hello looks like), ourselves under another address, another link
kind than the opener meant, a node other than the one we dialled, an agent older than one we have
proof of, a wrong key. The shell adds what only it can know (a duplicate link, no room, leaving)
with `refuse`.
"""

from __future__ import annotations

import dataclasses
import enum
import hmac
from collections.abc import Callable
from dataclasses import dataclass

import msgpack
from blake3 import blake3

from swarm.errors import PeerProtocolError
from swarm.protocol.frames import hello_fields
from swarm.protocol.ids import Identity, NodeId
from swarm.protocol.messages import PROTOCOL_VERSION, Hello, Message, Proof, Reject, RejectReason

MAC_DOMAIN = b"weight swarm: agent link handshake"


class Role(enum.IntEnum):
    """Which end of the connection we are."""

    OPENER = 1
    ACCEPTOR = 2

    @property
    def other(self) -> Role:
        return Role.ACCEPTOR if self is Role.OPENER else Role.OPENER


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a handshake came to nothing."""

    reason: RejectReason
    detail: str
    # We refused; otherwise the peer did.
    is_ours: bool


class Handshake:
    """One connection's handshake. Driven by its owner: `start`, then `receive` for each message,
    sending what they return, until `is_over`."""

    __slots__ = (
        "_expected",
        "_highest_generation",
        "_key",
        "_ours",
        "_role",
        "_theirs",
        "peer",
        "rejection",
    )

    def __init__(
        self,
        role: Role,
        ours: Hello,
        key: bytes,
        *,
        highest_generation: Callable[[NodeId], int],
        expected: Identity | None = None,
    ) -> None:
        """`highest_generation` says which generation of a node we have had proof of (0: none).
        `expected` is whom an opener means to reach; None takes whoever is there."""
        self._role = role
        self._ours = ours
        self._key = key
        self._highest_generation = highest_generation
        self._expected = expected
        self._theirs: Hello | None = None
        # The peer's Hello, once its Proof fits.
        self.peer: Hello | None = None
        self.rejection: Rejection | None = None

    @property
    def is_over(self) -> bool:
        return self.peer is not None or self.rejection is not None

    def start(self) -> list[Message]:
        """What to send before anything is received."""
        return [self._ours] if self._role is Role.OPENER else []

    def receive(self, message: Message) -> list[Message]:
        """What to send in answer. Raises PeerProtocolError on a message that has no place here."""
        assert not self.is_over
        match message:
            case Reject(reason, detail):
                self.rejection = Rejection(reason, detail, is_ours=False)
                return []
            case Hello() if self._theirs is None:
                return self._hello_received(message)
            case Proof(mac) if self._theirs is not None:
                return self._proof_received(self._theirs, mac)
            case _:
                raise PeerProtocolError(f"{type(message).__name__} in the handshake")

    def refuse(self, reason: RejectReason, detail: str) -> list[Message]:
        """End it for a reason of ours; what to send."""
        self.rejection = Rejection(reason, detail, is_ours=True)
        return [Reject(reason, detail)]

    def _hello_received(self, theirs: Hello) -> list[Message]:
        objection = self._objection(theirs)
        if objection is not None:
            return self.refuse(*objection)
        self._theirs = theirs
        if self._role is Role.OPENER:
            return []
        # The opener says what the link is for.
        self._ours = dataclasses.replace(self._ours, kind=theirs.kind)
        return [self._ours, self._proof(theirs)]

    def _proof_received(self, theirs: Hello, mac: bytes) -> list[Message]:
        if not hmac.compare_digest(mac, self._mac(self._role.other, theirs)):
            return self.refuse(
                RejectReason.WRONG_KEY, "the other side has another cluster key; compare the files"
            )
        self.peer = theirs
        return [self._proof(theirs)] if self._role is Role.OPENER else []

    def _objection(self, theirs: Hello) -> tuple[RejectReason, str] | None:
        ours = self._ours
        if theirs.protocol != PROTOCOL_VERSION:
            return (
                RejectReason.PROTOCOL_VERSION,
                f"we speak protocol {PROTOCOL_VERSION}, the other side {theirs.protocol}",
            )
        if theirs.node_id == ours.node_id:
            return RejectReason.SELF, "this is the same node: itself, or a copy of its cache"
        if self._role is Role.OPENER and theirs.kind is not ours.kind:
            return RejectReason.OTHER, f"asked for {ours.kind.name}, got {theirs.kind.name}"
        if self._expected is not None and theirs.node_id != self._expected.node_id:
            return (
                RejectReason.WRONG_NODE,
                f"dialled {self._expected.node_id.hex()}, met {theirs.node_id.hex()}",
            )
        highest = self._highest_generation(theirs.node_id)
        if self._expected is not None:
            highest = max(highest, self._expected.generation)
        if theirs.generation < highest:
            return (
                RejectReason.STALE_GENERATION,
                f"generation {theirs.generation} of a node whose generation {highest} is known",
            )
        return None

    def _proof(self, theirs: Hello) -> Proof:
        return Proof(self._mac(self._role, theirs))

    def _mac(self, role: Role, theirs: Hello) -> bytes:
        pair = (self._ours, theirs) if self._role is Role.OPENER else (theirs, self._ours)
        transcript: bytes = msgpack.packb(
            [MAC_DOMAIN, int(role), hello_fields(pair[0]), hello_fields(pair[1])]
        )
        return blake3(transcript, key=self._key).digest()
