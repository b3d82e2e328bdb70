"""Who asks the tracker, and whether the tracker itself answers.

Every request carries one header::

    Authorization: Swarm role=agent,node=<32 hex>,generation=7,time=<ms since 1970>,
                   nonce=<32 hex>,mac=<64 hex>

The MAC is keyed BLAKE3 over protocol, role, node, generation, method, target with query, the digest
of the body as sent, time and nonce; each part with its length in front, so that no two requests say
the same. A reply's MAC covers the request's nonce, the status and the raw body, so that an old or
another's reply is worth nothing. Neither needs TLS to be authentic; TLS adds secrecy.

**Replay.** Time is judged within ±300 s on receipt. An agent's nonce begins with a counter that
grows with each request of its generation: `ReplayWindow` keeps the last 64. Operators have no
generation, so the tracker remembers their nonces for 10 minutes, which is as long as a time stamp
can stay valid. What a tracker forgets at a restart is an agent's window, and a report replayed then
has an old sequence number.

**Keys.** One secret of 32 bytes per file; each role gets its own key, derived from it, so that a
request of an agent cannot be turned into one of an operator. Without an operator token the cluster
key serves both.
"""

from __future__ import annotations

import enum
import hmac
import re
from dataclasses import dataclass

from blake3 import blake3

from swarm.errors import AuthError
from swarm.protocol.ids import NODE_ID_BYTES, Identity, NodeId
from swarm.protocol.keys import KEY_BYTES
from swarm.protocol.messages import PROTOCOL_VERSION

NONCE_BYTES = 16
CLOCK_SKEW_MS_MAX = 300_000
"""Twice what NTP trouble usually costs; half of what operator nonces are kept for."""
OPERATOR_NONCE_KEPT_S = 600.0
WINDOW = 64
"""An agent has at most three requests under way; 64 is one machine word."""

AUTHORIZATION = "authorization"
REPLY_MAC = "swarm-mac"
"""Names of the two headers, as `Request.headers` has them."""

_COUNTER_BYTES = 8
_SCHEME = re.compile(
    r"Swarm role=(agent|operator),node=([0-9a-f]{32}),generation=([0-9]{1,18}),"
    r"time=([0-9]{1,18}),nonce=([0-9a-f]{32}),mac=([0-9a-f]{64})?"
)
_REPLY_CONTEXT = b"weightswarm reply"
_REQUEST_CONTEXT = b"weightswarm request"


class Role(enum.Enum):
    """What a request may do."""

    AGENT = "agent"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the header says beside the MAC."""

    role: Role
    identity: Identity
    # By the sender's clock, in ms since 1970.
    sent_at_ms: int
    nonce: bytes

    @property
    def counter(self) -> int:
        """Of an agent: which request of its generation this is."""
        return int.from_bytes(self.nonce[:_COUNTER_BYTES], "big")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A parsed header; not proven yet."""

    stamp: Stamp
    # Empty when the sender has no key.
    mac: bytes


def role_key(secret: bytes, role: Role) -> bytes:
    """The key of a role, derived from the secret of a file."""
    assert len(secret) == KEY_BYTES, len(secret)
    context = f"weightswarm 2026-11-30 tracker requests of role {role.value}"
    return blake3(secret, derive_key_context=context).digest()


def agent_nonce(counter: int, random_bytes: bytes) -> bytes:
    """A nonce that carries a counter in front."""
    nonce = counter.to_bytes(_COUNTER_BYTES, "big") + random_bytes
    assert len(nonce) == NONCE_BYTES, len(nonce)
    return nonce


def request_mac(key: bytes, stamp: Stamp, method: str, target: str, body: bytes) -> bytes:
    """The MAC of a request; `target` is what stands in the request line."""
    return _mac(
        key,
        _REQUEST_CONTEXT,
        PROTOCOL_VERSION.to_bytes(2, "big"),
        stamp.role.value.encode(),
        stamp.identity.node_id,
        stamp.identity.generation.to_bytes(8, "big"),
        method.encode(),
        target.encode(),
        blake3(body).digest(),
        stamp.sent_at_ms.to_bytes(8, "big"),
        stamp.nonce,
    )


def reply_mac(key: bytes, nonce: bytes, status: int, body: bytes) -> bytes:
    """The MAC of the reply to the request with this nonce."""
    return _mac(key, _REPLY_CONTEXT, nonce, status.to_bytes(2, "big"), blake3(body).digest())


def is_same_mac(ours: bytes, theirs: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(ours, theirs)


def format_credentials(stamp: Stamp, mac: bytes) -> str:
    """The value of the Authorization header."""
    return (
        f"Swarm role={stamp.role.value},node={stamp.identity.node_id.hex()},"
        f"generation={stamp.identity.generation},time={stamp.sent_at_ms},"
        f"nonce={stamp.nonce.hex()},mac={mac.hex()}"
    )


def parse_credentials(header: str) -> Credentials:
    """Read the Authorization header; raises AuthError."""
    match = _SCHEME.fullmatch(header)
    if match is None:
        raise AuthError(
            "the request carries no Swarm authorization",
            hint="every call but /healthz, /readyz and /metrics is signed; use `swarm`",
        )
    role, node, generation, sent_at_ms, nonce, mac = match.groups()
    identity = Identity(NodeId(bytes.fromhex(node)), int(generation))
    assert len(identity.node_id) == NODE_ID_BYTES
    stamp = Stamp(Role(role), identity, int(sent_at_ms), bytes.fromhex(nonce))
    return Credentials(stamp, bytes.fromhex(mac or ""))


def is_timely(stamp: Stamp, *, now_ms: int) -> bool:
    """The sender's clock and ours agree well enough."""
    return abs(stamp.sent_at_ms - now_ms) <= CLOCK_SKEW_MS_MAX


class ReplayWindow:
    """The counters seen of one agent's generation: the highest, and which of the 64 below it."""

    __slots__ = ("_highest", "_seen")

    def __init__(self) -> None:
        self._highest = -1
        # Bit i: counter `highest - i` was seen.
        self._seen = 0

    def accept(self, counter: int) -> bool:
        """Whether this request is new; remembers it if so."""
        ahead = counter - self._highest
        if ahead > 0:
            kept = self._seen << ahead if ahead < WINDOW else 0
            self._seen = (kept | 1) & ((1 << WINDOW) - 1)
            self._highest = counter
            return True
        if -ahead >= WINDOW or self._seen >> -ahead & 1:
            return False
        self._seen |= 1 << -ahead
        return True


def _mac(key: bytes, *parts: bytes) -> bytes:
    framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return blake3(framed, key=key).digest()
