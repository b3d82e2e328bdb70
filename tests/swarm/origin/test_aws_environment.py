"""What the environment states, compared with what botocore makes of the same environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from swarm.origin.aws_environment import environment_triple, has_configuration
from swarm.origin.credentials import CredentialSource

KEYS = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment without anything of AWS, and a home without files."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "us-west-2"},
        {"AWS_DEFAULT_REGION": "us-west-2", "AWS_SESSION_TOKEN": "token"},
        {"AWS_SECURITY_TOKEN": "old token", "AWS_CA_BUNDLE": "/etc/bundle.pem"},
        {"AWS_ENDPOINT_URL": "http://a:1", "AWS_ENDPOINT_URL_S3": "http://b:2"},
        {"AWS_ENDPOINT_URL": "http://a:1", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"},
    ],
)
async def test_botocore_would_find_the_same(
    bare: pytest.MonkeyPatch, tmp_path: Path, more: dict[str, str]
) -> None:
    for name, value in (KEYS | more).items():
        bare.setenv(name, value)
    stated = CredentialSource()
    found = (await stated.settings(), await stated.current())
    # A file that says nothing about it makes botocore be asked.
    bare.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    (tmp_path / "config").write_text("[profile other]\noutput = json\n")
    assert has_configuration(os.environ)
    asked = CredentialSource()
    assert (await asked.settings(), await asked.current()) == found


def test_keys_that_are_not_whole_or_end_are_left_to_botocore() -> None:
    assert environment_triple(KEYS) is not None
    assert environment_triple({"AWS_ACCESS_KEY_ID": "AKID"}) is None
    assert environment_triple(KEYS | {"AWS_CREDENTIAL_EXPIRATION": "2030-01-01T00:00:00Z"}) is None


def test_a_profile_or_a_file_is_configuration(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not has_configuration(os.environ)
    assert has_configuration({"AWS_PROFILE": "ml"})
    (tmp_path / ".aws").mkdir()
    credentials = tmp_path / ".aws" / "credentials"
    credentials.touch()
    assert not has_configuration(os.environ)
    credentials.write_text("[default]\n")
    assert has_configuration(os.environ)
    assert not has_configuration(os.environ | {"AWS_SHARED_CREDENTIALS_FILE": os.devnull})


def test_stated_keys_load_no_botocore_and_no_client_library(tmp_path: Path) -> None:
    """A start pays for what it uses."""
    program = """
import json, sys, trio
from swarm.origin.origin import OriginSettings, open_origin
async def main():
    origin = open_origin("s3://bucket/prefix", settings=OriginSettings())
    await origin.prepare()
    await origin.aclose()
trio.run(main)
print(json.dumps([name for name in ("botocore", "httpx", "urllib3") if name in sys.modules]))
"""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment = plain | KEYS | {"HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        timeout=30,
        check=True,
    )
    assert json.loads(done.stdout) == []
