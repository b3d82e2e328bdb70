"""Makes signed calls to whichever tracker answers.

Several URLs, or one name with many addresses, may be given. The one that answered last is asked
first; when it fails, the others are tried at once, and names are resolved again. A round in which
nobody answered is repeated after a wait with full jitter until the call's own deadline.

Each attempt is signed anew, and a reply counts when its MAC shows that it is the tracker's, to this
very request. Proxies from the environment are never used: they catch traffic inside a cluster.
"""

from __future__ import annotations

import os
import random
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from swarm.errors import AuthError, PeerProtocolError, SwarmError, TrackerError, UsageError
from swarm.http.client import (
    CONNECT_S,
    SPEAKS_HTTPS,
    Endpoint,
    HttpClientError,
    HttpConnection,
    Reply,
    parse_endpoint,
)
from swarm.protocol.ids import Identity
from swarm.protocol.request_auth import (
    NONCE_BYTES,
    REPLY_MAC,
    Role,
    Stamp,
    agent_nonce,
    format_credentials,
    is_same_mac,
    reply_mac,
    request_mac,
    role_key,
)
from swarm.protocol.tracker_codec import MSGPACK, decode_error

REPLY_S = 10.0
"""For an answer that is not held; a hundred times the tracker's own goal."""
REPLY_BYTES_MAX = 64 << 20
"""A list of 100,000 agents."""
IDLE_CONNECTIONS_MAX = 4
"""A report, a listen and a look-up at once."""
ADDRESSES_MAX = 8
"""Of one name, tried in a round."""
_BACKOFF_S_MIN = 0.1
_BACKOFF_S_MAX = 2.0
_SKEW_WORTH_A_RETRY_MS = 60_000
"""Below this a clock was not what the request was refused for."""

_Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One signed request."""

    stamp: Stamp
    headers: tuple[tuple[str, str], ...]


class TrackerCalls:
    """Connections, keys and clock of one identity in one role. Concurrent calls use connections of
    their own."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        key: bytes | None,
        identity: Identity,
        role: Role,
        rng: random.Random,
        tls: ssl.SSLContext | None,
    ) -> None:
        if not urls:
            raise UsageError("no tracker URL is given", hint="pass --tracker URL")
        self._endpoints = [parse_endpoint(url) for url in urls]
        self._identity = identity
        self._role = role
        self._key = None if key is None else role_key(key, role)
        self._rng = rng
        self._tls = tls
        self._counter = 0
        # What the tracker's clock is ahead of ours.
        self._clock_offset_ms = 0
        # Where the last answer came from, and connections to it that wait for the next call.
        self._best: tuple[Endpoint, _Address] | None = None
        self._idle: list[HttpConnection] = []

    @property
    def url(self) -> str:
        """The URL that answered last, or the first."""
        return self._best[0].url if self._best else self._endpoints[0].url

    async def close_idle(self) -> None:
        """Close what waits; calls under way keep their connections."""
        while self._idle:
            await self._idle.pop().close()

    async def call(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        reply_s: float = REPLY_S,
        retry_s: float = 0.0,
    ) -> bytes:
        """The body of the answer. New rounds begin for `retry_s` seconds while nobody answers."""
        give_up_at = trio.current_time() + retry_s
        wait_s = _BACKOFF_S_MIN
        while True:
            try:
                return await self._round(method, target, body, reply_s)
            except TrackerError as error:
                pause_s = self._rng.uniform(_BACKOFF_S_MIN, wait_s)
                if not error.is_retryable or trio.current_time() + pause_s > give_up_at:
                    raise
            await trio.sleep(pause_s)
            wait_s = min(2 * wait_s, _BACKOFF_S_MAX)

    async def _round(self, method: str, target: str, body: bytes, reply_s: float) -> bytes:
        """Ask the best address, then every other, once."""
        failures: list[str] = []
        # Of the first failure that shows what is wrong.
        hint = ""
        if self._best is not None:
            endpoint, address = self._best
            try:
                return await self._ask(endpoint, address, method, target, body, reply_s)
            except HttpClientError as error:
                failures.append(f"{endpoint.url}: {error}")
                hint = error.hint
                await self.close_idle()
                self._best = None
        for endpoint in self._rng.sample(self._endpoints, len(self._endpoints)):
            try:
                addresses = await self._resolve(endpoint)
            except HttpClientError as error:
                failures.append(f"{endpoint.url}: {error}")
                continue
            for address in addresses:
                try:
                    raw = await self._ask(endpoint, address, method, target, body, reply_s)
                except HttpClientError as error:
                    failures.append(f"{endpoint.url}: {error}")
                    hint = hint or error.hint
                else:
                    self._best = endpoint, address
                    return raw
        raise TrackerError(
            f"no tracker answers: {'; '.join(dict.fromkeys(failures))}",
            object_name=self._endpoints[0].url,
            hint=hint or "is `swarm-tracker serve` running there, and the port open?",
            is_retryable=True,
        )

    async def _resolve(self, endpoint: Endpoint) -> list[_Address]:
        """A name's addresses in random order, so that a fleet spreads over them."""
        try:
            with trio.fail_after(CONNECT_S):
                found = await trio.socket.getaddrinfo(
                    endpoint.host, endpoint.port, type=trio.socket.SOCK_STREAM
                )
        except (OSError, trio.TooSlowError) as error:
            reason = getattr(error, "strerror", None) or "no answer"
            raise HttpClientError(f"cannot resolve {endpoint.host}: {reason}") from error
        addresses = list(dict.fromkeys((str(entry[4][0]), endpoint.port) for entry in found))
        self._rng.shuffle(addresses)
        return addresses[:ADDRESSES_MAX]

    async def _ask(
        self,
        endpoint: Endpoint,
        address: _Address,
        method: str,
        target: str,
        body: bytes,
        reply_s: float,
    ) -> bytes:
        """One address; once more when the tracker had to tell us the time."""
        full_target = endpoint.prefix + target
        for is_last in (False, True):
            attempt = self._signed(method, full_target, body)
            reply = await self._exchange(
                endpoint, address, method, full_target, attempt.headers, body, reply_s
            )
            is_authentic = self._is_authentic(attempt.stamp, reply)
            if reply.status == 200 and is_authentic:
                return reply.body
            error, server_time_ms = self._refusal(endpoint, reply, is_authentic=is_authentic)
            if is_last or not is_authentic or not self._corrects_clock(server_time_ms):
                raise error
        raise AssertionError("the second attempt returns or raises")

    async def _exchange(
        self,
        endpoint: Endpoint,
        address: _Address,
        method: str,
        target: str,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        reply_s: float,
    ) -> Reply:
        """Over an idle connection if there is one; over a new one if that was closed meanwhile."""
        is_best = self._best == (endpoint, address)
        while True:
            connection = self._idle.pop() if is_best and self._idle else None
            if connection is None:
                connection = await HttpConnection.open_tcp(endpoint, address, self._tls)
            try:
                reply = await connection.request(
                    method, target, headers, body, timeout_s=reply_s, body_bytes_max=REPLY_BYTES_MAX
                )
            except HttpClientError as error:
                if error.is_stale:
                    continue
                raise
            if connection.is_reusable and len(self._idle) < IDLE_CONNECTIONS_MAX:
                self._idle.append(connection)
            else:
                await connection.close()
            return reply

    def _signed(self, method: str, target: str, body: bytes) -> _Attempt:
        self._counter += 1
        nonce = os.urandom(NONCE_BYTES)
        if self._role is Role.AGENT:
            nonce = agent_nonce(self._counter, nonce[8:])
        sent_at_ms = int(time.time() * 1000) + self._clock_offset_ms
        stamp = Stamp(self._role, self._identity, sent_at_ms, nonce)
        mac = b"" if self._key is None else request_mac(self._key, stamp, method, target, body)
        headers = (
            ("Authorization", format_credentials(stamp, mac)),
            ("Accept", MSGPACK),
            ("Content-Type", MSGPACK),
        )
        return _Attempt(stamp, headers)

    def _is_authentic(self, stamp: Stamp, reply: Reply) -> bool:
        """The reply is the tracker's own, to this very request; without a key all are."""
        if self._key is None:
            return True
        try:
            mac = bytes.fromhex(reply.headers.get(REPLY_MAC, ""))
        except ValueError:
            return False
        return is_same_mac(reply_mac(self._key, stamp.nonce, reply.status, reply.body), mac)

    def _refusal(
        self, endpoint: Endpoint, reply: Reply, *, is_authentic: bool
    ) -> tuple[SwarmError, int | None]:
        """What an answer other than the wished-for one means."""
        try:
            told, server_time_ms = decode_error(reply.body)
        except PeerProtocolError:
            return _not_a_tracker(endpoint, reply, has_key=self._key is not None), None
        message = f"{endpoint.url}: {told.message}"
        if not is_authentic and not isinstance(told, AuthError):
            return _not_a_tracker(endpoint, reply, has_key=True), None
        error = type(told)(
            message,
            object_name=told.object_name or endpoint.url,
            hint=told.hint,
            is_retryable=told.is_retryable,
        )
        return error, server_time_ms

    def _corrects_clock(self, server_time_ms: int | None) -> bool:
        """Whether the tracker's clock differs so much that this was why it refused."""
        if server_time_ms is None:
            return False
        offset_ms = server_time_ms - int(time.time() * 1000)
        if abs(offset_ms - self._clock_offset_ms) < _SKEW_WORTH_A_RETRY_MS:
            return False
        self._clock_offset_ms = offset_ms
        return True


def _not_a_tracker(endpoint: Endpoint, reply: Reply, *, has_key: bool) -> SwarmError:
    if reply.status == 200 and has_key:
        return AuthError(
            f"{endpoint.url} answers without proof that it has our cluster key",
            object_name=endpoint.url,
            hint="start it with --cluster-key-file, or check that this is the right tracker",
        )
    # What Go and nginx say in plain text to who speaks no TLS to them.
    is_tls = not endpoint.is_tls and reply.status == 400 and b"https" in reply.body.lower()
    return TrackerError(
        f"{endpoint.url} answered {reply.status}, not as a tracker does",
        object_name=endpoint.url,
        hint=SPEAKS_HTTPS
        if is_tls
        else "is this the tracker's URL, and no proxy or other service in its place?",
        is_retryable=reply.status >= 500,
    )
