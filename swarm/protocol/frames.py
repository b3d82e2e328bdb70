"""Which number and which fields each message has on the wire, in both directions.

One `case` writes a message, one reader reads it. The first field of Hello (the protocol number) and
both fields of Reject keep their place in every protocol, so that two agents of different protocols
can still say why they part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from swarm.errors import PeerProtocolError
from swarm.protocol.fields import (
    DETAIL_CHARACTERS_MAX,
    LABEL_CHARACTERS_MAX,
    FieldReader,
    pack_chunks,
)
from swarm.protocol.ids import NODE_ID_BYTES, Address, NodeId, SessionId
from swarm.protocol.manifest import CHUNKS_MAX
from swarm.protocol.messages import (
    PROTOCOL_VERSION,
    BadChunk,
    Bitfield,
    Bye,
    Cancel,
    Chunk,
    Claim,
    Document,
    DocumentKind,
    DocumentRequest,
    Have,
    Hello,
    LinkKind,
    Message,
    PeerInfo,
    Peers,
    Ping,
    Proof,
    Refuse,
    RefuseReason,
    Reject,
    RejectReason,
    Request,
    Retract,
)

PEERS_MAX = 64
"""Entries of a Peers frame."""
NONCE_BYTES = 16
MAC_BYTES = 32
STRIPES_MAX = 64
"""A 100 Gbit/s slot over flows of 5 Gbit/s takes 20."""
CHUNK_BYTES_MAX = 1 << 32
"""Above any chunk size that can be published (256 MiB), below any overflow."""


def fields_of(message: Message) -> list[object]:
    """The frame's list: type number, then fields."""
    match message:
        case Have(version, chunks, load):
            return [17, version, pack_chunks(chunks), load]
        case Request():
            return [32, message.session, message.stripe, message.stripes, message.version,
                    message.chunk, message.offset, message.length]  # fmt: skip
        case Chunk(session, version, chunk, offset, length):
            return [33, session, version, chunk, offset, length]
        case Refuse(session, version, chunk, reason, load):
            return [34, session, version, chunk, int(reason), load]
        case Cancel(session, version, chunk):
            return [35, session, version, chunk]
        case Ping(token, is_reply):
            return [5, token, is_reply]
        case Bitfield(version, chunk_count, bits, load):
            return [16, version, chunk_count, bits, load]
        case Retract(version, chunks):
            return [18, version, pack_chunks(chunks)]
        case Claim(version, chunk):
            return [19, version, chunk]
        case BadChunk(version, chunk):
            return [20, version, chunk]
        case Peers(peers):
            return [21, [_peer_fields(peer) for peer in peers]]
        case DocumentRequest(version, kind, offset):
            return [36, version, int(kind), offset]
        case Document(version, kind, offset, total_bytes, page):
            return [37, version, int(kind), offset, total_bytes, page]
        case Hello():
            return [1, *hello_fields(message)]
        case Proof(mac):
            return [2, mac]
        case Reject(reason, detail):
            return [3, int(reason), detail[:DETAIL_CHARACTERS_MAX]]
        case Bye(detail):
            return [4, detail[:DETAIL_CHARACTERS_MAX]]


def hello_fields(hello: Hello) -> list[object]:
    """A Hello's fields in wire order; the handshake's MAC covers exactly these."""
    return [
        hello.protocol, int(hello.kind), hello.node_id, hello.generation, hello.nonce,
        hello.address.host, hello.address.port, hello.zone, hello.rack, hello.nic_bytes_per_s,
    ]  # fmt: skip


def _peer_fields(peer: PeerInfo) -> list[object]:
    return [peer.node_id, peer.generation, peer.address.host, peer.address.port, peer.zone,
            peer.rack]  # fmt: skip


def _read_hello(fields: FieldReader) -> Hello:
    protocol = fields.uint()
    if protocol != PROTOCOL_VERSION:
        # Its other fields are another protocol's business; the number is all a Reject needs.
        nobody = NodeId(bytes(NODE_ID_BYTES))
        nowhere = Address("", 0)
        return Hello(protocol, LinkKind.CONTROL, nobody, 0, bytes(NONCE_BYTES), nowhere, "", "", 0)
    return Hello(
        protocol,
        _read_kind(fields),
        fields.node_id(),
        fields.uint(),
        fields.raw(exactly=NONCE_BYTES),
        fields.address(),
        fields.text(LABEL_CHARACTERS_MAX),
        fields.text(LABEL_CHARACTERS_MAX),
        fields.uint(),
    )


