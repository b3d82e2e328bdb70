"""Faults of the origin in the words of who reads it: which version, which file, which chunk."""

from __future__ import annotations

from swarm.errors import (
    AuthError,
    IntegrityError,
    NotFoundError,
    OriginAnswerError,
    OriginError,
    OriginThrottledError,
    SwarmError,
)
from swarm.protocol.ids import ChunkIndex
from swarm.protocol.manifest import Manifest


def chunk_label(manifest: Manifest, chunk: ChunkIndex) -> str:
    """Which chunk, in words for a human: version, first file that holds it, index."""
    path = manifest.files[manifest.chunks[chunk].positions[0].file_index].path
    return f"version {manifest.version.hex()[:12]}, file {path!r}, chunk {chunk}"


def labelled(label: str, error: SwarmError) -> SwarmError:
    """`error` with what was being read."""
    message = f"{label}: {error.message}"
    match error:
        case OriginThrottledError():
            return OriginThrottledError(
                message,
                retry_after_s=error.retry_after_s,
                object_name=error.object_name,
                hint=error.hint,
            )
        case OriginAnswerError():
            return final(message, error)
        case OriginError() | NotFoundError() | AuthError():
            kind = type(error)
        case _:
            return error
    return kind(
        message,
        object_name=error.object_name,
        hint=error.hint,
        is_retryable=error.is_retryable,
    )


def final(message: str, error: OriginAnswerError) -> SwarmError:
    """A wrong answer that stayed wrong; bytes that something re-encodes are not the version's."""
    if error.content_encoding:
        return IntegrityError(
            message,
            object_name=error.object_name,
            hint="a proxy or server re-encodes what it passes on; switch that off",
        )
    return OriginError(message, object_name=error.object_name, hint=error.hint, is_retryable=False)


def wrong_digest(
    label: str, key: str, error: IntegrityError, content_encoding: str
) -> IntegrityError:
    """Bytes that arrived whole and are not the chunk's; `error` names both digests."""
    also = f"; its answers had Content-Encoding: {content_encoding}" if content_encoding else ""
    return IntegrityError(
        f"{label}: {error.message}{also}",
        object_name=key,
        hint="the object is damaged or was replaced; publish the version again",
    )
