"""Every endpoint of the tracker: what it reads, whom it lets in, what it answers.

Agents use `report` and `listen`; both roles may look up a version, its manifest or a channel, as an
agent resolves the references it was started with; everything else is for operators. Health and
metrics are open and show no secret.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from swarm.http.messages import JSON, Request, Response, text_response
from swarm.http.router import Router
from swarm.protocol.manifest import MANIFEST_BYTES_MAX
from swarm.protocol.operator_api import (
    ChannelHistory,
    ChannelList,
    ModeList,
    PeerList,
    RegisterVersion,
    SetChannel,
    SetMode,
    VersionList,
)
from swarm.protocol.request_auth import Role, Stamp
from swarm.protocol.tracker_api import Listen, Report
from swarm.protocol.tracker_codec import MSGPACK, decode, encode, encode_json
from tracker.authentication import Guard, wants_json
from tracker.metrics import TrackerMetrics
from tracker.service import TrackerService
from tracker.views import peer_statuses, swarm_status

REPORT_BYTES_MAX = 4 << 20
"""A list of 2^18 chunks takes 1.3 MB; 64 bit sets of 32 KiB take 2 MiB."""
REGISTER_BYTES_MAX = MANIFEST_BYTES_MAX + (1 << 20)

_Call = Callable[[Request, Stamp], Awaitable[object]]


class Routes:
    """Binds the service to paths; `router` is what a server serves."""

    def __init__(self, service: TrackerService, guard: Guard, metrics: TrackerMetrics) -> None:
        self._service = service
        self._guard = guard
        self._metrics = metrics
        self.router = Router()
        self.is_draining = False
        self._add_agents_calls()
        self._add_operators_calls()
        self.router.add("GET", "/healthz", self._healthz)
        self.router.add("GET", "/readyz", self._readyz)
        self.router.add("GET", "/metrics", self._metrics_page)

    def _add_agents_calls(self) -> None:
        agent, operator = Role.AGENT, Role.OPERATOR
        self._add("POST", "/v1/report", self._report, agent, body_bytes_max=REPORT_BYTES_MAX)
        self._add("POST", "/v1/listen", self._listen, agent, is_held=True)
        self._add("GET", "/v1/versions/{reference}", self._show_version, agent, operator)
        self._add("GET", "/v1/versions/{reference}/manifest", self._manifest, agent, operator)
        self._add("GET", "/v1/channels/{name}", self._show_channel, agent, operator)

    def _add_operators_calls(self) -> None:
        operator = Role.OPERATOR
        self._add(
            "POST",
            "/v1/versions",
            self._register,
            operator,
            body_bytes_max=REGISTER_BYTES_MAX,
        )
        self._add("GET", "/v1/versions", self._list_versions, operator)
        self._add("GET", "/v1/channels", self._list_channels, operator)
        self._add("POST", "/v1/channels/{name}", self._set_channel, operator)
        self._add("GET", "/v1/channels/{name}/history", self._channel_history, operator)
        self._add("GET", "/v1/modes", self._list_modes, operator)
        self._add("POST", "/v1/modes/{reference}", self._set_mode, operator)
        self._add("GET", "/v1/peers", self._list_peers, operator)
        self._add("GET", "/v1/swarm/{reference}", self._swarm, operator)

    def _add(
        self,
        method: str,
        pattern: str,
        call: _Call,
        *roles: Role,
        body_bytes_max: int = 64 << 10,
        is_held: bool = False,
    ) -> None:
        """Serve a call: its record becomes the body, its time goes into the metrics."""
        observe = self._metrics.observer(method, pattern)

        async def handle(request: Request, stamp: Stamp) -> Response:
            answer = await call(request, stamp)
            if isinstance(answer, bytes):
                return Response(200, answer, "application/octet-stream")
            if wants_json(request):
                return Response(200, encode_json(answer), JSON)
            return Response(200, encode(answer), MSGPACK)

        guarded = self._guard.guarded(handle, *roles)

        async def timed(request: Request) -> Response:
            started_at = trio.current_time()
            response = await guarded(request)
            observe(response.status, trio.current_time() - started_at)
            return response

        self.router.add(method, pattern, timed, body_bytes_max=body_bytes_max, is_held=is_held)

    # Agents.

    async def _report(self, request: Request, stamp: Stamp) -> object:
        return self._service.report(stamp.identity, decode(Report, request.body))

    async def _listen(self, request: Request, stamp: Stamp) -> object:
        return await self._service.listen(stamp.identity, decode(Listen, request.body))

    # Versions.

    async def _show_version(self, request: Request, stamp: Stamp) -> object:
        return self._service.resolve(request.path_values["reference"])

    async def _manifest(self, request: Request, stamp: Stamp) -> object:
        record = self._service.resolve(request.path_values["reference"])
        return await self._service.manifest(record.version)

    async def _register(self, request: Request, stamp: Stamp) -> object:
        asked = decode(RegisterVersion, request.body)
        return await self._service.register(asked.record, asked.manifest)

    async def _list_versions(self, request: Request, stamp: Stamp) -> object:
        return VersionList(self._service.tracker.catalog.records())

    # Channels and modes.

    async def _show_channel(self, request: Request, stamp: Stamp) -> object:
        return self._service.tracker.channels.existing(request.path_values["name"])

    async def _list_channels(self, request: Request, stamp: Stamp) -> object:
        return ChannelList(self._service.tracker.channels.targets())

    async def _set_channel(self, request: Request, stamp: Stamp) -> object:
        asked = decode(SetChannel, request.body)
        return await self._service.set_channel(request.path_values["name"], asked)

    async def _channel_history(self, request: Request, stamp: Stamp) -> object:
        return ChannelHistory(await self._service.channel_history(request.path_values["name"]))

    async def _list_modes(self, request: Request, stamp: Stamp) -> object:
        return ModeList(self._service.modes())

    async def _set_mode(self, request: Request, stamp: Stamp) -> object:
        record = self._service.resolve(request.path_values["reference"])
        return await self._service.set_mode(record.version, decode(SetMode, request.body))

    # The fleet.

    async def _list_peers(self, request: Request, stamp: Stamp) -> object:
        reference = request.query.get("version")
        version = self._service.resolve(reference).version if reference else None
        return PeerList(peer_statuses(self._service.tracker, version, now=trio.current_time()))

    async def _swarm(self, request: Request, stamp: Stamp) -> object:
        record = self._service.resolve(request.path_values["reference"])
        return swarm_status(self._service.tracker, record, now=trio.current_time())

    # Open to all.

    async def _healthz(self, request: Request) -> Response:
        return text_response(200, "ok")

    async def _readyz(self, request: Request) -> Response:
        """Not ready while draining, so that a load balancer sends nobody here any more."""
        if self.is_draining:
            return text_response(503, "draining")
        return text_response(200, "ready")

    async def _metrics_page(self, request: Request) -> Response:
        body, content_type = self._metrics.page()
        return Response(200, body, content_type)
