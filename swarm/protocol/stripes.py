"""How a chunk is spread over the data links of a striped session.

Stripe k of s carries the units k, k+s, k+2s, … of the requested range, one after another, behind
one Chunk header. The unit is 1 MiB, the size of one receive segment, and smaller for a chunk so
small that some stripe would go empty. Interleaving keeps all links equally far, so that the hasher,
which follows the contiguous prefix, is never more than a few units behind."""

from __future__ import annotations

from dataclasses import dataclass

UNIT_BYTES_MAX = 1 << 20
UNIT_BYTES_STEP = 4096
"""Units begin on pages, so that sendfile never splits one."""


@dataclass(frozen=True, slots=True)
class Stripe:
    """The share of one data link in ``[offset, offset + length)`` of a chunk."""

    offset: int
    length: int
    stripe: int
    stripes: int

    @property
    def unit_bytes(self) -> int:
        if self.stripes == 1:
            return self.length
        share = -(-self.length // self.stripes)
        return min(UNIT_BYTES_MAX, -(-share // UNIT_BYTES_STEP) * UNIT_BYTES_STEP)

    def units(self) -> list[tuple[int, int]]:
        """(offset within the chunk, length) of each unit, in the order of travel."""
        unit = self.unit_bytes
        end = self.offset + self.length
        starts = range(self.offset + self.stripe * unit, end, self.stripes * unit)
        return [(start, min(unit, end - start)) for start in starts]

    @property
    def payload_bytes(self) -> int:
        """Bytes that travel on this link; 0 if the chunk is too short for this stripe."""
        return sum(length for _, length in self.units())


def useful_stripes(length: int, stripes: int) -> int:
    """The largest number ≤ `stripes` in which every stripe carries something."""
    while stripes > 1 and Stripe(0, length, stripes - 1, stripes).payload_bytes == 0:
        stripes -= 1
    return stripes
