"""AWS signature version 4 for S3 requests.

Computed here because botocore's own takes five times as long, loads a tenth of a second of modules
and derives the key anew for each request; its result is what ours is tested against. Payloads are
not hashed for the signature (`UNSIGNED-PAYLOAD`): their digests are checked end to end and
Content-MD5 covers an upload's way. Nothing is sent in the aws-chunked form and no checksum
trailers, which stores other than Amazon's refuse or, worse, keep inside the object.

Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/create-signed-request.html; the path of S3
is encoded once, not twice.
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from urllib.parse import urlsplit

from swarm.origin.aws_environment import CredentialTriple
from swarm.origin.request import DEFAULT_PORTS, host_and_port

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
TIMESTAMP_FORMAT = "%Y%m%dT%H%M%SZ"
KEYS_MAX = 4  # Days, regions and credentials that change while a process lives.


def signed_headers(
    method: str,
    url: str,
    headers: dict[str, str],
    triple: CredentialTriple,
    *,
    region: str,
    clock_offset_s: float,
) -> dict[str, str]:
    """`headers` and what proves who sends them; all of them are covered by the signature.

    `clock_offset_s` is how far the store's clock is ahead of ours. About 12 µs.
    """
    stamp = (datetime.now(UTC) + timedelta(seconds=clock_offset_s)).strftime(TIMESTAMP_FORMAT)
    payload = EMPTY_SHA256 if method in ("GET", "HEAD") else UNSIGNED_PAYLOAD
    complete = headers | {"X-Amz-Date": stamp, "X-Amz-Content-SHA256": payload}
    if triple.token:
        complete["X-Amz-Security-Token"] = triple.token
    parts = urlsplit(url)
    port = parts.port or DEFAULT_PORTS[parts.scheme]
    covered = {name.lower(): " ".join(value.split()) for name, value in complete.items()}
    covered["host"] = host_and_port(parts.scheme, parts.hostname or "", port)
    names = sorted(covered)
    signed_names = ";".join(names)
    lines = [method, parts.path or "/", _canonical_query(parts.query)]
    lines += [f"{name}:{covered[name]}" for name in names]
    lines += ["", signed_names, payload]
    date = stamp[:8]
    scope = f"{date}/{region}/s3/aws4_request"
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    key = _signing_key(triple.secret_key, date, region)
    signature = hmac.digest(key, f"{ALGORITHM}\n{stamp}\n{scope}\n{digest}".encode(), "sha256")
    complete["Authorization"] = (
        f"{ALGORITHM} Credential={triple.access_key}/{scope}, "
        f"SignedHeaders={signed_names}, Signature={signature.hex()}"
    )
    return complete


def _canonical_query(query: str) -> str:
    """Sorted; a name without a value gets an empty one."""
    pairs = (pair.partition("=") for pair in query.split("&") if pair)
    return "&".join(f"{name}={value}" for name, value in sorted((n, v) for n, _, v in pairs))


@lru_cache(maxsize=KEYS_MAX)
def _signing_key(secret_key: str, date: str, region: str) -> bytes:
    key = f"AWS4{secret_key}".encode()
    for part in (date, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
