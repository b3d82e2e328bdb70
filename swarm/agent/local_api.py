"""The agent's own small API, for probes, scrapers, `swarm status` and `swarm wait`.

- GET /healthz: 200 while the process runs.
- GET /readyz: 200 when every channel followed serves and every version asked for is READY, else 503
  with the reason for waiting, one line per version or channel.
- GET /metrics: Prometheus text.
- GET /v1/status: JSON, see `status_document`.

Over TCP only where `--http` says (probes need it), over a Unix socket where `--socket` says.
Everything is read-only and shows no secret.
"""

from __future__ import annotations

import json

import trio

from swarm.agent.agent import Agent
from swarm.agent.status import status_document, unready_reasons
from swarm.http.listeners import open_tcp, open_unix
from swarm.http.messages import JSON, Request, Response, text_response
from swarm.http.router import Router
from swarm.http.server import HttpServer

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def serve_local_api(
    agent: Agent, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve until cancelled; returns at once when neither address nor socket is configured."""
    listeners: list[trio.SocketListener] = []
    if agent.settings.http is not None:
        listeners += await open_tcp(agent.settings.http.host, agent.settings.http.port)
    if agent.settings.socket is not None:
        listeners.append(await open_unix(agent.settings.socket))
    if not listeners:
        task_status.started()
        return
    server = HttpServer(_routes(agent))
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, listeners)
            task_status.started()
    finally:
        if agent.settings.socket is not None:
            agent.settings.socket.unlink(missing_ok=True)


def _routes(agent: Agent) -> Router:
    async def healthz(_: Request) -> Response:
        return text_response(200, "ok")

    async def readyz(_: Request) -> Response:
        reasons = unready_reasons(agent)
        return text_response(503 if reasons else 200, "\n".join(reasons) or "ready")

    async def metrics(_: Request) -> Response:
        # Here, for the library takes 20 ms to load, and a pull shows no metrics.
        from swarm.agent.metrics import metrics_page

        return Response(200, metrics_page(agent), METRICS_TYPE)

    async def status(_: Request) -> Response:
        return Response(200, json.dumps(status_document(agent)).encode(), JSON)

    router = Router()
    router.add("GET", "/healthz", healthz)
    router.add("GET", "/readyz", readyz)
    router.add("GET", "/metrics", metrics)
    router.add("GET", "/v1/status", status)
    return router
