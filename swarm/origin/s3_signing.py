"""AWS signature version 4 for S3 requests, computed by botocore.

Payloads are not hashed for the signature (`UNSIGNED-PAYLOAD`): their digests are checked end to end
and Content-MD5 covers an upload's way. Nothing is sent in the aws-chunked form and no checksum
trailers, which stores other than Amazon's refuse or, worse, keep inside the object.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from swarm.origin.credentials import CredentialTriple

UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
TIMESTAMP_FORMAT = "%Y%m%dT%H%M%SZ"


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

    `clock_offset_s` is how far the store's clock is ahead of ours. About 60 µs.
    """
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    stamp = (datetime.now(UTC) + timedelta(seconds=clock_offset_s)).strftime(TIMESTAMP_FORMAT)
    complete = headers | {
        "X-Amz-Date": stamp,
        "X-Amz-Content-SHA256": EMPTY_SHA256 if method in ("GET", "HEAD") else UNSIGNED_PAYLOAD,
    }
    if triple.token:
        complete["X-Amz-Security-Token"] = triple.token
    request = AWSRequest(method=method, url=url, headers=complete)
    request.context["timestamp"] = stamp
    # `add_auth` would do these steps by this computer's clock, which may be wrong.
    signer = S3SigV4Auth(Credentials(triple.access_key, triple.secret_key), "s3", region)
    signature = signer.signature(
        signer.string_to_sign(request, signer.canonical_request(request)), request
    )
    names = signer.signed_headers(signer.headers_to_sign(request))
    complete["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={signer.scope(request)}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return complete
