"""Everything that can go wrong, by who caused it and what the caller should do.

Three kinds, three treatments. A bug of ours is an ``assert``: the process dies and restarts. A
peer's fault is a `PeerProtocolError`: that link is dropped and nobody else notices. The world's
faults are the `SwarmError` classes below: a shell turns them into an event, or the command line
turns them into one line and one exit code.
"""

from __future__ import annotations

from typing import ClassVar


class SwarmError(Exception):
    """A fault with a class, an object and a remedy; the command line prints it as one line and
    exits with `exit_code`.

    `message` says what happened and to what (file, chunk, peer, URL without its query); `hint` says
    what to do next; `object_name` names the thing alone, for machines.
    """

    code: ClassVar[str] = "E_INTERNAL"
    exit_code: ClassVar[int] = 1
    is_retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        object_name: str = "",
        hint: str = "",
        is_retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.object_name = object_name
        self.hint = hint
        if is_retryable is not None:
            self.is_retryable = is_retryable


class UsageError(SwarmError):
    """The caller's command line or settings cannot be understood; fix the call."""

    code = "E_USAGE"
    exit_code = 2


class InputError(SwarmError):
    """The directory to publish is not what it should be (a pointer, a truncated shard, a missing
    file); fix the input."""

    code = "E_INPUT"
    exit_code = 10


class ChangedError(SwarmError):
    """A file changed while it was being published; publish again when nobody writes to it."""

    code = "E_CHANGED"
    exit_code = 11


class IntegrityError(SwarmError):
    """Bytes do not have the digest that the manifest names, and no other source is left."""

    code = "E_INTEGRITY"
    exit_code = 20


class ManifestError(SwarmError):
    """A manifest breaks its own rules; never used, whoever sent it."""

    code = "E_MANIFEST"
    exit_code = 21


class OriginError(SwarmError):
    """The origin failed or answered wrongly; retry on a new connection when `is_retryable`."""

    code = "E_ORIGIN"
    exit_code = 30


class OriginAnswerError(OriginError):
    """The origin answered with something else than the bytes that were asked for (status, range,
    length, encoding); retry a few times on new connections, then give up."""

    is_retryable = True

    def __init__(
        self,
        message: str,
        *,
        content_encoding: str = "",
        object_name: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(message, object_name=object_name, hint=hint)
        # The Content-Encoding of the answer, "" if it had none: something re-encodes the bytes.
        self.content_encoding = content_encoding


class OriginThrottledError(OriginError):
    """The origin said slow down (503, 429); wait `retry_after_s` and let the tracker know."""

    is_retryable = True

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        object_name: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(message, object_name=object_name, hint=hint)
        self.retry_after_s = retry_after_s


class AuthError(SwarmError):
    """Credentials or keys are missing, wrong or expired; an operator must act."""

    code = "E_AUTH"
    exit_code = 31


class NotFoundError(SwarmError):
    """A version, channel, file or chunk does not exist where it was looked for."""

    code = "E_NOTFOUND"
    exit_code = 32


class TrackerError(SwarmError):
    """The tracker could not be reached or refused; peers and origin may still do."""

    code = "E_TRACKER"
    exit_code = 40


class NoSpaceError(SwarmError):
    """The disk or the cache budget is too small for what was asked."""

    code = "E_NOSPACE"
    exit_code = 50


class PermissionDeniedError(SwarmError):
    """The operating system refused access to a path; fix owner or mode."""

    code = "E_PERM"
    exit_code = 51


class LockedError(SwarmError):
    """Another process holds the cache; stop it or choose another cache."""

    code = "E_LOCKED"
    exit_code = 52


class StalledError(SwarmError):
    """No verified byte arrived for the whole stall time-out; the message names what was waited
    for."""

    code = "E_STALLED"
    exit_code = 60


class ConflictError(SwarmError):
    """A name already stands for something else; names are given once and for ever."""

    code = "E_CONFLICT"
    exit_code = 70


class StoreError(SwarmError):
    """The local disk failed (I/O error, file vanished); nobody else is to blame."""

    code = "E_STORE"
    exit_code = 53


class PeerProtocolError(Exception):
    """A peer broke the protocol; close the link to it and go on. Never retried on that link."""


EXIT_CODES: dict[str, int] = {
    error.code: error.exit_code
    for error in (
        UsageError, InputError, ChangedError, IntegrityError, ManifestError, OriginError, AuthError,
        NotFoundError, TrackerError, NoSpaceError, PermissionDeniedError, LockedError, StoreError,
        StalledError, ConflictError,
    )
}  # fmt: skip
"""One class, one code; interrupted runs end with 130 (SIGINT) or 143 (SIGTERM)."""
