"""What bytes cost, and whether a zone should read its own copy of a chunk from the origin.

The list is of early 2026 for one big cloud (US East, N. Virginia, on demand, without discounts).
The simulator's costs begin from the same one.

* Origin requests: S3 Standard GET, 0.0004 USD a thousand (https://aws.amazon.com/s3/pricing/).
* Origin egress: free to machines of the same region (the same page).
* Between zones: 0.01 USD/GB each way, so a byte that crosses costs 0.02 USD/GB
  (https://aws.amazon.com/ec2/pricing/on-demand/, "Data Transfer within the same AWS Region").
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ZoneCopies(enum.Enum):
    """How a chunk comes to a zone that lacks it while another zone holds it."""

    # From an agent of another zone, once.
    PEER = "peer"
    # Each zone reads its own copy from the origin.
    ORIGIN = "origin"
    # What `TRANSFER_PRICES` makes cheaper.
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class TransferPrices:
    """Per request and byte, all in one currency."""

    currency: str
    # Year and month of the list.
    dated: str
    per_origin_request: float
    per_origin_byte: float
    # A byte that leaves one zone and enters another.
    per_cross_zone_byte: float


TRANSFER_PRICES = TransferPrices(
    currency="USD",
    dated="2026-03",
    per_origin_request=0.0004 / 1000,
    per_origin_byte=0.0,
    per_cross_zone_byte=2 * 0.01 / 1e9,
)


def is_origin_copy_cheaper(
    prices: TransferPrices, *, origin: str, chunk_bytes: int, requests: int
) -> bool:
    """Whether to read a chunk from the origin, in so many requests, costs less than to have it
    cross between zones. The list is S3's: of any other origin, or one that is not known, nobody
    knows the price, and its bytes are spared."""
    if not origin.startswith("s3://"):
        return False
    read = requests * prices.per_origin_request + chunk_bytes * prices.per_origin_byte
    return read < chunk_bytes * prices.per_cross_zone_byte
