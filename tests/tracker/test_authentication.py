"""Who gets in, and whose answers are believed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import trio

from swarm.agent.tracker_calls import TrackerCalls
from swarm.agent.tracker_client import TrackerClient
from swarm.errors import AuthError, SwarmError, TrackerError
from swarm.http.client import HttpConnection, Reply, parse_endpoint
from swarm.protocol.ids import Identity, NodeId
from swarm.protocol.request_auth import (
    Role,
    Stamp,
    agent_nonce,
    format_credentials,
    request_mac,
    role_key,
)
from swarm.protocol.tracker_api import Listen
from swarm.protocol.tracker_codec import decode_error, encode
from tests.support.tracker_server import (
    CLUSTER_KEY,
    OPERATOR_KEY,
    RunningTracker,
    made_version,
    running_tracker,
)

IDENTITY = Identity(NodeId(b"n" * 16), 1)
BODY = encode(Listen((0, 0), (), ("prod",)))


async def send(
    tracker: RunningTracker,
    *,
    counter: int = 1,
    key: bytes = CLUSTER_KEY,
    role: Role = Role.AGENT,
    skew_s: float = 0.0,
    signed_body: bytes = BODY,
    target: str = "/v1/listen",
    method: str = "POST",
) -> Reply:
    """One hand-made request; with equal arguments it is the same request again."""
    sent_at_ms = int((round(time.time(), -1) + skew_s) * 1000)
    stamp = Stamp(role, IDENTITY, sent_at_ms, agent_nonce(counter, b"r" * 8))
    mac = request_mac(role_key(key, role), stamp, method, target, signed_body)
    endpoint = parse_endpoint(tracker.url)
    connection = await HttpConnection.open_tcp(endpoint, (endpoint.host, endpoint.port), None)
    try:
        return await connection.request(
            method,
            target,
            (("Authorization", format_credentials(stamp, mac)),),
            BODY if method == "POST" else b"",
            timeout_s=5.0,
            body_bytes_max=1 << 20,
        )
    finally:
        await connection.close()


def error_of(reply: Reply) -> SwarmError:
    return decode_error(reply.body)[0]


async def test_a_right_request_is_let_in_and_answered_with_proof(tmp_path: Path) -> None:
    async with running_tracker(tmp_path) as tracker:
        reply = await send(tracker)
        assert reply.status == 200
        assert len(reply.headers["swarm-mac"]) == 64


@pytest.mark.parametrize("role", [Role.AGENT, Role.OPERATOR])
async def test_a_request_works_once(tmp_path: Path, role: Role) -> None:
    target = "/v1/listen" if role is Role.AGENT else "/v1/versions"
    method = "POST" if role is Role.AGENT else "GET"
    body = BODY if role is Role.AGENT else b""
    async with running_tracker(tmp_path) as tracker:
        statuses = [
            (await send(tracker, role=role, target=target, method=method, signed_body=body)).status
            for _ in range(2)
        ]
        assert statuses == [200, 401]
    async with running_tracker(tmp_path) as tracker:
        again = await send(tracker, role=role, target=target, method=method, signed_body=body)
        # An operator's request is remembered over a restart.
        assert again.status == (200 if role is Role.AGENT else 401)


async def test_counters_may_overtake_each_other(tmp_path: Path) -> None:
    async with running_tracker(tmp_path) as tracker:
        # The listens answer at once: each asks for everything.
        statuses = [(await send(tracker, counter=counter)).status for counter in (70, 10, 69, 5)]
    assert statuses == [200, 200, 200, 401]


async def test_a_changed_body_is_refused_without_proof(tmp_path: Path) -> None:
    async with running_tracker(tmp_path) as tracker:
        reply = await send(tracker, signed_body=BODY + b"x")
    assert reply.status == 401
    assert "swarm-mac" not in reply.headers
    assert "wrong MAC" in error_of(reply).message


@pytest.mark.parametrize("skew_s", [-320.0, 320.0])
async def test_a_skewed_clock_is_told_the_time(tmp_path: Path, skew_s: float) -> None:
    async with running_tracker(tmp_path) as tracker:
        reply = await send(tracker, skew_s=skew_s)
        assert reply.status == 401
        error, server_time_ms = decode_error(reply.body)
        assert "clock" in error.message
        assert server_time_ms is not None
        assert abs(server_time_ms / 1000 - time.time()) < 5
        assert "swarm-mac" in reply.headers
        assert (await send(tracker, skew_s=skew_s / 2)).status == 200


@pytest.mark.parametrize("skew_s", [-600, 600])
async def test_the_client_corrects_its_clock_by_the_trackers(tmp_path: Path, skew_s: int) -> None:
    """Ten minutes off: the first call takes two requests, the next one."""
    async with running_tracker(tmp_path) as tracker:
        agent = tracker.agent()
        calls = agent._calls
        assert isinstance(calls, TrackerCalls)
        calls._clock_offset_ms = skew_s * 1000
        await agent.listen(Listen((0, 0), (), ("prod",)))
        assert abs(calls._clock_offset_ms) < 5000
        assert calls._counter == 2
        await agent.listen(Listen((0, 0), (), ("prod",)))
        assert calls._counter == 3


async def test_a_wrong_key_is_named_on_both_sides(tmp_path: Path) -> None:
    async with running_tracker(tmp_path) as tracker:
        with pytest.raises(AuthError, match="wrong MAC") as caught:
            await tracker.agent(key=b"x" * 32).listen(Listen((0, 0), (), ("prod",)))
        assert tracker.url in caught.value.message
        with pytest.raises(AuthError, match="without one") as caught:
            await tracker.agent(key=None).listen(Listen((0, 0), (), ("prod",)))
        assert "--cluster-key-file" in caught.value.hint


async def test_a_tracker_without_keys_is_not_believed_by_who_has_one(tmp_path: Path) -> None:
    async with running_tracker(tmp_path, cluster=None) as tracker:
        with pytest.raises(AuthError, match="without proof"):
            await tracker.agent().listen(Listen((0, 0), (), ("prod",)))
        reply = await tracker.agent(key=None).listen(Listen((0, 0), (), ("prod",)))
        assert reply.channels[0].channel == "prod"


async def test_an_operator_token_shuts_the_cluster_key_out(tmp_path: Path) -> None:
    record, manifest = made_version(name="m", tag="v1")
    async with running_tracker(tmp_path, operator=OPERATOR_KEY) as tracker:
        operator = tracker.operator(key=OPERATOR_KEY)
        await operator.register_version(record, manifest)
        with pytest.raises(AuthError):
            await tracker.operator(key=CLUSTER_KEY).list_versions()
        with pytest.raises(AuthError):
            await tracker.agent(key=OPERATOR_KEY).listen(Listen((0, 0), (), ("prod",)))
        # An agent may look a reference up, and change nothing.
        agent = tracker.kept(TrackerClient([tracker.url], key=CLUSTER_KEY, role=Role.AGENT))
        assert (await agent.show_version("m@v1")).version == record.version
        with pytest.raises(AuthError, match="agents may not POST"):
            await agent.set_channel("prod", "m@v1", "mischief")
        with pytest.raises(AuthError, match="agents may not GET"):
            await agent.peers()


async def test_an_operator_is_no_agent(tmp_path: Path) -> None:
    async with running_tracker(tmp_path) as tracker:
        with pytest.raises(AuthError, match="operators may not"):
            await tracker.operator().listen(Listen((0, 0), (), ("prod",)))


async def test_an_answer_without_proof_is_not_believed() -> None:
    """Somebody in between answers 200, 404 or 503."""
    for status in (200, 404, 503):
        body = encode({"error": {"code": "E_NOTFOUND", "message": "gone"}})
        reply = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

        async def serve(stream: trio.SocketStream, reply: bytes = reply) -> None:
            async with stream:
                await stream.receive_some()
                await stream.send_all(reply)

        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, serve, listeners)
            client = TrackerClient(
                [f"http://127.0.0.1:{port}"],
                key=CLUSTER_KEY,
                identity=Identity(NodeId(os.urandom(16)), 1),
            )
            with pytest.raises((AuthError, TrackerError)) as caught:
                await client.listen(Listen((0, 0), (), ()))
            assert "gone" not in caught.value.message
            await client.aclose()
            nursery.cancel_scope.cancel()