def _read_kind(fields: FieldReader) -> LinkKind:
    number = fields.uint()
    try:
        return LinkKind(number)
    except ValueError:
        raise PeerProtocolError(f"Hello: no link kind {number}") from None


def _read_document_kind(fields: FieldReader) -> DocumentKind:
    number = fields.uint()
    try:
        return DocumentKind(number)
    except ValueError:
        raise PeerProtocolError(f"no document kind {number}") from None


def _read_reject(fields: FieldReader) -> Reject:
    number = fields.uint()
    known = number in RejectReason.__members__.values()
    reason = RejectReason(number) if known else RejectReason.OTHER
    return Reject(reason, fields.text(DETAIL_CHARACTERS_MAX))


def _read_bitfield(fields: FieldReader) -> Bitfield:
    version, count, bits = fields.version(), fields.uint(CHUNKS_MAX), fields.blob()
    if len(bits) != (count + 7) // 8 or (count % 8 and bits[-1] >> (count % 8)):
        raise PeerProtocolError(f"Bitfield: {len(bits)} bytes do not fit {count} chunks")
    return Bitfield(version, count, bits, fields.uint())


def _read_peers(fields: FieldReader) -> Peers:
    return Peers(tuple(map(_read_peer, fields.rows(PEERS_MAX))))


def _read_peer(row: Sequence[object]) -> PeerInfo:
    fields = FieldReader(row, "Peers", skip=0)
    return PeerInfo(
        fields.node_id(),
        fields.uint(),
        fields.address(),
        fields.text(LABEL_CHARACTERS_MAX),
        fields.text(LABEL_CHARACTERS_MAX),
    )


def _read_request(fields: FieldReader) -> Request:
    session, stripe, stripes = _read_session(fields), fields.uint(), fields.uint(STRIPES_MAX)
    if stripe >= stripes:
        raise PeerProtocolError(f"Request: stripe {stripe} of {stripes}")
    version, chunk = fields.version(), fields.chunk()
    return Request(session, stripe, stripes, version, chunk, *_read_range(fields, "Request"))


def _read_range(fields: FieldReader, what: str) -> tuple[int, int]:
    offset, length = fields.uint(CHUNK_BYTES_MAX), fields.uint(CHUNK_BYTES_MAX)
    if length == 0 or offset + length > CHUNK_BYTES_MAX:
        raise PeerProtocolError(f"{what}: {length} bytes at {offset}")
    return offset, length


def _read_chunk(fields: FieldReader) -> Chunk:
    session, version, chunk = _read_session(fields), fields.version(), fields.chunk()
    return Chunk(session, version, chunk, *_read_range(fields, "Chunk"))


def _read_refuse(fields: FieldReader) -> Refuse:
    session, version, chunk = _read_session(fields), fields.version(), fields.chunk()
    number = fields.uint()
    known = number in RefuseReason.__members__.values()
    reason = RefuseReason(number) if known else RefuseReason.OTHER
    return Refuse(session, version, chunk, reason, fields.uint())


def _read_session(fields: FieldReader) -> SessionId:
    return SessionId(fields.uint())


READERS: dict[int, tuple[str, Callable[[FieldReader], Message]]] = {
    1: ("Hello", _read_hello),
    2: ("Proof", lambda fields: Proof(fields.raw(exactly=MAC_BYTES))),
    3: ("Reject", _read_reject),
    4: ("Bye", lambda fields: Bye(fields.text(DETAIL_CHARACTERS_MAX))),
    5: ("Ping", lambda fields: Ping(fields.uint(), fields.flag())),
    16: ("Bitfield", _read_bitfield),
    17: ("Have", lambda fields: Have(fields.version(), fields.chunks(), fields.uint())),
    18: ("Retract", lambda fields: Retract(fields.version(), fields.chunks())),
    19: ("Claim", lambda fields: Claim(fields.version(), fields.chunk())),
    20: ("BadChunk", lambda fields: BadChunk(fields.version(), fields.chunk())),
    21: ("Peers", _read_peers),
    32: ("Request", _read_request),
    33: ("Chunk", _read_chunk),
    34: ("Refuse", _read_refuse),
    35: ("Cancel", lambda fields: Cancel(_read_session(fields), fields.version(), fields.chunk())),
    36: (
        "DocumentRequest",
        lambda fields: DocumentRequest(
            fields.version(), _read_document_kind(fields), fields.uint()
        ),
    ),
    37: (
        "Document",
        lambda fields: Document(
            fields.version(),
            _read_document_kind(fields),
            fields.uint(),
            fields.uint(),
            fields.blob(),
        ),
    ),
}
"""Numbers 1–15 both kinds of link, 16–31 control links, 32–47 data links. Never given twice."""
