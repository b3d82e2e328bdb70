"""Reads a version's manifest or locations from a peer, page by page."""

from __future__ import annotations

import trio

from swarm.agent.frame_stream import FrameStream
from swarm.errors import NotFoundError, PeerProtocolError
from swarm.protocol.ids import VersionId
from swarm.protocol.messages import Document, DocumentKind, DocumentRequest

PAGE_TIMEOUT_S = 5.0
"""For one page; as long as silence is borne on any other link."""
READ_BYTES = 256 * 1024
"""Half a page in one system call."""


async def read_document(
    stream: FrameStream, version: VersionId, kind: DocumentKind, limit_bytes: int
) -> bytes:
    """The whole document. Raises NotFoundError if the peer does not hold it or it has more than
    `limit_bytes`, PeerProtocolError and all that ends a link."""
    whole = bytearray()
    while True:
        with trio.fail_after(PAGE_TIMEOUT_S):
            await stream.send([DocumentRequest(version, kind, len(whole))])
            message = await stream.receive(READ_BYTES)
        if not isinstance(message, Document) or message.offset != len(whole):
            raise PeerProtocolError(f"{type(message).__name__} instead of a page")
        if not 0 < message.total_bytes <= limit_bytes:
            raise NotFoundError(
                f"a peer holds no {kind.name.lower()} of version {version.hex()[:12]} of up to"
                f" {limit_bytes} bytes",
                object_name=version.hex(),
            )
        whole += message.page
        if len(whole) == message.total_bytes:
            return bytes(whole)
        if not message.page or len(whole) > message.total_bytes:
            raise PeerProtocolError("a page that leads nowhere")
