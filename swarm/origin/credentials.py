"""AWS credentials and settings, looked up by botocore where the environment does not state them.

botocore's chain knows environment, profiles, IRSA, Pod Identity, instance roles and helper
processes, and its look-ups block: a role's agent that takes 400 ms would stall every transfer of
the process for 400 ms. So everything of botocore's, loading it included, runs in a worker thread,
and signers read an immutable triple. The triple is looked up again every minute (botocore itself
knows when a role's credentials are due), and at once, in a new session that reads files and tokens
afresh, when the store says that they are expired.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from swarm.errors import AuthError
from swarm.origin.aws_environment import (
    AwsSettings,
    CredentialTriple,
    environment_endpoint,
    environment_settings,
    environment_triple,
    has_configuration,
    is_endpoint_ignored,
)

if TYPE_CHECKING:
    from botocore.session import Session

REFRESH_INTERVAL_S = 60.0  # Well below the 10 minutes for which botocore renews ahead of expiry.
REPLACE_INTERVAL_S = 5.0
# Between new sessions for one rejected triple: many requests fail together, one look-up is enough.

NO_CREDENTIALS_HINT = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or give the pod or instance "
    "a role that may read the bucket"
)


class CredentialSource:
    """The process's AWS identity. Used from one event loop; all look-ups run in worker threads."""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._session: Session | None = None
        self._settings: AwsSettings | None = None
        self._triple: CredentialTriple | None = None
        self._looked_up_at = float("-inf")
        self._replaced_at = float("-inf")

    async def settings(self) -> AwsSettings:
        """Raises AuthError if the configuration cannot be read."""
        if self._settings is None:
            async with self._lock:
                if self._settings is None:
                    self._settings = await trio.to_thread.run_sync(self._read_settings)
        return self._settings

    async def current(self) -> CredentialTriple:
        """The triple to sign with; raises AuthError if there is none."""
        if self._is_due() and (self._triple is None or not self._lock.locked()):
            async with self._lock:
                if self._is_due():
                    self._triple = await trio.to_thread.run_sync(self._look_up)
                    self._looked_up_at = trio.current_time()
        assert self._triple is not None
        return self._triple

    async def replace(self, rejected: CredentialTriple) -> bool:
        """Look for others after the store rejected a triple; whether there are any."""
        async with self._lock:
            now = trio.current_time()
            if self._triple == rejected and now - self._replaced_at >= REPLACE_INTERVAL_S:
                self._session = None
                self._triple = await trio.to_thread.run_sync(self._look_up)
                self._looked_up_at = self._replaced_at = trio.current_time()
            return self._triple != rejected

    def _is_due(self) -> bool:
        return trio.current_time() - self._looked_up_at >= REFRESH_INTERVAL_S

    # In worker threads.

    def _open_session(self) -> Session:
        if self._session is None:
            from botocore.session import Session

            self._session = Session()
        return self._session

    def _look_up(self) -> CredentialTriple:
        stated = environment_triple(os.environ)
        if stated is not None and not has_configuration(os.environ):
            return stated
        with _translated():
            return self._look_up_chain()

    def _look_up_chain(self) -> CredentialTriple:
        credentials = self._open_session().get_credentials()
        if credentials is None:
            raise AuthError(
                "no AWS credentials found", object_name="AWS credentials", hint=NO_CREDENTIALS_HINT
            )
        frozen = credentials.get_frozen_credentials()
        return CredentialTriple(
            access_key=frozen.access_key or "",
            secret_key=frozen.secret_key or "",
            token=frozen.token or "",
        )

    def _read_settings(self) -> AwsSettings:
        if not has_configuration(os.environ):
            return environment_settings(os.environ)
        with _translated():
            return self._read_configuration()

    def _read_configuration(self) -> AwsSettings:
        session = self._open_session()
        profile = session.get_scoped_config()
        s3 = profile.get("s3")
        style = s3.get("addressing_style", "auto") if isinstance(s3, dict) else "auto"
        return AwsSettings(
            region=os.environ.get("AWS_REGION") or _text(session.get_config_variable("region")),
            endpoint=_endpoint(session),
            addressing_style=_text(style),
            ca_bundle=_text(session.get_config_variable("ca_bundle")),
        )


@contextmanager
def _translated() -> Iterator[None]:
    """What botocore raises, in our words."""
    from botocore.exceptions import BotoCoreError

    try:
        yield
    except BotoCoreError as error:
        raise AuthError(
            f"the AWS credentials cannot be loaded ({type(error).__name__})",
            object_name="AWS credentials",
            hint=NO_CREDENTIALS_HINT,
        ) from error


def _endpoint(session: Session) -> str:
    """Another endpoint than Amazon's, in the order that AWS documents: the service's variable, the
    general one, the profile's `services` section, the profile."""
    stated = environment_endpoint(os.environ)
    if stated or is_endpoint_ignored(os.environ):
        return stated
    profile = session.get_scoped_config()
    services = session.full_config.get("services", {}).get(profile.get("services", ""), {})
    section = services.get("s3", {}) if isinstance(services, dict) else {}
    found = section.get("endpoint_url", "") if isinstance(section, dict) else ""
    return _text(found) or _text(profile.get("endpoint_url"))


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""
