"""What fetching tells a trace of a transfer's payload; the policy's events know only how it
ended."""

from __future__ import annotations

from typing import Protocol

from swarm.policy.events import TransferId


class TransferWatcher(Protocol):
    """Called in the trio loop, at the moment it happens."""

    def begun(self, transfer: TransferId) -> None:
        """The first byte of its payload is here."""

    def received(self, transfer: TransferId) -> None:
        """The last byte is here; it is not verified yet."""
