"""Lets in who proves its role, and proves the tracker in return.

Wraps a handler: the header is parsed, the MAC checked against the key of the role it names, then
the clock, then whether the request was seen before; whatever happens after that is answered with a
MAC. A refusal before the MAC was checked carries none: a client with a key does not believe it, and
says so.

Without keys (a tracker started without ``--cluster-key-file``) everybody is who they say they are,
and nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from swarm.errors import (
    AuthError,
    ConflictError,
    ManifestError,
    NotFoundError,
    PeerProtocolError,
    SwarmError,
    TrackerError,
    UsageError,
)
from swarm.http.messages import JSON, Request, Response
from swarm.http.router import Handler
from swarm.protocol.ids import Identity
from swarm.protocol.request_auth import (
    AUTHORIZATION,
    OPERATOR_NONCE_KEPT_S,
    REPLY_MAC,
    ReplayWindow,
    Role,
    Stamp,
    is_same_mac,
    is_timely,
    parse_credentials,
    reply_mac,
    request_mac,
)
from swarm.protocol.tracker_codec import MSGPACK, encode_error, pack_plain

GuardedHandler = Callable[[Request, Stamp], Awaitable[Response]]
RememberNonce = Callable[[bytes, float], Awaitable[bool]]
"""(nonce, seconds to keep it) → whether it is new."""

_STATUSES: dict[type[SwarmError], int] = {
    UsageError: 400,
    AuthError: 401,
    NotFoundError: 404,
    ConflictError: 409,
    ManifestError: 422,
    TrackerError: 503,
}
_WINDOWS_MAX = 50_000
"""Agents whose counters are remembered: five boots of the largest fleet aimed at, 200 B each."""


class Guard:
    """Holds the keys of both roles, or None; shared by all routes."""

    def __init__(self, keys: Mapping[Role, bytes] | None, remember_nonce: RememberNonce) -> None:
        self._keys = keys
        self._remember_nonce = remember_nonce
        self._windows: dict[Identity, ReplayWindow] = {}

    def guarded(self, handler: GuardedHandler, *roles: Role) -> Handler:
        """`handler` for requests of these roles; faults of any kind become answers."""

        async def serve(request: Request) -> Response:
            stamp = None
            try:
                credentials = parse_credentials(request.headers.get(AUTHORIZATION, ""))
                self._check_mac(credentials.stamp, credentials.mac, request)
                stamp = credentials.stamp
                self._check_clock(stamp, request)
                await self._check_new(stamp)
                if stamp.role not in roles:
                    raise _forbidden(stamp, request)
                response = await handler(request, stamp)
            except SwarmError as error:
                response = error_response(request, error)
            except PeerProtocolError as error:
                response = error_response(request, UsageError(f"malformed request: {error}"))
            return self._sealed(response, stamp)

        return serve

    def _check_mac(self, stamp: Stamp, mac: bytes, request: Request) -> None:
        if self._keys is None:
            return
        if not mac:
            raise AuthError(
                "this tracker has a cluster key and the request was made without one",
                hint="pass --cluster-key-file (or --operator-token-file)",
            )
        key = self._keys[stamp.role]
        if not is_same_mac(
            request_mac(key, stamp, request.method, request.target, request.body), mac
        ):
            raise AuthError(
                f"the request of {stamp.role.value} {stamp.identity.node_id.hex()} has a wrong MAC",
                hint="is it the same key file on both sides? a proxy must not rewrite paths",
            )

    def _check_clock(self, stamp: Stamp, request: Request) -> None:
        now_ms = int(request.received_at * 1000)
        if self._keys is not None and not is_timely(stamp, now_ms=now_ms):
            off_s = (stamp.sent_at_ms - now_ms) // 1000
            raise AuthError(
                f"the clock of {stamp.identity.node_id.hex()} is off by {off_s} s",
                hint="set the clock (NTP)",
            )

    async def _check_new(self, stamp: Stamp) -> None:
        if self._keys is None:
            return
        if stamp.role is Role.OPERATOR:
            is_new = await self._remember_nonce(stamp.nonce, OPERATOR_NONCE_KEPT_S)
        else:
            is_new = self._window(stamp.identity).accept(stamp.counter)
        if not is_new:
            raise AuthError(
                "the request was seen before",
                hint="it is refused to keep a recorded request from working twice",
            )

    def _window(self, identity: Identity) -> ReplayWindow:
        """The agent's window, which becomes the youngest; the oldest goes when there are too
        many."""
        window = self._windows.pop(identity, None) or ReplayWindow()
        self._windows[identity] = window
        if len(self._windows) > _WINDOWS_MAX:
            del self._windows[next(iter(self._windows))]
        return window

    def _sealed(self, response: Response, stamp: Stamp | None) -> Response:
        if self._keys is None or stamp is None:
            return response
        assert isinstance(response.body, bytes), "a streamed answer cannot be sealed"
        mac = reply_mac(self._keys[stamp.role], stamp.nonce, response.status, response.body)
        return Response(
            response.status,
            response.body,
            response.content_type,
            (*response.headers, (REPLY_MAC, mac.hex())),
        )


def wants_json(request: Request) -> bool:
    """A person asks: ``Accept: application/json``."""
    return JSON in request.headers.get("accept", "")


def error_response(request: Request, error: SwarmError) -> Response:
    """A fault as an answer; an unauthenticated one also tells our time, for skewed clocks."""
    status = _STATUSES.get(type(error), 500)
    server_time_ms = int(request.received_at * 1000) if isinstance(error, AuthError) else None
    as_json = wants_json(request)
    body = pack_plain(encode_error(error, server_time_ms=server_time_ms), as_json=as_json)
    return Response(status, body, JSON if as_json else MSGPACK)


def _forbidden(stamp: Stamp, request: Request) -> AuthError:
    return AuthError(
        f"{stamp.role.value}s may not {request.method} {request.path}",
        hint="operators' calls need --operator-token-file where a token is configured",
    )
