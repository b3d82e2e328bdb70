"""What `swarm-tracker serve` is told, and how its key files are read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from swarm.errors import AuthError
from swarm.protocol.ids import Address
from swarm.protocol.keys import (
    KEY_FILE_BYTES_MAX,
    KeyKind,
    check_key_mode,
    parse_key,
    unreadable_key,
)
from swarm.protocol.request_auth import Role, role_key
from tracker.policy.prices import ZoneCopies

DRAIN_S = 10.0
"""How long requests in flight may take after SIGTERM; held listens are answered at once."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """One tracker process."""

    listen: Address
    store: Path
    # The key of each role; None when the tracker was started without a cluster key.
    keys: dict[Role, bytes] | None
    # How chunks come to zones that lack them.
    zone_copies: ZoneCopies = ZoneCopies.PEER
    drain_s: float = DRAIN_S


def role_keys(
    cluster_key_file: Path | None, operator_token_file: Path | None
) -> dict[Role, bytes] | None:
    """The keys derived from the key files. Without an operator token the cluster key serves
    operators too; an operator token alone would leave agents without a key, and is refused."""
    if cluster_key_file is None:
        if operator_token_file is not None:
            raise AuthError(
                "--operator-token-file needs --cluster-key-file: agents would not be authenticated",
                hint="make a cluster key with `swarm keys new FILE`",
            )
        return None
    cluster = _read_key(cluster_key_file, KeyKind.CLUSTER)
    operator = cluster
    if operator_token_file is not None:
        operator = _read_key(operator_token_file, KeyKind.OPERATOR)
    return {
        Role.AGENT: role_key(cluster, Role.AGENT),
        Role.OPERATOR: role_key(operator, Role.OPERATOR),
    }


def _read_key(path: Path, kind: KeyKind) -> bytes:
    """The 32 bytes of a key file; raises AuthError, UsageError."""
    source = str(path)
    try:
        # Without O_NONBLOCK a FIFO in the file's place would hold us for ever.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            raw = file.read(KEY_FILE_BYTES_MAX)
    except OSError as error:
        raise unreadable_key(kind, source, str(error.strerror)) from error
    check_key_mode(
        kind, mode=status.st_mode, owner=status.st_uid, reader=os.geteuid(), source=source
    )
    return parse_key(kind, raw.decode("ascii", errors="replace"), source=source)
