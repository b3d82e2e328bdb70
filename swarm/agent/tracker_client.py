"""What the tracker can be asked, as typed methods.

Every call is safe to repeat: registrations and settings say what shall be, reports are numbered.
Agents call again anyway, so a report or a listen asks every address once; an operator's call keeps
trying for a quarter of a minute.
"""

from __future__ import annotations

import os
import random
import ssl
from collections.abc import Sequence
from typing import TypeVar
from urllib.parse import quote

from swarm.agent.tracker_calls import REPLY_S, TrackerCalls
from swarm.errors import PeerProtocolError, TrackerError
from swarm.protocol.ids import NODE_ID_BYTES, Identity, NodeId, VersionId
from swarm.protocol.manifest import MANIFEST_BYTES_MAX
from swarm.protocol.operator_api import (
    ChannelHistory,
    ChannelList,
    ModeChange,
    ModeList,
    PeerList,
    PeerStatus,
    RegisterVersion,
    SetChannel,
    SetMode,
    SwarmStatus,
    VersionList,
)
from swarm.protocol.request_auth import Role
from swarm.protocol.tracker_api import (
    LISTEN_HOLD_S,
    ChannelChange,
    ChannelTarget,
    Listen,
    ListenReply,
    Mode,
    PublishRecord,
    Report,
    ReportReply,
)
from swarm.protocol.tracker_codec import REPLY_MAPS_MAX, decode, encode

LISTEN_S = LISTEN_HOLD_S + REPLY_S
OPERATOR_S = 15.0
"""How long an operator's call keeps trying: a tracker restarts in less."""

_Record = TypeVar("_Record")


class TrackerClient:
    """Raises TrackerError (nobody answered, or not as a tracker does), AuthError, and what the
    tracker says: NotFoundError, ConflictError, UsageError, ManifestError. Messages name the URL."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        key: bytes | None,
        identity: Identity | None = None,
        role: Role | None = None,
        rng: random.Random | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`key` is the secret of a key file: the cluster key, or for an operator the operator
        token where one is configured; None for a tracker without keys.

        Who has an identity is an agent, who has none an operator, unless `role` says otherwise: a
        command that has only the cluster key looks a reference up in the role of an agent.
        """
        if role is None:
            role = Role.OPERATOR if identity is None else Role.AGENT
        self._calls = TrackerCalls(
            urls,
            key=key,
            identity=identity or Identity(NodeId(os.urandom(NODE_ID_BYTES)), 0),
            role=role,
            rng=rng or random.Random(),
            tls=tls,
        )

    async def aclose(self) -> None:
        """Close idle connections; the client can still be used."""
        await self._calls.close_idle()

    # Agents.

    async def report(self, report: Report) -> ReportReply:
        """One round over all addresses; the caller repeats it."""
        raw = await self._calls.call("POST", "/v1/report", encode(report))
        return self._decoded(ReportReply, raw)

    async def listen(self, listen: Listen) -> ListenReply:
        """Held by the tracker until there is news, 15 s at most. A version or channel that the
        reply does not name has no news."""
        raw = await self._calls.call("POST", "/v1/listen", encode(listen), reply_s=LISTEN_S)
        return self._decoded(ListenReply, raw)

    # Versions; agents look up and fetch, operators register too.

    async def show_version(self, reference: str) -> PublishRecord:
        """The version that any reference names; raises NotFoundError, UsageError."""
        return await self._get(PublishRecord, f"/v1/versions/{_segment(reference)}")

    async def manifest(self, version: VersionId) -> bytes:
        """A registered version's manifest, not checked; raises NotFoundError. One round over all
        addresses; an agent has other sources, and asks again."""
        return await self._calls.call("GET", f"/v1/versions/{version.hex()}/manifest")

    async def register_version(self, record: PublishRecord, manifest: bytes) -> PublishRecord:
        """Make a version known; the record as the tracker keeps it. Raises ConflictError when the
        name stands for another version."""
        assert len(manifest) <= MANIFEST_BYTES_MAX
        return await self._post(PublishRecord, "/v1/versions", RegisterVersion(record, manifest))

    async def list_versions(self) -> tuple[PublishRecord, ...]:
        """All, newest first."""
        return (await self._get(VersionList, "/v1/versions")).versions

    # Channels and modes.

    async def show_channel(self, name: str) -> ChannelTarget:
        """Raises NotFoundError when it was never set."""
        return await self._get(ChannelTarget, f"/v1/channels/{_segment(name)}")

    async def list_channels(self) -> tuple[ChannelTarget, ...]:
        return (await self._get(ChannelList, "/v1/channels")).channels

    async def set_channel(
        self,
        name: str,
        reference: str | None,
        reason: str,
        *,
        changed_by: str = "",
        expected_revision: int | None = None,
    ) -> ChannelTarget:
        """Point a channel at a version (None: at nothing); creates the channel. Raises
        NotFoundError, and ConflictError when it is not at `expected_revision` any more."""
        change = SetChannel(reference, reason, expected_revision, changed_by)
        return await self._post(ChannelTarget, f"/v1/channels/{_segment(name)}", change)

    async def channel_history(self, name: str) -> tuple[ChannelChange, ...]:
        """Newest first."""
        return (await self._get(ChannelHistory, f"/v1/channels/{_segment(name)}/history")).changes

    async def set_mode(
        self, reference: str, mode: Mode, reason: str, *, changed_by: str = ""
    ) -> ModeChange:
        """Say where a version's chunks may come from."""
        change = SetMode(mode, reason, changed_by)
        return await self._post(ModeChange, f"/v1/modes/{_segment(reference)}", change)

    async def list_modes(self) -> tuple[ModeChange, ...]:
        return (await self._get(ModeList, "/v1/modes")).modes

    # The fleet.

    async def peers(self, reference: str | None = None) -> tuple[PeerStatus, ...]:
        """All agents, or those of one version."""
        query = f"?version={quote(reference, safe='')}" if reference else ""
        return (await self._get(PeerList, f"/v1/peers{query}")).peers

    async def swarm(self, reference: str) -> SwarmStatus:
        """One version across the fleet."""
        return await self._get(SwarmStatus, f"/v1/swarm/{_segment(reference)}")

    async def _get(self, kind: type[_Record], target: str) -> _Record:
        return self._decoded(kind, await self._calls.call("GET", target, retry_s=OPERATOR_S))

    async def _post(self, kind: type[_Record], target: str, record: object) -> _Record:
        raw = await self._calls.call("POST", target, encode(record), retry_s=OPERATOR_S)
        return self._decoded(kind, raw)

    def _decoded(self, kind: type[_Record], raw: bytes) -> _Record:
        url = self._calls.url
        try:
            return decode(kind, raw, maps_max=REPLY_MAPS_MAX)
        except PeerProtocolError as error:
            raise TrackerError(
                f"{url} answered what this release does not understand: {error}",
                object_name=url,
                hint="agents and tracker are of different releases; upgrade the older",
            ) from error


def _segment(text: str) -> str:
    """A path segment; a name may hold slashes."""
    return quote(text, safe="")
