"""Chunks that are set aside for a while, each until its time."""

from __future__ import annotations

import math


class SetAside:
    """Owned by who gives leases; a chunk is granted or brought into a zone only while it is not in
    `bits`."""

    __slots__ = ("_until", "bits")

    def __init__(self) -> None:
        # (until when, chunks).
        self._until: list[tuple[float, int]] = []
        self.bits = 0

    def add(self, bits: int, *, until: float) -> None:
        if bits:
            self._until.append((until, bits))
            self.bits |= bits

    def release(self, *, now: float) -> None:
        """Put back what waited long enough."""
        if self.next_at > now:
            return
        self._until = [(until, bits) for until, bits in self._until if until > now]
        self.bits = 0
        for _, bits in self._until:
            self.bits |= bits

    @property
    def next_at(self) -> float:
        """When the first of them may come back; infinite if there is none."""
        return min((until for until, _ in self._until), default=math.inf)
