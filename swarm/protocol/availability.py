"""How many hold each chunk, as bit-sliced counters: of a node's neighbours, of a fleet's agents.

`planes[i]` is a big integer whose bit c is bit i of the count of chunk c. A batch of haves is added
to all counters at once by a ripple carry and taken away by a ripple borrow, log2(holders) planes at
most and two on average; the rarest members of any mask fall out by walking the planes from the top
and keeping, at each one, the chunks whose bit is clear if there are any. No step loops over chunks,
so a pick among 2,000 chunks costs a microsecond or two, and a report of a few chunks some
microseconds at 100,000. Counters in a list would cost a loop over the mask at each pick, which made
a 12-node lab CPU-bound.
"""

from __future__ import annotations

from collections.abc import Iterable


class Availability:
    """Counts holders per chunk; only sets that were added may be removed."""

    __slots__ = ("_planes", "held")

    def __init__(self) -> None:
        self._planes: list[int] = []
        # Chunks with at least one holder.
        self.held = 0

    def add(self, bits: int) -> None:
        """One more holder for each chunk of `bits`."""
        self.held |= bits
        planes = self._planes
        for level, plane in enumerate(planes):
            if not bits:
                return
            planes[level] = plane ^ bits
            bits &= plane
        if bits:
            planes.append(bits)

    def remove(self, bits: int) -> None:
        """One holder fewer for each chunk of `bits`."""
        planes = self._planes
        for level, plane in enumerate(planes):
            if not bits:
                break
            planes[level] = plane ^ bits
            bits ^= bits & plane
        assert not bits, "a holder is removed that was never added"
        self.held = _union(planes)

    def count(self, chunk: int) -> int:
        """How many hold `chunk`."""
        return sum((plane >> chunk & 1) << level for level, plane in enumerate(self._planes))

    def rarest(self, mask: int) -> int:
        """The members of `mask` with the fewest holders; empty only if `mask` is."""
        for plane in reversed(self._planes):
            rarer = mask ^ (mask & plane)
            if rarer:
                mask = rarer
        return mask

    def held_once(self) -> int:
        """Chunks with exactly one holder."""
        if not self._planes:
            return 0
        return self._planes[0] & ~_union(self._planes[1:])

    def held_without(self, several_bits: Iterable[int]) -> int:
        """Chunks that would still have a holder if these sets were removed."""
        rest = Availability()
        rest._planes = list(self._planes)
        for bits in several_bits:
            rest.remove(bits)
        return _union(rest._planes)


def _union(planes: Iterable[int]) -> int:
    held = 0
    for plane in planes:
        held |= plane
    return held
