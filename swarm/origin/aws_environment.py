"""AWS keys and settings that the environment states in full, read without loading botocore.

Loading botocore takes a tenth of a second, and most of a small pull's start. It is needed for
everything that has to be looked up: profiles, roles, helper processes, instance metadata. A process
that was given keys in its environment, and has no AWS configuration on its disk, needs none of it,
and what botocore would find is what stands here; a test compares the two.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROFILE_VARIABLES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
FILES = (
    ("AWS_CONFIG_FILE", "~/.aws/config"),
    ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
)


@dataclass(frozen=True, slots=True)
class CredentialTriple:
    """What signs a request. Shown as nothing."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    # "" for long-lived keys.
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """What the AWS environment and configuration files say about S3; "" where they say nothing."""

    region: str
    endpoint: str
    # "path", "virtual" or "auto".
    addressing_style: str
    ca_bundle: str


def has_configuration(environment: Mapping[str, str]) -> bool:
    """Whether there is more than the environment: a profile, or a file with something in it."""
    if any(environment.get(name) for name in PROFILE_VARIABLES):
        return True
    return any(_has_content(environment.get(name) or place) for name, place in FILES)


def environment_triple(environment: Mapping[str, str]) -> CredentialTriple | None:
    """The keys, if they are given whole; None if they end at an instant and so have to be looked
    up again."""
    access_key = environment.get("AWS_ACCESS_KEY_ID", "")
    secret_key = environment.get("AWS_SECRET_ACCESS_KEY", "")
    if not access_key or not secret_key or environment.get("AWS_CREDENTIAL_EXPIRATION"):
        return None
    token = environment.get("AWS_SESSION_TOKEN") or environment.get("AWS_SECURITY_TOKEN") or ""
    return CredentialTriple(access_key, secret_key, token)


def environment_settings(environment: Mapping[str, str]) -> AwsSettings:
    """What the environment alone says."""
    return AwsSettings(
        region=(
            environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or ""
        ).strip(),
        endpoint=environment_endpoint(environment),
        addressing_style="auto",
        ca_bundle=environment.get("AWS_CA_BUNDLE", "").strip(),
    )


def is_endpoint_ignored(environment: Mapping[str, str]) -> bool:
    return environment.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true"


def environment_endpoint(environment: Mapping[str, str]) -> str:
    """Another endpoint than Amazon's: the service's variable before the general one."""
    if is_endpoint_ignored(environment):
        return ""
    return environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""


def _has_content(place: str) -> bool:
    try:
        return os.stat(Path(place).expanduser()).st_size > 0
    except FileNotFoundError:
        return False
    except (OSError, RuntimeError):
        # A file that cannot be looked at, or no home: botocore's to say.
        return True
