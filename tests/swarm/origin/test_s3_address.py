"""Where a bucket answers: Amazon, other endpoints, and keys in URLs."""

from __future__ import annotations

import pytest

from swarm.errors import UsageError
from swarm.origin.aws_environment import AwsSettings
from swarm.origin.s3_address import s3_address


def url(bucket: str, key: str, *, endpoint: str = "", region: str = "", style: str = "auto") -> str:
    settings = AwsSettings(region=region, endpoint=endpoint, addressing_style=style, ca_bundle="")
    return s3_address(bucket, settings).url(key)


def test_amazon_is_asked_at_the_buckets_own_name() -> None:
    assert url("b", "k", region="eu-west-1") == "https://b.s3.eu-west-1.amazonaws.com/k"
    assert url("b", "k", region="cn-north-1") == "https://b.s3.cn-north-1.amazonaws.com.cn/k"
    assert url("b", "k") == "https://b.s3.us-east-1.amazonaws.com/k"
    assert url("b", "") == "https://b.s3.us-east-1.amazonaws.com/"
    assert url("b.c", "k") == "https://s3.us-east-1.amazonaws.com/b.c/k"


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("http://127.0.0.1:9000/", "http://127.0.0.1:9000/b/k"),
        ("http://[fd00::1]:9000", "http://[fd00::1]:9000/b/k"),
        ("http://localhost:9000", "http://localhost:9000/b/k"),
        ("http://minio:9000", "http://minio:9000/b/k"),
        ("http://minio.ns.svc:9000", "http://minio.ns.svc:9000/b/k"),
        ("https://oss-cn-hangzhou.example.com", "https://b.oss-cn-hangzhou.example.com/k"),
        ("https://host.example.com/base", "https://b.host.example.com/base/k"),
    ],
)
def test_other_endpoints_get_the_style_that_can_resolve(endpoint: str, expected: str) -> None:
    assert url("b", "k", endpoint=endpoint) == expected


def test_a_profiles_style_wins() -> None:
    assert url("b", "k", endpoint="https://x.example.com", style="path") == (
        "https://x.example.com/b/k"
    )
    assert url("b", "k", endpoint="http://minio:9000", style="virtual") == "http://b.minio:9000/k"


def test_keys_are_encoded_as_signatures_want_them() -> None:
    assert url("b", "a b/ü+(1)~.x", style="path").endswith("/b/a%20b/%C3%BC%2B%281%29~.x")


@pytest.mark.parametrize(
    "endpoint",
    ["minio:9000", "ftp://host", "https://host?x=canary", "http://host:nine", "http://host:99999"],
)
def test_a_bad_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError, match="not an S3 endpoint") as caught:
        url("b", "k", endpoint=endpoint)
    assert "canary" not in caught.value.message
