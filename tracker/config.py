"""What `swarm-tracker serve` is told, and how its secret files are read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from swarm.errors import AuthError
from swarm.protocol.ids import Address
from swarm.protocol.keys import KeyKind, parse_key
from swarm.protocol.request_auth import Role, role_key

_SECRET_BYTES_MAX = 4096
"""A secret file is one line of about 90 bytes; more is another file."""
DRAIN_S = 10.0
"""How long requests in flight may take after SIGTERM; held listens are answered at once."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """One tracker process."""

    listen: Address
    store: Path
    # The key of each role; None when the tracker was started without a cluster key.
    keys: dict[Role, bytes] | None
    drain_s: float = DRAIN_S


def role_keys(
    cluster_key_file: Path | None, operator_token_file: Path | None
) -> dict[Role, bytes] | None:
    """The keys derived from the secret files. Without an operator token the cluster key serves
    operators too; an operator token alone would leave agents without a key, and is refused."""
    if cluster_key_file is None:
        if operator_token_file is not None:
            raise AuthError(
                "--operator-token-file needs --cluster-key-file: agents would not be authenticated",
                hint="make a cluster key with `swarm keys new FILE`",
            )
        return None
    cluster = read_secret(cluster_key_file, KeyKind.CLUSTER)
    operator = cluster
    if operator_token_file is not None:
        operator = read_secret(operator_token_file, KeyKind.OPERATOR)
    return {
        Role.AGENT: role_key(cluster, Role.AGENT),
        Role.OPERATOR: role_key(operator, Role.OPERATOR),
    }


def read_secret(path: Path, kind: KeyKind) -> bytes:
    """The secret of a file that only its owner (or, for a file of root's, a group of ours) can
    read; raises AuthError that names the file and shows nothing of it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise AuthError(
            f"cannot read {path}: {error.strerror}",
            object_name=str(path),
            hint="name the file that `swarm keys new` wrote",
        ) from error
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(file.fileno())
        forbidden = 0o077 if status.st_uid == os.geteuid() else 0o037
        if status.st_mode & forbidden:
            raise AuthError(
                f"{path} has mode {status.st_mode & 0o7777:04o}: others can read it",
                object_name=str(path),
                hint=f"chmod 600 {path}",
            )
        raw = file.read(_SECRET_BYTES_MAX)
    return parse_key(kind, raw.decode("ascii", errors="replace"), source=str(path))
