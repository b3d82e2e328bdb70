"""What the head of an answer means: is it the range asked for, and if not, whose fault is that."""

from __future__ import annotations

import email.utils
from datetime import UTC, datetime

from swarm.errors import (
    AuthError,
    NotFoundError,
    OriginAnswerError,
    OriginError,
    OriginThrottledError,
    SwarmError,
)
from swarm.origin.connection import Headers
from swarm.origin.transport import Reply

RETRY_AFTER_S_MAX = 3600.0  # A longer wish is a misconfigured server's.


def check_range_answer(reply: Reply, offset: int, length: int, shown: str) -> str:
    """The Content-Encoding of an answer that has the right head for `[offset, offset + length)`;
    raises OriginAnswerError."""
    encoding = content_encoding(reply.headers)
    wanted = f"bytes {offset}-{offset + length - 1}"
    if reply.status_code != 206:
        problem = f"status {reply.status_code} instead of 206"
    elif not (got := reply.headers.get("content-range", "")).startswith(wanted + "/"):
        problem = f"Content-Range {got[:60]!r} instead of '{wanted}/…'"
    elif reply.headers.get("content-length", str(length)) != str(length):
        problem = f"{reply.headers['content-length'][:20]} bytes instead of {length}"
    else:
        return encoding
    if encoding:
        problem += f", re-encoded (Content-Encoding: {encoding})"
    raise OriginAnswerError(
        f"{shown}: the answer does not fit the range that was asked for: {problem}",
        content_encoding=encoding,
        object_name=shown,
        hint="a proxy or server in between may not support ranges, or changes what it passes on",
    )


def status_error(status: int, headers: Headers, shown: str, code: str = "") -> SwarmError:
    """What an unwelcome status means; `code` is the store's own word for it."""
    said = f"{status} {code}".strip()
    if status in (404, 410):
        return NotFoundError(f"{shown} does not exist ({said})", object_name=shown)
    if status in (429, 503):
        return OriginThrottledError(
            f"{shown}: the origin says slow down ({said})",
            retry_after_s=retry_after_s(headers),
            object_name=shown,
        )
    if status in (401, 403, 407):
        return AuthError(
            f"{shown}: access is refused ({said})",
            object_name=shown,
            hint="check the credentials and that they may read (and, to publish, write) there",
        )
    if status == 412:
        return OriginError(
            f"{shown} was replaced since it was published ({said})",
            object_name=shown,
            hint="publish the version again; objects of a version must stay as they are",
            is_retryable=False,
        )
    if status == 416:
        return OriginError(
            f"{shown} is shorter than its manifest says ({said})",
            object_name=shown,
            is_retryable=False,
        )
    is_retryable = status in (408, 425) or status >= 500
    return OriginError(
        f"{shown}: the origin answered {said}", object_name=shown, is_retryable=is_retryable
    )


def retry_after_s(headers: Headers) -> float | None:
    """Seconds that the server asks us to wait: it may say a number or an instant."""
    text = headers.get("retry-after", "").strip()
    if text.isdecimal():
        return min(float(text[:9]), RETRY_AFTER_S_MAX)
    instant = parse_date(text)
    now = parse_date(headers.get("date", "")) or datetime.now(UTC)
    if instant is None:
        return None
    return min(max(0.0, (instant - now).total_seconds()), RETRY_AFTER_S_MAX)


def parse_date(text: str) -> datetime | None:
    """An HTTP date, or None."""
    try:
        date = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def content_encoding(headers: Headers) -> str:
    """The Content-Encoding if it says that the body is not the object's bytes, else ""."""
    encoding = headers.get("content-encoding", "").strip().lower()[:60]
    return "" if encoding in ("identity", "aws-chunked", "identity,aws-chunked") else encoding


def wrong_body(headers: Headers, shown: str, got: str) -> OriginAnswerError:
    """A body that is not the bytes that were asked for."""
    encoding = content_encoding(headers)
    also = f", re-encoded (Content-Encoding: {encoding})" if encoding else ""
    return OriginAnswerError(
        f"{shown}: wrong body: {got}{also}", content_encoding=encoding, object_name=shown
    )
