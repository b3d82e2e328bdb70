"""What an S3 request corrects by itself, with a scripted store behind real sockets.

Signatures are verified by a real server in tests/cluster/test_s3_origin.py; here the script says
what no real server can be asked for: another region, another clock, expired credentials.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
import trio

from swarm.errors import AuthError, OriginError
from swarm.origin.origin import Origin, OriginSettings, open_origin
from tests.support.fault_proxy import Fault
from tests.support.served_directory import ServedDirectory, serve_directory

SETTINGS = OriginSettings(retry_for_s=0.0, uses_proxy_environment=False)


@pytest.fixture
async def store(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> ServedDirectory:
    (tmp_path / "a-bucket").mkdir()
    (tmp_path / "a-bucket" / "f").write_bytes(b"bytes")
    served = await serve_directory(tmp_path, nursery)
    for name in (
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE",
        "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    credentials = tmp_path / "credentials"
    write_credentials(tmp_path, "AKIDFIRST")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", served.url)
    return served


@pytest.fixture
async def origin(store: ServedDirectory) -> AsyncIterator[Origin]:
    opened = open_origin("s3://a-bucket", settings=SETTINGS)
    yield opened
    await opened.aclose()


def write_credentials(directory: Path, access_key: str) -> None:
    (directory / "credentials").write_text(
        f"[default]\naws_access_key_id={access_key}\naws_secret_access_key=canary-secret\n"
        "aws_session_token=canary-token\n"
    )


def error_body(code: str, extra: str = "") -> bytes:
    """As S3 writes it, with what must never be shown."""
    return (
        f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>canary</Message>{extra}"
        "<StringToSign>canary-signature</StringToSign></Error>"
    ).encode()


def authorizations(store: ServedDirectory) -> list[str]:
    return [request.headers["authorization"] for request in store.proxy.requests]


async def read(origin: Origin) -> bytes:
    return await origin.read_document("f", limit_bytes=100)


async def test_the_region_that_is_told_is_used_from_then_on(
    store: ServedDirectory, origin: Origin
) -> None:
    store.proxy.faults.append(
        Fault(
            status=301,
            body=error_body("PermanentRedirect"),
            headers={"x-amz-bucket-region": "ap-south-1"},
            for_requests=1,
        )
    )
    assert await read(origin) == await read(origin) == b"bytes"
    regions = [text.split("/")[2] for text in authorizations(store)]
    assert regions == ["eu-west-1", "ap-south-1", "ap-south-1"]


async def test_a_region_in_the_body_of_a_400_counts_too(
    store: ServedDirectory, origin: Origin
) -> None:
    body = error_body("AuthorizationHeaderMalformed", "<Region>us-west-2</Region>")
    store.proxy.faults.append(Fault(status=400, body=body, for_requests=1))
    assert await read(origin) == b"bytes"
    assert "/us-west-2/" in authorizations(store)[-1]


@pytest.mark.parametrize(
    ("headers", "said", "count_max"),
    [
        ({"x-amz-bucket-region": "ap-south-1"}, "it names region 'ap-south-1'", 3),
        ({}, "it names no other region", 1),
        ({"x-amz-bucket-region": "canary<>"}, "it names no other region", 1),
    ],
)
async def test_a_region_that_does_not_help_is_an_error_after_few_requests(
    store: ServedDirectory, origin: Origin, headers: dict[str, str], said: str, count_max: int
) -> None:
    body = error_body("PermanentRedirect")
    store.proxy.faults.append(Fault(status=301, body=body, headers=headers))
    with pytest.raises(OriginError, match="bucket 'a-bucket' does not answer") as caught:
        await read(origin)
    assert said in caught.value.message
    assert not caught.value.is_retryable
    assert len(store.proxy.requests) <= count_max


async def test_the_clock_is_corrected_by_the_stores_date(
    store: ServedDirectory, origin: Origin
) -> None:
    theirs = datetime.now(UTC) + timedelta(minutes=20)
    skewed = Fault(
        status=403,
        body=error_body("RequestTimeTooSkewed"),
        headers={"date": format_datetime(theirs, usegmt=True)},
        for_requests=1,
    )
    store.proxy.faults.append(skewed)
    assert await read(origin) == b"bytes"
    first, second = (
        datetime.strptime(request.headers["x-amz-date"], "%Y%m%dT%H%M%SZ")
        for request in store.proxy.requests
    )
    assert second - first == pytest.approx(timedelta(minutes=20), abs=timedelta(seconds=5))
    skewed.for_requests = 99
    with pytest.raises(AuthError, match="clock differs by ~20 min"):
        await read(origin)
    assert len(store.proxy.requests) == 3


@pytest.mark.parametrize("status", [400, 403])
async def test_expired_credentials_are_looked_up_again(
    store: ServedDirectory, origin: Origin, tmp_path: Path, status: int
) -> None:
    assert await read(origin) == b"bytes"
    write_credentials(tmp_path, "AKIDSECOND")
    body = error_body("ExpiredToken")
    store.proxy.faults.append(Fault(status=status, body=body, for_requests=1))
    assert await read(origin) == b"bytes"
    keys = [text.partition("Credential=")[2].partition("/")[0] for text in authorizations(store)]
    assert keys == ["AKIDFIRST", "AKIDFIRST", "AKIDSECOND"]


@pytest.mark.parametrize("status", [400, 403])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_credentials_that_stay_expired_are_an_auth_error(
    store: ServedDirectory, origin: Origin, status: int, method: str
) -> None:
    """An answer to HEAD has no body to say why; the class is the same."""
    store.proxy.faults.append(Fault(status=status, body=error_body("ExpiredToken")))
    with pytest.raises(AuthError, match="expired"):
        await (origin.head("f") if method == "HEAD" else read(origin))
    assert len(store.proxy.requests) <= 2


async def test_a_denied_request_is_not_repeated_and_shows_nothing(
    store: ServedDirectory, origin: Origin, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    store.proxy.faults.append(Fault(status=403, body=error_body("AccessDenied")))
    with pytest.raises(AuthError, match=r"s3://a-bucket/f: .*\(403 AccessDenied\)") as caught:
        await read(origin)
    assert len(store.proxy.requests) == 1
    told = caught.value.message + caught.value.hint + caplog.text
    for secret in ("canary", "AKIDFIRST", *authorizations(store)):
        assert secret not in told


async def test_missing_credentials_are_said_before_any_request(
    store: ServedDirectory, origin: Origin, tmp_path: Path
) -> None:
    (tmp_path / "credentials").unlink()
    with pytest.raises(AuthError, match="no AWS credentials"):
        await read(origin)
    assert store.proxy.requests == []


async def test_a_public_bucket_is_read_without_credentials(
    store: ServedDirectory, tmp_path: Path
) -> None:
    (tmp_path / "credentials").unlink()
    settings = OriginSettings(is_anonymous=True, uses_proxy_environment=False)
    origin = open_origin("s3://a-bucket", settings=settings)
    assert await read(origin) == b"bytes"
    assert "authorization" not in store.proxy.requests[0].headers
    await origin.aclose()


async def test_a_slow_credential_agent_does_not_stall_the_loop(
    store: ServedDirectory,
    origin: Origin,
    tmp_path: Path,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "credentials").unlink()
    agent = await serve_directory(tmp_path, nursery)
    document = {
        "AccessKeyId": "AKIDROLE",
        "SecretAccessKey": "canary",
        "Token": "canary-token",
        "Expiration": "2099-01-01T00:00:00Z",
    }
    agent.proxy.faults.append(Fault(status=200, body=json.dumps(document).encode(), delay=0.4))
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", agent.url + "/v1/credentials")
    gaps: list[float] = []

    async def tick() -> None:
        while True:
            before = trio.current_time()
            await trio.sleep(0.01)
            gaps.append(trio.current_time() - before)

    nursery.start_soon(tick)
    assert await read(origin) == b"bytes"
    assert "AKIDROLE" in authorizations(store)[0]
    assert store.proxy.requests[0].headers["x-amz-security-token"] == "canary-token"
    assert len(gaps) >= 10  # Of 40; importing botocore holds the interpreter for a while.


async def test_a_virtual_host_name_that_does_not_resolve_falls_back_to_path_style(
    store: ServedDirectory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A name with dots that resolves while nothing below it does."""
    (tmp_path / "config").write_text("[default]\ns3 =\n  addressing_style = virtual\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    origin = open_origin("s3://a-bucket", settings=SETTINGS)
    assert await read(origin) == b"bytes"
    assert store.proxy.requests[0].target == "/a-bucket/f"
    await origin.aclose()
