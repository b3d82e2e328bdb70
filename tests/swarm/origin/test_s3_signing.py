"""Our signatures against botocore's."""

from __future__ import annotations

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from swarm.origin.aws_environment import CredentialTriple
from swarm.origin.s3_signing import signed_headers

LONG_LIVED = CredentialTriple("AKID", "secret/+", "")
ROLE = CredentialTriple("ASIA", "other", "token==")


def botocore_authorization(method: str, url: str, signed: dict[str, str], region: str) -> str:
    """For the same headers and the same instant."""
    headers = {name: value for name, value in signed.items() if name != "Authorization"}
    triple = ROLE if "X-Amz-Security-Token" in headers else LONG_LIVED
    request = AWSRequest(method=method, url=url, headers=headers)
    request.context["timestamp"] = headers["X-Amz-Date"]
    signer = S3SigV4Auth(Credentials(triple.access_key, triple.secret_key), "s3", region)
    signature = signer.signature(
        signer.string_to_sign(request, signer.canonical_request(request)), request
    )
    names = signer.signed_headers(signer.headers_to_sign(request))
    return (
        f"AWS4-HMAC-SHA256 Credential={signer.scope(request)}, "
        f"SignedHeaders={names}, Signature={signature}"
    )


@pytest.mark.parametrize("triple", [LONG_LIVED, ROLE], ids=["keys", "role"])
@pytest.mark.parametrize(
    ("method", "url"),
    [
        ("GET", "https://bucket.s3.eu-west-1.amazonaws.com/a%20b/%C3%A9~-_.bin"),
        ("HEAD", "http://127.0.0.1:8333/bucket/files/00ff"),
        ("GET", "https://s3.example:443/bucket"),
        ("GET", "https://bucket.example/?list-type=2&encoding-type=url&prefix=a%2Fb&max-keys=9"),
        ("POST", "http://store:80/bucket/key?uploads"),
        ("PUT", "http://[::1]:9000/bucket/key?partNumber=2&uploadId=a.b-c_d~%3D"),
    ],
)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Range": "bytes=0-99", "If-Match": '"e  tag"'},
        {"Content-MD5": " ab== ", "x-amz-request-payer": "requester"},
    ],
    ids=["bare", "range", "upload"],
)
def test_a_signature_is_what_botocore_makes_of_the_request(
    triple: CredentialTriple, method: str, url: str, headers: dict[str, str]
) -> None:
    for region in ("us-east-1", "eu-west-1"):
        signed = signed_headers(method, url, headers, triple, region=region, clock_offset_s=0)
        assert signed["Authorization"] == botocore_authorization(method, url, signed, region)
        assert headers.items() <= signed.items()


def test_the_clock_of_the_store_decides_about_the_date() -> None:
    """A day ahead: another date, and so another key."""
    url = "https://bucket.example/key"
    ours, theirs = (
        signed_headers("GET", url, {}, LONG_LIVED, region="r", clock_offset_s=offset_s)
        for offset_s in (0, 86_400)
    )
    assert ours["X-Amz-Date"][:8] != theirs["X-Amz-Date"][:8]
    assert theirs["Authorization"] == botocore_authorization("GET", url, theirs, "r")
